//! `/services/{namespace}/{name}`: how one service is doing: what it is asked, whom it asks, who asks it.
//!
//! In: a snapshot of the counts, objectives, recent traces. Out: a page. Refuses to count.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::figures::{self, Figures, Operation, Row};
use super::frame::{Here, Page};
use super::parameter::{self, Order as Sort, Range};
use super::{heat, lately, link, map, profile, slos, state, table, text, traces};
use crate::export::Metrics;
use crate::objective::view::{AlertView, View};
use crate::profile::SampleKind;
use crate::red::{Edge, Past};
use crate::span::{Service, SpanKind};
use crate::span_store::{Filter, Order, Page as Found, Query as SpanQuery, Stored, Trace, TraceQuery};
use crate::web::Command;

/// Operations that are shown.
const SHOWN: usize = 200;
/// Spans that are looked through for examples.
const EXAMPLES: usize = 4_000;
/// Traces of each kind.
const TRACES: usize = 10;

/// What the page is made of.
pub(super) struct Known<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) past: &'a Past,
    pub(super) range: Range,
    pub(super) order: Sort,
    pub(super) view: &'a View,
    pub(super) failed: &'a [Trace],
    pub(super) recent: &'a [Trace],
    /// Those of which some are shown in the picture of durations.
    pub(super) spans: &'a Found,
    pub(super) has_profiles: bool,
    /// Types of samples that there are beside CPU time.
    pub(super) types: Vec<SampleKind>,
}

pub(super) async fn serve(
    State(state): State<super::Web>,
    path: Result<Path<(String, String)>, PathRejection>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let (Path((namespace, name)), Query(pairs)) = (path?, pairs?);
    let (order, range) = parameter::of_tables(pairs)?;
    let (namespace, name) = (link::namespace_of(&namespace).to_owned(), link::name_of(&name).to_owned());
    let recent = TraceQuery { service: Some(name.clone()), limit: TRACES, ..TraceQuery::default() };
    let failing = TraceQuery { error: Some(true), ..recent.clone() };
    let (failed, _) = state.handle.ask(|reply| Command::Traces(failing, reply)).await?;
    let (recent, _) = state.handle.ask(|reply| Command::Traces(recent, reply)).await?;
    let past: Past = state.handle.ask(Command::Past).await?;
    let filter = Filter { service: Some(name.clone()), ..Filter::default() };
    let query = SpanQuery { filter, order: Order::Newest, limit: EXAMPLES };
    let spans: Found = state.handle.ask(|reply| Command::Spans(query, reply)).await?;
    let objectives = state.objectives.clone();
    let has_profiles = state.profiles.is_on();
    let types = super::span::types(&state.profiles);
    let make = move |metrics: Metrics| {
        let view = objectives.view().unwrap_or_default();
        let known = Known {
            metrics: &metrics,
            past: &past,
            range,
            order,
            view: &view,
            failed: &failed,
            recent: &recent,
            spans: &spans,
            has_profiles,
            types,
        };
        match page(&known, &namespace, &name) {
            Some(page) => page.into_response(),
            None => Failure::NoService(name).into_response(),
        }
    };
    Ok(state.answer(Command::Metrics, make).await?)
}

