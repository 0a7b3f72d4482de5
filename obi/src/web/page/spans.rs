//! `/spans`: spans that are held, by what is looked for.
//!
//! In: the API's filters, from a form. Out: a page. Refuses to know the store's inside.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, Page};
use super::trace::is_error;
use super::{link, table, text};
use crate::red::seconds;
use crate::span::{Answer, Span};
use crate::span_store::{Page as Found, Stored};
use crate::web::Command;
use crate::web::profiles::parameter::parse_time;
use crate::web::spans::parameter;

/// Filters of the form: name, label, an example.
const FIELDS: [(&str, &str, &str); 6] = [
    ("service", "Service", ""),
    ("method", "Method", "GET"),
    ("route", "Route", "/cart/{id}"),
    ("path", "Path begins with", "/cart"),
    ("status", "Status", "404, 5xx, UNAVAILABLE"),
    ("min_duration_ms", "At least, ms", "100"),
];

pub(super) async fn serve(
    State(state): State<super::Web>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(mut pairs) = pairs?;
    // A form sends what was left empty.
    pairs.retain(|(_, value)| !value.is_empty());
    let query = parameter::parse(pairs.clone())?;
    let make = move |found: Found| page(&found, &pairs).into_response();
    Ok(state.answer(|reply| Command::Spans(query, reply), make).await?)
}

pub(super) fn page(found: &Found, pairs: &[(String, String)]) -> Page {
    let given: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (&**name, &**value)).collect();
    let is_filtered = given.iter().any(|(name, _)| !["limit", "after", "sort"].contains(name));
    let body = html! {
        h1 { "Spans" }
        (form(&given))
        (between(&given))
        div data-live="spans" {
            @if found.spans.is_empty() { (empty(found.stored, is_filtered)) } @else { (list(&found.spans, &given)) }
            p.quiet {
                (text::counted(found.spans.len() as u64, "span", "spans")) " shown of " (text::count(found.stored as u64)) " held; "
                (text::count(found.evicted)) " older ones have given way."
            }
        }
    };
    Page {
        here: Here::Spans,
        title: "Spans".to_owned(),
        crumbs: Vec::new(),
        json: Some(link::with("/api/v1/spans", &given)),
        body,
    }
}

fn form(given: &[(&str, &str)]) -> Markup {
    let value = |name: &str| given.iter().find(|(held, _)| *held == name).map_or("", |(_, value)| *value);
    let choice = |name: &str, is: &str, shown: &str| html! { option value=(is) selected[value(name) == is] { (shown) } };
    html! {
        form.controls.filters method="get" action="/spans" role="search" {
            @for (name, label, example) in FIELDS {
                label { span { (label) } input name=(name) value=(value(name)) placeholder=(example) autocomplete="off"; }
            }
            label { span { "Side" } select name="kind" { (choice("kind", "", "both")) (choice("kind", "server", "serves")) (choice("kind", "client", "calls")) } }
            label { span { "Outcome" } select name="error" { (choice("error", "", "any")) (choice("error", "true", "failed")) (choice("error", "false", "no error")) } }
            @for name in ["trace_id", "from", "to", "sort"] {
                @if !value(name).is_empty() { input type="hidden" name=(name) value=(value(name)); }
            }
            button { "Find" }
            @if !given.is_empty() { a href="/spans" { "Clear" } }
        }
    }
}

/// When they ended, where that is asked for.
fn between(given: &[(&str, &str)]) -> Markup {
    let time = |name: &str| {
        given.iter().find(|(held, _)| *held == name).and_then(|(_, value)| parse_time(value).ok())
    };
    let (from, to) = (time("from"), time("to"));
    html! {
        @if from.is_some() || to.is_some() {
            p { "Those that ended"
                @if let Some(from) = from { " from " (text::moment(from)) " on" }
                @if let Some(to) = to { " before " (text::moment(to)) }
            "." }
        }
    }
}

fn empty(stored: usize, is_filtered: bool) -> Markup {
    html! {
        div.empty {
            @if stored > 0 && is_filtered { p { b { "No span fits." } " " a href="/spans" { "Show all" } } }
            @else { p { b { "No span is held." } " They appear when watched programs serve or send requests; " code { "obi demo" } " makes some." } }
        }
    }
}

fn list(spans: &[Stored], given: &[(&str, &str)]) -> Markup {
    let is_slowest = given.contains(&("sort", "slowest"));
    let is_newest = !is_slowest && given.iter().all(|(name, _)| *name != "after");
    let sorted = |order: &'static str| {
        let rest = given.iter().copied().filter(|(name, _)| !["sort", "after"].contains(name));
        link::with("/spans", &rest.chain([("sort", order)]).collect::<Vec<_>>())
    };
    let longest = spans.iter().map(|it| took(&it.span)).max().unwrap_or(0);
    html! {
        div.wide tabindex="0" { table.rows #rows {
            caption.unseen { "Spans, " (if is_slowest { "slowest" } else if is_newest { "newest" } else { "oldest" }) " first" }
            thead { tr {
                th scope="col" { "Span" } th scope="col" { "Service" } th scope="col" { "Status" } (table::sorted(&sorted("slowest"), is_slowest.then_some("descending"), "Took", "n")) th scope="col" { "" } (table::sorted(&sorted(""), is_newest.then_some("descending"), "At", ""))
            } }
            tbody { @for stored in spans { (row(&stored.span, longest)) } }
        } }
    }
}

fn took(span: &Span) -> u64 {
    span.end.saturating_sub(span.start)
}

fn row(span: &Span, longest: u64) -> Markup {
    let share = took(span) as f64 * 100.0 / longest.max(1) as f64;
    html! {
        tr {
            th scope="row" { a href=(link::span(&span.trace_id, &span.span_id)) { (text::name(&span.name().to_string())) } }
            td { (table::service(&span.service.namespace, &span.service.name)) " " span.of { (table::side(span.kind)) } }
            td { (status(span)) }
            td.n { (text::duration(seconds(took(span)))) }
            td.length { svg.meter viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" { rect.left width=(format!("{share:.1}")) height="8" {} } }
            td { (text::moment(span.start)) " " a.of href=(link::trace(&span.trace_id)) { "trace" } }
        }
    }
}

/// What it was answered with; of errors why they are.
fn status(span: &Span) -> Markup {
    let answer = match span.detail.answer() {
        Answer::Http(status) => status.to_string(),
        Answer::Rpc(code) => code.name().to_owned(),
        Answer::Unknown => "not readable".to_owned(),
        Answer::None => String::new(),
    };
    html! {
        @if is_error(span) {
            span.bad { "▲ " (answer) @if answer != span.error_type { " " (text::name(span.error_type)) } }
        } @else { (answer) }
    }
}
