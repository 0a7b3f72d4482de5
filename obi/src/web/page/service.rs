//! `/services/{namespace}/{name}`: how one service is doing: what it is asked, whom it asks, who asks it.
//!
//! In: a snapshot of the counts, objectives, recent traces. Out: a page. Refuses to count.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::figures::{self, Operation, Row};
use super::frame::{Here, Page};
use super::parameter::Range;
use super::{heat, lately, link, slos, state, table, text, traces};
use crate::export::Metrics;
use crate::objective::view::View;
use crate::red::{Edge, Past};
use crate::span::{Service, SpanKind};
use crate::span_store::{Filter, Order, Page as Found, Query as SpanQuery, Trace, TraceQuery};
use crate::web::{Command, Error};

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
    pub(super) view: &'a View,
    pub(super) failed: &'a [Trace],
    pub(super) recent: &'a [Trace],
    /// Those of which some are shown in the picture of durations.
    pub(super) spans: &'a Found,
    pub(super) has_profiles: bool,
}

pub(super) async fn serve(
    State(state): State<super::Web>,
    path: Result<Path<(String, String)>, PathRejection>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let (Path((namespace, name)), Query(pairs)) = (path?, pairs?);
    let range = range(pairs)?;
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
    let make = move |metrics: Metrics| {
        let view = objectives.view().unwrap_or_default();
        let known = Known {
            metrics: &metrics,
            past: &past,
            range,
            view: &view,
            failed: &failed,
            recent: &recent,
            spans: &spans,
            has_profiles,
        };
        match page(&known, &namespace, &name) {
            Some(page) => page.into_response(),
            None => Failure::NoService(name).into_response(),
        }
    };
    Ok(state.answer(Command::Metrics, make).await?)
}

fn range(pairs: Vec<(String, String)>) -> Result<Range, Error> {
    let mut range = Range::default();
    for (parameter, value) in pairs {
        let read = match parameter.as_str() {
            "range" => Range::of(&value).map(|given| range = given),
            _ => Err("unknown parameter, expected range"),
        };
        read.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    Ok(range)
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
    let served = figures::operations(red, id, SpanKind::Server);
    let called = figures::operations(red, id, SpanKind::Client);
    let callers: Vec<&Arc<Edge>> =
        red.edges.iter().filter(|edge| *edge.server[0] == *name && *edge.server[1] == *namespace).collect();
    let objectives: Vec<_> =
        state::sorted(known.view).into_iter().filter(|(_, objective)| objective.service == name).collect();
    let path = link::service(namespace, name).unwrap_or_default();
    let at = |range: Range| link::with(&path, &[("range", range.given())]);
    let durations = |row| {
        heat::picture(&heat::Shown { row, past: known.past, range: known.range, spans: &known.spans.spans })
    };
    let suggested = link::with("/api/v1/slos/suggested", &[("service", name)]);
    let body = html! {
        h1 { (text::name(if name.is_empty() { "(no name)" } else { name })) @if !namespace.is_empty() { " " span.of { (text::name(namespace)) } } }
        div.controls { (lately::ranges(known.range, at)) }
        div data-live="tiles" { @for row in &rows { (tiles(row)) } }
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
            @if !served.is_empty() { (operations("routes", "Routes", &served, (name, SpanKind::Server))) }
            @if !called.is_empty() { (operations("calls", "Calls", &called, (name, SpanKind::Client))) }
            @if !callers.is_empty() { (callers_of(&callers)) }
        }
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
        @if known.has_profiles { (profile(name)) }
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
    let quantile = |ratio| html! { (text::maybe_duration(figures.spread.quantile(ratio))) };
    let what = match row.kind {
        SpanKind::Server => "Requests served",
        SpanKind::Client | SpanKind::Internal => "Calls made",
    };
    html! {
        dl.tiles {
            (table::tile(what, &lately::requests(row)))
            (table::tile("Failed", &table::errors(figures)))
            (table::tile("p50", &quantile(0.5)))
            (table::tile("p95", &quantile(0.95)))
            (table::tile("p99", &quantile(0.99)))
            (table::tile("Under way", &html! { (text::count(row.active)) }))
            @if let Some(wait) = row.queue_wait { (table::tile("Queue p95", &html! { (text::duration(wait)) })) }
            @if let Some(cpu) = row.cpu { (table::tile("CPU a request", &html! { (text::duration(cpu)) })) }
        }
    }
}

fn operations(id: &str, heading: &str, list: &[Operation], (service, kind): (&str, SpanKind)) -> Markup {
    let is_server = kind == SpanKind::Server;
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (heading) " " span.of { "since the series began" } }
            div.wide tabindex="0" { table.rows {
                caption.unseen { (heading) }
                thead { tr {
                    th scope="col" { (if is_server { "Route" } else { "To" }) }
                    th.n scope="col" { "Requests" } th.n scope="col" { "Errors" }
                    th.n scope="col" { "p50" } th.n scope="col" { "p95" } th.n scope="col" { "p99" }
                    @if is_server { th.n scope="col" { "CPU" } }
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
                @if operation.cpu.is_some() { a href=(link::with("/api/v1/profiles/compare", &why)) title="Flame graph: CPU time of the slowest 5 % against the others, last minute" { "why slow" } }
            }
        }
    }
}

fn callers_of(callers: &[&Arc<Edge>]) -> Markup {
    html! {
        section aria-labelledby="callers" {
            h2 #callers { "Callers" }
            div.wide tabindex="0" { table.rows {
                caption.unseen { "Who calls it" }
                thead { tr { th scope="col" { "From" } th.n scope="col" { "Requests" } th.n scope="col" { "Errors" } } }
                tbody { @for edge in callers {
                    tr {
                        th scope="row" { (super::map::node(&edge.client, edge.connection_type.is_empty())) }
                        td.n { (text::count(edge.total)) }
                        td.n { (table::failed(edge.failed, edge.total)) }
                    }
                } }
            } }
        }
    }
}

fn profile(name: &str) -> Markup {
    let address = link::with("/api/v1/profiles", &[("format", "svg"), ("service", name)]);
    html! {
        details.profile {
            summary { "Where its CPU time goes: flame graph of the last minute" }
            p { "Width is CPU time; left to right is alphabetical, not time. " a href=(address) { "On a page of its own" } }
            (super::span::picture(&address, "Flame graph of this service"))
        }
    }
}
