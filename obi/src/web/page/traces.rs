//! Lists of traces, on several pages.

use maud::{Markup, html};

use super::{link, table, text};
use crate::red::seconds;
use crate::span_store::Trace;

/// Services of a trace that are named.
const NAMED: usize = 4;

/// A table of traces.
pub(super) fn list(traces: &[Trace], caption: &str) -> Markup {
    html! {
        div.wide tabindex="0" { table.rows {
            caption.unseen { (caption) }
            thead { tr {
                th scope="col" { "Began with" } th scope="col" { "At" } th.n scope="col" { "Took" }
                th.n scope="col" { "Spans" } th.n scope="col" { "Failed" } th scope="col" { "Services" }
            } }
            tbody { @for trace in traces { (row(trace)) } }
        } }
    }
}

fn row(trace: &Trace) -> Markup {
    let more = trace.services.len().saturating_sub(NAMED);
    html! {
        tr {
            th scope="row" { a href=(link::trace(&trace.trace_id)) { (text::name(&trace.first.name)) } }
            td { (text::moment(trace.start)) }
            td.n { (text::duration(seconds(trace.end.saturating_sub(trace.start)))) }
            td.n { (trace.spans) }
            td.n { @if trace.errors > 0 { span.bad { "▲ " (trace.errors) } } @else { span.quiet { "0" } } }
            td {
                @for (nth, service) in trace.services.iter().take(NAMED).enumerate() {
                    @if nth > 0 { ", " }
                    (table::service(&service.namespace, &service.name))
                }
                @if more > 0 { " and " (more) " more" }
            }
        }
    }
}
