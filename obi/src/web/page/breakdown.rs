//! Where the time of a served request went: a bar of its parts, and the same numbers as a table.
//!
//! In: a span. Out: a section of its page; nothing for spans of which no parts are known. Refuses to guess: what no
//! thread answers for is shown as not known, with the reason.

use maud::{Markup, html};

use super::text;
use crate::protocol::WAIT_REASON_NAMES;
use crate::red::seconds;
use crate::span::{Span, SpanKind, Spent};

/// What a thread waited for, in the order of [`WAIT_REASON_NAMES`].
const WAITED_FOR: [&str; WAIT_REASON_NAMES.len()] = [
    "waited for something else",
    "waited for a lock",
    "waited for the interpreter's lock",
    "waited for another thread",
    "waited for the network",
    "waited for any of several descriptors",
    "waited for the disk",
    "waited for a file or a pipe",
    "waited for a page of memory",
    "slept",
    "waited for another process",
];
/// Colours of parts that have none of their own; then they begin again. The words stand beside them.
const COLOURS: [&str; 6] = ["s0", "s3", "s4", "s5", "s6", "s7"];

/// A part of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    what: &'static str,
    /// Nanoseconds.
    time: u64,
    colour: &'static str,
}

/// Nothing where the span has no parts.
pub(super) fn section(span: &Span) -> Markup {
    let Some(spent) = span.spent.as_deref().filter(|_| span.kind == SpanKind::Server) else {
        return html! {};
    };
    let parts = parts(span.queue_wait, spent);
    let whole = parts.iter().map(|part| part.time).sum();
    html! {
        section aria-labelledby="time" {
            h2 #time { "Where its time went" }
            @if whole > 0 { (bar(&parts, whole)) }
            table.parts {
                caption.unseen { "Parts of its time" }
                thead { tr { th scope="col" { "Part" } th.n scope="col" { "Time" } th.n scope="col" { "Share" } } }
                tbody { @for part in &parts {
                    tr {
                        th scope="row" { span class={ "dot " (part.colour) } aria-hidden="true" {} (part.what) }
                        td.n data-part=(part.time) { (text::duration(seconds(part.time))) }
                        td.n { (text::share(part.time, whole)) }
                    }
                } }
            }
            @if spent.times.is_none() {
                p.quiet {
                    "What its threads did is not known, mostly because no one thread has served it from its first byte to its last. "
                    "Event loops, Go, HTTP/2 and workers that hand requests on are like that; what was sampled on CPUs meanwhile is below. "
                    @if spent.downstream > 0 { "While its calls were open it has mostly waited for them, but may have run as well." }
                }
            }
        }
    }
}

/// Parts that are not nothing, in the order of a request's life; together they are the span.
fn parts(queue_wait: u64, spent: &Spent) -> Vec<Part> {
    let mut parts = vec![Part { what: "waited to be read", time: queue_wait, colour: "waits" }];
    if let Some(times) = &spent.times {
        parts.push(Part { what: "ran on a CPU", time: times.cpu, colour: "s2" });
        parts.push(Part { what: "waited for a CPU", time: times.runqueue, colour: "s1" });
        let blocked = WAITED_FOR.into_iter().zip(times.blocked).filter(|(_, time)| *time > 0);
        let coloured = blocked.zip(COLOURS.into_iter().cycle()).map(|((what, time), colour)| Part {
            what,
            time,
            colour,
        });
        parts.extend(coloured);
    }
    parts.push(Part { what: "its calls were open", time: spent.downstream, colour: "s4" });
    parts.push(Part { what: "not known", time: spent.elsewhere, colour: "unknown" });
    parts.retain(|part| part.time > 0);
    parts
}

fn bar(parts: &[Part], whole: u64) -> Markup {
    let place = |time: u64| time as f64 * 1_000.0 / whole as f64;
    let mut before = 0;
    let placed = parts.iter().map(|part| {
        let from = before;
        before += part.time;
        (part, place(from), place(part.time))
    });
    html! {
        svg.bar viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true" {
            @for (part, from, width) in placed {
                rect class={ "part " (part.colour) } x=(format!("{from:.1}")) width=(format!("{width:.1}")) y="0" height="14" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Times;
    use crate::red::tests::span_with;

    fn times(cpu: u64, runqueue: u64, network: u64, sleep: u64) -> Times {
        let mut blocked = [0; WAIT_REASON_NAMES.len()];
        (blocked[4], blocked[9]) = (network, sleep);
        Times { cpu, runqueue, blocked, switches: 1 }
    }

    #[test]
    fn parts_are_in_the_order_of_a_requests_life_and_are_the_whole() {
        let check = |queue_wait: u64, times: Option<Times>, elsewhere: u64, expected: &[(&str, u64)]| {
            let parts = parts(queue_wait, &Spent { times, downstream: 0, elsewhere });
            let shown: Vec<_> = parts.iter().map(|part| (part.what, part.time)).collect();
            assert_eq!(shown, expected);
            let whole = queue_wait + times.map_or(0, |times| times.sum()) + elsewhere;
            assert_eq!(parts.iter().map(|part| part.time).sum::<u64>(), whole);
        };
        check(0, None, 0, &[]);
        check(5, None, 95, &[("waited to be read", 5), ("not known", 95)]);
        let waited = [
            ("waited to be read", 5),
            ("ran on a CPU", 10),
            ("waited for a CPU", 20),
            ("waited for the network", 30),
            ("slept", 35),
        ];
        check(5, Some(times(10, 20, 30, 35)), 0, &waited);
        check(0, Some(times(10, 0, 0, 0)), 7, &[("ran on a CPU", 10), ("not known", 7)]);
        let parts = parts(5, &Spent { times: None, downstream: 60, elsewhere: 35 });
        let shown: Vec<_> = parts.iter().map(|part| (part.what, part.time)).collect();
        assert_eq!(shown, [("waited to be read", 5), ("its calls were open", 60), ("not known", 35)]);
    }

    #[test]
    fn only_servers_have_parts_and_what_is_not_known_has_a_reason() {
        let shown = |kind, spent: Option<Spent>| {
            let span = span_with(kind, |span| {
                (span.queue_wait, span.spent) = (250_000, spent.map(Box::new));
            });
            section(&span).into_string()
        };
        let known = Some(Spent { times: Some(times(500_000, 0, 250_000, 0)), downstream: 0, elsewhere: 0 });
        let page = shown(SpanKind::Server, known);
        for words in ["ran on a CPU", "data-part=\"500000\"", "50.0 %", "x=\"250.0\" width=\"500.0\""] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("not known"), "{page}");
        let page = shown(SpanKind::Server, Some(Spent { times: None, downstream: 0, elsewhere: 750_000 }));
        for words in ["What its threads did is not known", "data-part=\"750000\"", "75.0 %"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert_eq!(shown(SpanKind::Server, None), "");
        assert_eq!(shown(SpanKind::Client, known), "");
    }
}