/// `None` when nothing is known of the service.
pub(super) fn page(known: &Known<'_>, namespace: &str, name: &str) -> Option<Page> {
    let red = &known.metrics.red;
    let is_it = |service: &Service| service.name == name && service.namespace == namespace;
    let totals = red.services.iter().find(|totals| is_it(&totals.service))?;
    let mut rows: Vec<Row> =
        figures::rows(red).into_iter().filter(|row| row.service.id == totals.service.id).collect();
    lately::apply(&mut rows, known.past, known.range);
    let id = totals.service.id;
    // What is usual for a list of services is not known of routes: those with most requests come first.
    let order = if known.order == Sort::default() { Sort::Requests } else { known.order };
    let [mut served, mut called] =
        [SpanKind::Server, SpanKind::Client].map(|kind| figures::operations(red, id, kind));
    [&mut served, &mut called].into_iter().for_each(|list| figures::sort(list, order));
    let edges = map::sorted(&red.edges, order);
    let edges = || edges.iter().copied();
    let callers: Vec<&Arc<Edge>> =
        edges().filter(|edge| *edge.server[0] == *name && *edge.server[1] == *namespace).collect();
    let callees: Vec<&Arc<Edge>> =
        edges().filter(|edge| *edge.client[0] == *name && *edge.client[1] == *namespace).collect();
    let objectives: Vec<_> =
        state::sorted(known.view).into_iter().filter(|(_, objective)| objective.service == name).collect();
    let path = link::service(namespace, name).unwrap_or_default();
    let at = |range: Range| link::with(&path, &[("range", range.given()), ("sort", known.order.word())]);
    let head = Head { path: &path, range: known.range, order };
    let is_of_it = |alert: &&AlertView| {
        alert.labels.get("slo").is_some_and(|slo| objectives.iter().any(|(_, of)| of.name == *slo))
    };
    let alerts: Vec<&AlertView> = known.view.alerts.iter().filter(is_of_it).collect();
    let durations = |row| {
        let (past, range, spans) = (known.past, known.range, &known.spans.spans);
        heat::picture(&heat::Shown { row, past, range, spans, alerts: &alerts })
    };
    let suggested = link::with("/api/v1/slos/suggested", &[("service", name)]);
    let body = html! {
        h1 { (text::name(if name.is_empty() { "(no name)" } else { name })) @if !namespace.is_empty() { " " span.of { (text::name(namespace)) } } }
        div.controls { (lately::ranges(known.range, at)) }
        div data-live="tiles" { @for row in &rows { (tiles(row)) } @for row in rows.iter().take(1) { (lately::known(row, known.range)) } }
        div data-live="objectives" {
            @if !objectives.is_empty() {
                section aria-labelledby="objectives" { h2 #objectives { "Objectives" } (slos::list(&objectives)) }
            }
        }
        div data-live="durations" { @for row in rows.iter().take(1) { (durations(row)) } }
        @for row in rows.iter().skip(1) {
            details.profile { summary { "Durations of its calls" } (durations(row)) }
        }
        div data-live="operations" {
            @if !served.is_empty() { (operations(&head, ("routes", "Routes"), &served, (name, SpanKind::Server))) }
            @if !called.is_empty() { (operations(&head, ("calls", "Calls"), &called, (name, SpanKind::Client))) }
            @if !callers.is_empty() { (others(&head, "callers", ["Callers", "From"], callers.iter().map(|edge| (&edge.client, *edge)))) }
            @if !callees.is_empty() { (others(&head, "callees", ["Called services", "To"], callees.iter().map(|edge| (&edge.server, *edge)))) }
        }
        @if known.has_profiles { (profiles(name, &known.types, versions(&known.spans.spans, id))) }
        div data-live="traces" {
            @if !known.failed.is_empty() {
                section aria-labelledby="failed" {
                    h2 #failed { "Failed lately" }
                    (traces::list(known.failed, "Recent traces with errors"))
                    p { a href=(link::with("/spans", &[("service", name), ("error", "true")])) { "All failed spans that are held" } }
                }
            }
            @if !known.recent.is_empty() {
                section aria-labelledby="recent" {
                    h2 #recent { "Recent traces" }
                    (traces::list(known.recent, "Recent traces"))
                    p { a href=(link::with("/spans", &[("service", name)])) { "All spans that are held" } }
                }
            }
        }
        @if objectives.is_empty() && !served.is_empty() {
            p { "It has no objective. " a href=(suggested) { "Suggest one" } ", as OpenSLO text made from what was measured." }
        }
    };
    Some(Page {
        here: Here::Services,
        title: name.to_owned(),
        crumbs: vec![("Services".to_owned(), Some("/".to_owned()))],
        json: Some(link::with("/api/v1/spans", &[("service", name)])),
        body,
    })
}

fn tiles(row: &Row) -> Markup {
    let figures = &row.figures;
    let of = |figures: &Figures, ratio| html! { (text::near_duration(figures.spread.quantile(ratio))) };
    let quantile =
        |ratio| html! { (lately::quantile(row, ratio)) (lately::earlier(row, |before| of(before, ratio))) };
    let what = match row.kind {
        SpanKind::Server => "Requests served",
        SpanKind::Client | SpanKind::Internal => "Calls made",
    };
    html! {
        dl.tiles {
            (table::tile(what, &lately::compared(row)))
            (table::tile("Failed", &html! { (table::errors(figures)) (lately::earlier(row, table::errors)) }))
            (table::tile("p50", &quantile(0.5)))
            (table::tile("p95", &quantile(0.95)))
            (table::tile("p99", &quantile(0.99)))
            (table::tile("Under way", &html! { (text::count(row.active)) }))
            @if let Some(wait) = row.queue_wait { (table::tile("Queue p95", &html! { (text::duration(wait)) })) }
            @if let Some(cpu) = row.cpu { (table::tile("CPU a request", &html! { (text::duration(cpu)) })) }
        }
    }
}

/// Heads of tables that sort them; the same order holds for all of the page.
struct Head<'a> {
    path: &'a str,
    range: Range,
    order: Sort,
}

impl Head<'_> {
    fn cell(&self, order: Sort, name: &str, class: &str) -> Markup {
        let address = link::with(self.path, &[("range", self.range.given()), ("sort", order.word())]);
        table::sorted(&address, (self.order == order).then_some(order.direction()), name, class)
    }
}

