//! `/traces/{trace_id}/{span_id}`: one span, what it was, and where its time went.
//!
//! In: a span, how much was sampled in it. Out: a page with its attributes and its flame graph. Refuses to draw it: the
//! picture is the API's own document.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, Page};
use super::trace::{is_error, query, trace_id};
use super::{breakdown, link, profile, table, text};
use crate::export::flame::Total;
use crate::export::summary::Summary;
use crate::profile::ask::{AskError, Handle};
use crate::profile::choose::Filter;
use crate::profile::sample_type::ROWS;
use crate::profile::{SampleKind, Selection};
use crate::red::seconds;
use crate::span::{AttributeValue, Span};
use crate::span_store::Page as Found;
use crate::web::spans::json::hex;
use crate::web::{Command, Error};

/// Samples below which a picture says nothing of a request.
const FEW: u64 = 5;
/// A function that took less of it is not named in words.
const MUCH: f64 = 0.25;
/// How long names of functions are waited for before the page is shown without knowing how many samples there are.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Around the span, when its route is shown instead; seconds.
const AROUND: u64 = 300;

/// What was sampled in a span.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sampled {
    /// Nothing is sampled at all, for this reason.
    Off(String),
    /// The names are still being looked for.
    Pending,
    Samples(Total, Option<Busiest>),
}

/// The function that took most itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Busiest {
    pub(super) function: String,
    /// Of the span's samples, from 0 to 1.
    pub(super) share: f64,
}

impl Busiest {
    fn of(selection: &Selection, total: &Total) -> Option<Self> {
        let function = Summary::new(selection).functions.into_iter().next()?;
        let share = function.own / total.sum;
        (share >= MUCH).then_some(Self { function: function.function, share })
    }
}

