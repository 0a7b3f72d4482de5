//! Parts of tables that several pages have.
//!
//! In: numbers and names. Out: cells. Refuses to know which page it is.

use maud::{Markup, html};

use super::figures::{Example, Figures};
use super::{link, text};
use crate::span::SpanKind;

/// A head that sorts, by the link to the same page in that order; the direction where it is the order at hand.
pub(super) fn sorted(address: &str, direction: Option<&str>, name: &str, class: &str) -> Markup {
    html! {
        th scope="col" class=(class) aria-sort=[direction] { a href=(address) { (name) } }
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

/// Share of errors, marked by shape and by colour, and their number.
pub(super) fn errors(figures: &Figures) -> Markup {
    share(figures.errors, figures.requests, "errors")
}

/// The same of calls between two services.
pub(super) fn failed(calls: u64, all: u64) -> Markup {
    share(calls, all, "failed-calls")
}

fn share(errors: u64, requests: u64, is: &str) -> Markup {
    let counted = format!("{} of {}", text::count(errors), text::count(requests));
    html! {
        @if errors == 0 { span.quiet { "0 %" } }
        @else { span.bad title=(counted) { "▲ " (text::share(errors, requests)) } " " span.of data-is=(is) { (text::count(errors)) } }
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