fn operations(
    head: &Head<'_>,
    (id, heading): (&str, &str),
    list: &[Operation],
    (service, kind): (&str, SpanKind),
) -> Markup {
    let is_server = kind == SpanKind::Server;
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) " " span.of { "since the series began" } }
            div.wide tabindex="0" { table.rows {
                caption.unseen { (heading) }
                thead { tr {
                    (head.cell(Sort::Name, if is_server { "Route" } else { "To" }, ""))
                    (head.cell(Sort::Requests, "Requests", "n")) (head.cell(Sort::Errors, "Errors", "n"))
                    (head.cell(Sort::Median, "p50", "n")) (head.cell(Sort::Slow, "p95", "n")) (head.cell(Sort::Slowest, "p99", "n"))
                    @if is_server { (head.cell(Sort::Cpu, "CPU", "n")) }
                    th scope="col" { "See" }
                } }
                tbody { @for operation in list.iter().take(SHOWN) { (row(operation, service, is_server)) } }
            } }
            @if list.len() > SHOWN { p { (list.len() - SHOWN) " more with fewer requests: " a href="/metrics" { "/metrics" } } }
        }
    }
}

fn row(operation: &Operation, service: &str, is_server: bool) -> Markup {
    let figures = &operation.figures;
    let quantile = |ratio| text::maybe_duration(figures.spread.quantile(ratio));
    let kind = if is_server { "server" } else { "client" };
    let parameters =
        [("service", service), ("kind", kind), ("method", operation.verb), ("route", &operation.place)];
    let why = [("service", service), ("route", &operation.place), ("slow", "true")];
    html! {
        tr {
            th scope="row" {
                span.verb { (operation.verb) } " "
                @if operation.is_route && !operation.place.is_empty() { a href=(link::with("/spans", &parameters)) { (text::name(&operation.place)) } }
                @else { (text::name(&operation.place)) }
            }
            td.n data-is="requests" { (text::count(figures.requests)) }
            td.n { (table::errors(figures)) }
            td.n { (quantile(0.5)) }
            td.n { (quantile(0.95)) }
            td.n { (quantile(0.99)) }
            @if is_server { td.n { (text::maybe_duration(operation.cpu)) } }
            td.see {
                (table::example(figures.slow.as_ref(), "slow one"))
                (table::example(figures.failed.as_ref(), "failed one"))
                @if operation.cpu.is_some() { a href=(link::with(profile::COMPARE, &why)) title="Flame graph: CPU time of the slowest 5 % against the others, last minute" { "why slow" } }
            }
        }
    }
}

/// Services at the other ends of edges.
fn others<'a>(
    head: &Head<'_>,
    id: &str,
    [heading, column]: [&str; 2],
    edges: impl Iterator<Item = (&'a [Arc<str>; 2], &'a Arc<Edge>)>,
) -> Markup {
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) " " span.of { "since the series began" } }
            div.wide tabindex="0" { table.rows {
                caption.unseen { (heading) }
                thead { tr { (head.cell(Sort::Name, column, "")) (head.cell(Sort::Requests, "Requests", "n")) (head.cell(Sort::Errors, "Errors", "n")) } }
                tbody { @for (other, edge) in edges {
                    tr {
                        th scope="row" { (super::map::node(other, edge.connection_type.is_empty())) }
                        td.n { (text::count(edge.total)) }
                        td.n { (table::failed(edge.failed, edge.total)) }
                    }
                } }
            } }
        }
    }
}

/// The two versions of a service whose spans are newest, the newer one first; `None` where there are not two.
fn versions(spans: &[Stored], service: u32) -> Option<[&str; 2]> {
    let of = spans.iter().map(|stored| &*stored.span).filter(|span| span.service.id == service);
    let mut versions = of.filter_map(|span| span.instance.version(&span.service));
    let new = versions.next()?;
    Some([new, versions.find(|version| *version != new)?])
}

fn profiles(name: &str, types: &[SampleKind], versions: Option<[&str; 2]>) -> Markup {
    let of_service = [("service", name)];
    let own = link::with(profile::PAGE, &of_service);
    html! {
        details.profile {
            summary { "Where its CPU time goes: flame graph of the last minute" }
            p { "Width is CPU time; left to right is alphabetical, not time. " a href=(own) { "On a page of its own" } }
            @if let Some([new, old]) = versions {
                p {
                    a href=(link::with(profile::COMPARE, &[("service", name), ("version", new), ("base_version", old)])) { "Version " (text::name(new)) " against " (text::name(old)) }
                    ", by their flame graphs"
                }
            }
            (super::span::others(&own, types))
            (profile::moments(|kind| link::with(profile::PAGE, &[("service", name), ("type", kind)]), None))
            (super::span::picture(&link::with(profile::PICTURE, &of_service), "Flame graph of this service"))
        }
    }
}
