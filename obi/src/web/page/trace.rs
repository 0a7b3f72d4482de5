//! `/traces/{trace_id}`: what happened in one request, along its time.
//!
//! In: the spans of a trace that are held, a snapshot of the counts. Out: a page with a waterfall.

use std::collections::HashMap;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, Page};
use super::waterfall::{self, Bar};
use super::{link, table, text};
use crate::cause::context::parse_id;
use crate::export::Metrics;
use crate::red::{Snapshot, Spread, seconds};
use crate::span::{Span, SpanKind, Status};
use crate::span_store::{Filter, Order, Page as Found, Placed, Query as SpanQuery, tree};
use crate::web::spans::{MAX_LIMIT, json::hex};
use crate::web::{Command, Error};

/// Rows that are shown at first.
const SHOWN: usize = 300;
/// Levels that are indented; what is deeper stands below each other.
const LEVELS: usize = 12;
/// Colours of services; then they begin again. The name stands beside it.
const COLOURS: usize = 8;
/// Spans that a rank needs to say anything.
const FEW: u64 = 20;
/// A span that is slower than so many of its kind is marked.
const UNUSUAL: f64 = 0.95;

pub(super) async fn serve(
    State(state): State<super::Web>,
    path: Result<Path<String>, PathRejection>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let (Path(id), Query(pairs)) = (path?, pairs?);
    let trace_id = trace_id(&id)?;
    let mut all = false;
    for (parameter, value) in pairs {
        match (&*parameter, &*value) {
            ("all", "true") => all = true,
            _ => return Err(Error::Parameter { parameter, value, expected: "expected all=true" }.into()),
        }
    }
    let metrics: Metrics = state.handle.ask(Command::Metrics).await?;
    let make = move |found: Found| match found.spans.is_empty() {
        true => Failure::from(Error::NoTrace(id)).into_response(),
        false => page(&trace_id, &tree(found.spans), &metrics.red, all).into_response(),
    };
    Ok(state.answer(|reply| Command::Spans(query(trace_id), reply), make).await?)
}

pub(super) fn trace_id(text: &str) -> Result<[u8; 16], Failure> {
    let expected = "expected 32 hexadecimal digits";
    let error = || Error::Parameter { parameter: "trace_id".to_owned(), value: text.to_owned(), expected };
    Ok(parse_id(text).ok_or_else(error)?)
}

/// All spans of a trace.
pub(super) fn query(trace_id: [u8; 16]) -> SpanQuery {
    let filter = Filter { trace_id: Some(trace_id), ..Filter::default() };
    SpanQuery { filter, order: Order::Newest, limit: MAX_LIMIT }
}

pub(super) fn page(trace_id: &[u8; 16], spans: &[Placed], red: &Snapshot, all: bool) -> Page {
    let (start, total) = waterfall::extent(spans);
    let errors = spans.iter().filter(|placed| is_error(&placed.stored.span)).count();
    let colours = waterfall::colours(spans);
    let cut = spans.iter().filter(|placed| placed.is_cut).count();
    let name = spans.first().map(|placed| placed.stored.span.name().to_string()).unwrap_or_default();
    let shown = if all { spans.len() } else { SHOWN };
    let body = html! {
        h1 { (text::name(&name)) }
        p.sum {
            b { (text::duration(seconds(total))) } ", "
            (text::counted(spans.len() as u64, "span", "spans")) " of " (text::counted(colours.values().max().map_or(0, |last| last + 1) as u64, "service", "services")) ", "
            @if errors == 0 { "none failed" } @else { span.bad { "▲ " (errors) " failed" } }
            ", at " (text::moment(start)) ". "
            @if cut > 0 {
                span.quiet { (text::counted(cut as u64, "span has a parent that was", "spans have parents that were")) " not seen on this machine." }
            }
        }
        (legend())
        (rows(spans, red, &colours, shown))
        @if spans.len() > shown {
            p { (spans.len() - shown) " more. " a href={ (link::trace(trace_id)) "?all=true" } { "Show all" } }
        }
        p.quiet { "Trace " code { (hex(trace_id)) } }
    };
    Page {
        here: Here::Spans,
        title: name,
        crumbs: vec![("Spans".to_owned(), Some("/spans".to_owned()))],
        json: Some(format!("/api/v1/traces/{}", hex(trace_id))),
        body,
    }
}

pub(super) fn is_error(span: &Span) -> bool {
    span.status() == Status::Error
}

fn legend() -> Markup {
    let swatch = |class: &str| html! { svg.swatch viewBox="0 0 10 10" aria-hidden="true" { rect class=(class) width="10" height="10" {} } };
    html! {
        p.legend {
            span { (swatch("queue")) " waited to be read" }
            span { (swatch("own")) " own time" }
            span { (swatch("below")) " waited for others" }
            span { b { "┃" } " on the critical path" }
        }
    }
}

