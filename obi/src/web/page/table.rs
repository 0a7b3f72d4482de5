//! Parts of tables that several pages have.
//!
//! In: numbers and names. Out: cells. Refuses to know which page it is.

use maud::{Markup, html};

use super::figures::{Example, Figures};
use super::parameter::{Order, Wanted};
use super::{link, text};
use crate::span::SpanKind;

/// A head that sorts.
pub(super) fn sorted(path: &str, wanted: &Wanted, order: Order, name: &str, class: &str) -> Markup {
    let is_current = wanted.order == order;
    let errors = if wanted.errors { "true" } else { "" };
    let range = wanted.range.given();
    let parameters = [("q", &*wanted.text), ("errors", errors), ("range", range), ("sort", order.word())];
    let address = link::with(path, &parameters);
    html! {
        th scope="col" class=(class) aria-sort=[is_current.then_some("descending")] { a href=(address) { (name) } }
    }
}

/// A service by its name, in its namespace, as a way to it.
pub(super) fn service(namespace: &str, name: &str) -> Markup {
    let shown = html! { (text::name(if name.is_empty() { "(no name)" } else { name })) };
    html! {
        @match link::service(namespace, name) {
            Some(address) => a href=(address) { (shown) },
            None => (shown),
        }
        @if !namespace.is_empty() { " " span.of { (text::name(namespace)) } }
    }
}

/// What a service does.
pub(super) fn side(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Server => "serves",
        SpanKind::Client => "calls",
        SpanKind::Internal => "within",
    }
}

/// Share of errors, marked by shape and by colour.
pub(super) fn errors(figures: &Figures) -> Markup {
    failed(figures.errors, figures.requests)
}

/// The same of any part.
pub(super) fn failed(errors: u64, requests: u64) -> Markup {
    let counted = format!("{} of {}", text::count(errors), text::count(requests));
    html! {
        @if errors == 0 { span.quiet { "0 %" } }
        @else { span.bad title=(counted) { "▲ " (text::share(errors, requests)) } }
    }
}

/// A number, and what it is called.
pub(super) fn tile(name: &str, value: &Markup) -> Markup {
    html! { div.tile { dt { (name) } dd { (value) } } }
}

/// A span, as a way to it.
pub(super) fn example(example: Option<&Example>, word: &str) -> Markup {
    html! {
        @if let Some(example) = example {
            a href=(link::span(&example.trace_id, &example.span_id)) title={ (text::duration(crate::red::seconds(example.duration))) } { (word) }
        }
    }
}