pub(super) async fn serve(
    State(state): State<super::Web>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Failure> {
    let Path((trace, id)) = path?;
    let trace_id = trace_id(&trace)?;
    let found: Found = state.handle.ask(|reply| Command::Spans(query(trace_id), reply)).await?;
    if found.spans.is_empty() {
        return Err(Error::NoTrace(trace).into());
    }
    let stored = found.spans.into_iter().find(|stored| hex(&stored.span.span_id) == id.to_ascii_lowercase());
    let Some(stored) = stored else { return Err(Failure::NoSpan(trace_id, id)) };
    let filter =
        Filter { end: crate::web::profiles::now(), span_id: Some(stored.span.span_id), ..Filter::default() };
    let sampled = match tokio::time::timeout(PATIENCE, state.profiles.ask(filter)).await {
        Ok(Ok(selection)) => {
            let total = Total::of(&selection);
            Sampled::Samples(total, Busiest::of(&selection, &total))
        }
        Ok(Err(AskError::Off(reason) | AskError::TypeOff { reason, .. })) => Sampled::Off(reason.to_string()),
        Ok(Err(AskError::Unanswered)) | Err(_) => Sampled::Pending,
    };
    Ok(page(&stored.span, &sampled, &types(&state.profiles)).into_response())
}

/// Types of samples that there are beside CPU time, of requests and times.
pub(super) fn types(profiles: &Handle) -> Vec<SampleKind> {
    let kinds = ROWS.iter().map(|row| row.kind);
    let kinds = kinds.filter(|kind| *kind != SampleKind::Cpu && !kind.is_of_moment());
    kinds.filter(|kind| profiles.has(*kind)).collect()
}

/// The same selection by other types.
pub(super) fn others(address: &str, types: &[SampleKind]) -> Markup {
    html! {
        @if !types.is_empty() {
            p.go { "Other flame graphs: " @for kind in types {
                a href=(format!("{address}&type={}", kind.row().name)) { (profile::word(*kind)) } " "
            } }
        }
    }
}

pub(super) fn page(span: &Span, sampled: &Sampled, types: &[SampleKind]) -> Page {
    let name = span.name().to_string();
    let mut attributes = Vec::new();
    span.attributes(|name, value| attributes.push((name.to_owned(), shown(&value))));
    let resource: Vec<_> = span.resource().map(|(name, value)| (name.to_owned(), shown(&value))).collect();
    let took = span.end.saturating_sub(span.start);
    let body = html! {
        h1 { (text::name(&name)) }
        p.sum {
            (table::service(&span.service.namespace, &span.service.name)) " " (table::side(span.kind)) " it in "
            b { (text::duration(seconds(took))) } ", "
            @if is_error(span) { span.bad { "▲ " (text::name(span.error_type)) } } @else { "no error" }
            ", at " (text::moment(span.start)) "."
            @if span.queue_wait > 0 { " Of that it waited " b { (text::duration(seconds(span.queue_wait))) } " to be read." }
        }
        @if !span.status_message().is_empty() { p { (text::name_to(span.status_message(), 500)) } }
        p.go { (ways(span)) }
        (breakdown::section(span))
        (cpu_time(span, sampled, types))
        section aria-labelledby="attributes" { h2 #attributes { "Attributes" } (pairs(&attributes)) }
        section aria-labelledby="resource" {
            h2 #resource { "Process" }
            p.quiet { "pid " (span.pid) }
            @if !resource.is_empty() { (pairs(&resource)) }
        }
        p.quiet { "Span " code { (hex(&span.span_id)) } " of trace " code { (hex(&span.trace_id)) } }
    };
    Page {
        here: Here::Spans,
        title: name,
        crumbs: vec![
            ("Spans".to_owned(), Some("/spans".to_owned())),
            ("Trace".to_owned(), Some(link::trace(&span.trace_id))),
        ],
        json: Some(link::with("/api/v1/spans", &[("trace_id", &hex(&span.trace_id))])),
        body,
    }
}

fn shown(value: &AttributeValue<'_>) -> String {
    value.to_string()
}

/// To spans like this one.
fn ways(span: &Span) -> Markup {
    let operation = span.detail.operation();
    let kind = span.kind.name();
    let route = if span.detail.carrier().is_some() { &**operation.place } else { "" };
    let same = [("service", &*span.service.name), ("kind", kind), ("route", route)];
    html! {
        a href=(link::trace(&span.trace_id)) { "The whole trace" } " "
        a href=(link::with("/spans", &same)) { "Others of its kind" }
    }
}

/// Where its CPU time went.
fn cpu_time(span: &Span, sampled: &Sampled, types: &[SampleKind]) -> Markup {
    let id = hex(&span.span_id);
    let trace = hex(&span.trace_id);
    let of_span = [("trace", &*trace), ("span", &*id)];
    let shown = || picture(&link::with(profile::PICTURE, &of_span), "Flame graph of this span");
    let own = link::with(profile::PAGE, &of_span);
    html! {
        section aria-labelledby="profile" {
            h2 #profile { "Where its CPU time went" }
            @if !matches!(sampled, Sampled::Off(_)) { (others(&own, types)) }
            @match sampled {
                Sampled::Off(reason) => p.empty { "Not known: " (text::plain(reason)) "." },
                Sampled::Pending => {
                    p { "Functions are being named; this may take some seconds." }
                    (shown())
                },
                Sampled::Samples(total, busiest) if total.samples >= FEW => {
                    @if let Some(Busiest { function, share }) = busiest {
                        p { b { (text::percent(*share)) } " of it in " code { (text::name_to(function, 200)) } " itself." }
                    }
                    p {
                        (text::counted(total.samples, "sample", "samples")) ", " b { (text::duration(total.sum)) } " ± " (text::duration(total.error)) " of CPU time. "
                        "Width is CPU time; left to right is alphabetical, not time. "
                        a href=(own) { "On a page of its own" }
                        @if let Some(address) = compared(span, &id) { ", " a href=(address) { "against the fast ones of its route" } }
                    }
                    (profile::views(None, |view| link::with(profile::PAGE, &[of_span[0], of_span[1], ("view", view)])))
                    (shown())
                },
                Sampled::Samples(total, _) => (few(span, total.samples)),
            }
        }
    }
}

/// A picture of a handful of samples is chance. Its route's says more.
fn few(span: &Span, samples: u64) -> Markup {
    let from = (span.start / 1_000_000_000).saturating_sub(AROUND).to_string();
    let to = (span.end / 1_000_000_000 + AROUND).to_string();
    let route = route(span);
    let parameters = [("service", &*span.service.name), ("route", route), ("from", &from), ("to", &to)];
    let address = link::with(profile::PICTURE, &parameters);
    html! {
        p {
            @if samples == 0 { "It was not sampled on a CPU: it waited, ran for less than the time between two looks, or on an event loop that had other requests open." }
            @else { "Only " (text::counted(samples, "sample", "samples")) ": too few to conclude from." }
        }
        @if !route.is_empty() {
            details.profile open[samples > 0] {
                summary { "All requests of " (text::name(route)) " within five minutes" }
                (picture(&address, "Flame graph of its route"))
            }
        }
    }
}

/// What samples of it are found by.
fn route(span: &Span) -> &str {
    match span.kind {
        crate::span::SpanKind::Server => span.detail.operation().place,
        crate::span::SpanKind::Client | crate::span::SpanKind::Internal => "",
    }
}

fn compared(span: &Span, id: &str) -> Option<String> {
    let route = route(span);
    let parameters =
        [("span", id), ("base_service", &*span.service.name), ("base_route", route), ("base_slow", "false")];
    (!route.is_empty()).then(|| link::with(profile::COMPARE, &parameters))
}

/// A flame graph in a frame that may run its own script and nothing else.
pub(super) fn picture(address: &str, title: &str) -> Markup {
    let mark = if address.contains('?') { '&' } else { '?' };
    html! { iframe.flame src={ (address) (mark) "format=html" } title=(title) loading="lazy" sandbox="allow-scripts" {} }
}

fn pairs(pairs: &[(String, String)]) -> Markup {
    html! {
        dl.pairs { @for (name, value) in pairs {
            div { dt { (text::name(name)) } dd { (text::name_to(value, 400)) } }
        } }
    }
}