fn rows(spans: &[Placed], red: &Snapshot, colours: &HashMap<u32, usize>, shown: usize) -> Markup {
    let bars = waterfall::bars(spans);
    let ranks = ranks(spans, red);
    let (start, _) = waterfall::extent(spans);
    html! {
        table.fall.rows {
            caption.unseen { "Spans of this trace, each below its parent" }
            thead { tr {
                th scope="col" { "Span" } th scope="col" { "Time" } th.n scope="col" { "After" } th.n scope="col" { "Took" }
                th.n scope="col" title="p95: 95 % of its kind took less, since the agent began" { "Rank" }
            } }
            tbody { @for (placed, bar) in spans.iter().zip(&bars).take(shown) {
                (row(placed, bar, start, colours, &ranks))
            } }
        }
    }
}

fn row(placed: &Placed, bar: &Bar, start: u64, colours: &HashMap<u32, usize>, ranks: &Ranks) -> Markup {
    let span = &placed.stored.span;
    let took = seconds(span.end.saturating_sub(span.start));
    let colour = colours.get(&span.service.id).map_or(0, |nth| nth % COLOURS);
    let level = placed.depth.min(LEVELS - 1);
    let rank =
        ranks.get(&key(span)).filter(|spread| spread.count() >= FEW).and_then(|it| it.share_below(took));
    html! {
        tr.critical[bar.is_critical].failed[is_error(span)] {
            th scope="row" class={ "d" (level) } {
                span class={ "dot s" (colour) } aria-hidden="true" {}
                a href=(link::span(&span.trace_id, &span.span_id)) { (text::name(&span.name().to_string())) }
                " " span.of { (text::name(&span.service.name)) " " (table::side(span.kind)) }
                @if is_error(span) { " " span.bad.whole { "▲ " (text::name(span.error_type)) } }
                @if placed.is_cut { " " span.of { "parent not seen" } }
            }
            td.time { (drawn(bar, colour)) }
            td.n { "+" (text::duration(seconds(span.start.saturating_sub(start)))) }
            td.n { (text::duration(took)) }
            td.n {
                @if let Some(rank) = rank {
                    @if rank > UNUSUAL { b.warn { "▲ p" (place(rank)) } } @else { span.quiet { "p" (place(rank)) } }
                }
            }
        }
    }
}

/// A share as a percentile: 99.94 % is no 100th.
fn place(rank: f64) -> String {
    match (rank * 1_000.0).floor() / 10.0 {
        percent if percent < 99.0 => format!("{percent:.0}"),
        percent => format!("{:.1}", percent.min(99.9)),
    }
}

fn drawn(bar: &Bar, colour: usize) -> Markup {
    // What is too short for a pixel is drawn all the same.
    let rect = |class: &str, from: f64, width: f64, least: f64| {
        let width = width.max(least);
        let from = from.min(1_000.0 - width);
        html! { rect class=(class) x=(format!("{from:.1}")) width=(format!("{width:.1}")) y="2" height="10" {} }
    };
    html! {
        svg class={ "bar s" (colour) } viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true" {
            (rect("own", bar.whole.from, bar.whole.width, 3.0))
            @for it in &bar.below { (rect("below", it.from, it.width, 0.0)) }
            @if let Some(it) = bar.queue { (rect("queue", it.from, it.width, 0.0)) }
            @if bar.is_critical { rect.path x=(format!("{:.1}", bar.whole.from)) width=(format!("{:.1}", bar.whole.width)) y="12" height="2" {} }
        }
    }
}

/// Service, side, name: what spans are of one kind.
type Key = (u32, SpanKind, String);
type Ranks = HashMap<Key, Spread>;

fn key(span: &Span) -> Key {
    (span.service.id, span.kind, span.name().to_string())
}

/// How long all spans of these kinds took.
fn ranks(spans: &[Placed], red: &Snapshot) -> Ranks {
    let mut ranks: Ranks = spans.iter().map(|placed| (key(&placed.stored.span), Spread::default())).collect();
    for series in red.spans.iter().filter(|series| series.labels.timed && !series.labels.overflow) {
        let labels = &series.labels;
        if let Some(spread) = ranks.get_mut(&(labels.service.id, labels.kind, labels.name.to_string())) {
            spread.add(&series.counts.native);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span_with;
    use crate::red::{Limits, Registry};
    use crate::span_store::Stored;

    #[test]
    fn a_thousand_spans_are_counted_and_can_be_shown() {
        let spans = |n: u64| -> Vec<Stored> {
            let stored = |nth: u64| {
                let span = span_with(SpanKind::Server, |span| {
                    span.span_id = (nth + 1).to_be_bytes();
                    span.parent_span_id = (nth > 0).then_some(1_u64.to_be_bytes());
                    (span.start, span.end) = (nth, nth + 1_000_000);
                });
                Stored { sequence: nth, span: Box::new(span) }
            };
            (0..n).map(stored).collect()
        };
        let check = |n: u64, all: bool, rows: usize, words: &[&str]| {
            let red = Registry::new(Limits::default()).snapshot();
            let shown = page(&[1; 16], &tree(spans(n)), &red, all).body.into_string();
            assert_eq!(shown.matches("<tr").count(), rows + 1, "{n} spans, all: {all}");
            for word in words {
                assert!(shown.contains(word), "{word}: {shown}");
            }
        };
        check(1, false, 1, &["1 span of 1 service"]);
        check(1_000, false, SHOWN, &["1,000 spans of 1 service", "700 more", "?all=true"]);
        check(1_000, true, 1_000, &["1,000 spans of 1 service"]);
    }
}
