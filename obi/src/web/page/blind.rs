//! What the agent sees and cannot read, in the place where people look for what is missing.
//!
//! In: the agent's numbers about itself. Out: a section, or nothing. Refuses to know how it is found out.

use maud::{Markup, html};

use super::{remedy, text};
use crate::stats::Snapshot;

/// Processes that are listed.
const LISTED: usize = 20;

/// Connections without cover, by reason, less those that were read later.
pub(super) fn uncovered(stats: &Snapshot) -> Vec<(&'static str, u64)> {
    let late =
        |reason: &str| stats.read_late.iter().find(|(held, _)| *held == reason).map_or(0, |(_, n)| n.value);
    let left = stats.uncovered.iter().map(|(reason, n)| (*reason, n.value.saturating_sub(late(reason))));
    left.filter(|(_, n)| *n > 0).collect()
}

/// Nothing where everything is read.
pub(super) fn section(stats: &Snapshot) -> Markup {
    let uncovered = uncovered(stats);
    let processes = stats.tls.as_deref().map_or(&[][..], |tls| &tls.uncovered);
    if uncovered.is_empty() && processes.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="blind" {
            h2 #blind { "Not seen" }
            ul.plain {
                @for (reason, n) in &uncovered {
                    li { b { (text::counted(*n, "connection", "connections")) } " not read (" code { (reason) } "). " (remedy::uncovered(reason)) }
                }
            }
            @if !processes.is_empty() {
                div.wide tabindex="0" { table {
                    caption.unseen { "Processes whose TLS is not read" }
                    thead { tr { th scope="col" { "Process" } th scope="col" { "TLS library" } th scope="col" { "Why" } th.n scope="col" { "Connections" } } }
                    tbody { @for process in processes.iter().take(LISTED) {
                        tr {
                            td { (text::name(&process.executable)) " " span.of { "pid " (process.pid) } }
                            td { @if process.library.is_empty() { (text::NONE) } @else { (text::name(&process.library)) } }
                            td { (text::name_to(&process.reason, 200)) }
                            td.n { (text::count(process.connections)) }
                        }
                    } }
                } }
                @if processes.len() > LISTED { p { (processes.len() - LISTED) " more: " a href="/api/v1/status" { "/api/v1/status" } } }
            }
        }
    }
}
