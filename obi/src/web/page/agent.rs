//! `/agent`: how the agent itself is doing: what it watches and how, what it lost, what it costs, where it sends.
//!
//! In: its numbers about itself. Out: a page, with what helps beside what is wrong.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, MACHINE, Page};
use super::{blind, remedy, table, text};
use crate::export::Metrics;
use crate::red;
use crate::stats::{Lane, Process, Snapshot};
use crate::web::Command;

/// What the API has, and what for.
const API: [(&str, &str); 10] = [
    (
        "/metrics",
        "Rates, errors and durations for Prometheus, with exemplars in OpenMetrics and native histograms in protobuf",
    ),
    ("/api/v1/spans?limit=20", "Recent spans, newest first, by the filters of the page Spans"),
    ("/api/v1/traces", "Recent traces; one by /api/v1/traces/{trace_id}"),
    (
        "/api/v1/profiles?format=svg",
        "What CPUs did in the last minute, as a flame graph; format=json, pprof, otlp; choose with service route span trace pid from to slow; view=icicle, callers",
    ),
    ("/api/v1/service-graph", "Who calls whom"),
    ("/api/v1/slos", "Error budgets and burn rates"),
    ("/api/v1/alerts", "Alerts that fire, or did until lately"),
    ("/api/v1/cardinality", "Who spends the series budget, and what found no room"),
    ("/api/v1/status", "What the agent watches, and how: the file for a bug report"),
    ("/readyz", "Whether capture is attached; /healthz, whether the agent runs"),
];

pub(super) async fn serve(State(state): State<super::Web>) -> Result<Response, Failure> {
    let is_ready = state.ready.load(Ordering::Acquire);
    let make = move |mut metrics: Metrics| {
        metrics.process = Process::read().ok();
        page(&metrics, is_ready).into_response()
    };
    Ok(state.answer(Command::Metrics, make).await?)
}

pub(super) fn page(metrics: &Metrics, is_ready: bool) -> Page {
    let stats = &metrics.stats;
    let body = html! {
        h1 { "Agent on " (text::name(&MACHINE)) }
        div data-live="agent" {
            (tiles(metrics, is_ready))
            (losses(stats))
            (blind::section(stats))
            (hooks(stats))
            (memory(metrics))
            (exports(stats))
            (profiles(stats))
        }
        (api())
    };
    let json = Some("/api/v1/status".to_owned());
    Page { here: Here::Agent, title: "Agent".to_owned(), crumbs: Vec::new(), json, body }
}

fn lost(stats: &Snapshot) -> u64 {
    stats.lost.iter().map(|(_, counter)| counter.value).sum()
}

fn tiles(metrics: &Metrics, is_ready: bool) -> Markup {
    let (stats, red) = (&metrics.stats, &metrics.red);
    let seen: u64 = red.services.iter().map(|it| it.server_spans.value + it.client_spans.value).sum();
    let lost = lost(stats);
    html! {
        dl.tiles {
            (table::tile("Capture", &capture(stats, is_ready)))
            (table::tile("Processes", &html! { (text::count(stats.watched_processes)) " " span.of { "watched" } }))
            (table::tile("Seen", &html! { span data-is="seen" { (text::count(seen)) } " " span.of { "exchanges" } }))
            (table::tile("Lost", &if lost == 0 { html! { span data-is="lost" { "0" } } } else { html! { span.bad { "▲ " span data-is="lost" { (text::count(lost)) } } " " span.of { (text::share(lost, seen + lost)) } } }))
            (table::tile("Series", &html! { span data-is="series" { (text::count(red.series() as u64)) } " " span.of { "of " (text::count(red.usage.limit as u64)) } }))
            @if let Some(process) = &metrics.process {
                (table::tile("CPU time", &html! { (text::duration(process.cpu_seconds)) " " span.of { (cpu(process)) } }))
            }
        }
        @if stats.reloads.failing { p.bad { "▲ The configuration was refused when it was last read; the one before is in use." } }
    }
}

/// Nothing is to be captured: what others send is counted.
fn is_off(stats: &Snapshot) -> bool {
    stats.hook_sets.is_empty() && stats.sent_to_us.is_some()
}

fn capture(stats: &Snapshot, is_ready: bool) -> Markup {
    match is_ready {
        true if is_off(stats) => html! { "off" },
        true => html! { span.good { "● attached" } },
        false => html! { span.bad { "✖ not attached" } },
    }
}

/// Of one core, since the start.
fn cpu(process: &Process) -> String {
    let now = crate::clock::Clock::now().unix(crate::clock::monotonic_ns());
    let lasted = red::seconds(now) - process.start_time_seconds;
    if lasted <= 0.0 {
        String::new()
    } else {
        format!("{} of a core", text::percent(process.cpu_seconds / lasted))
    }
}

fn losses(stats: &Snapshot) -> Markup {
    let mut by_reason = BTreeMap::<(&str, &str), (u64, Vec<&str>)>::new();
    for (loss, counter) in stats.lost.iter().filter(|(_, counter)| counter.value > 0) {
        let entry = by_reason.entry((loss.stage.name(), loss.reason)).or_default();
        entry.0 += counter.value;
        if !loss.service_name.is_empty() && !entry.1.contains(&&*loss.service_name) {
            entry.1.push(&loss.service_name);
        }
    }
    html! {
        section aria-labelledby="losses" {
            h2 #losses { "Lost" }
            @if by_reason.is_empty() { p { "Nothing: every exchange that was sent has been seen, but for what is below." } }
            @else { div.wide tabindex="0" { table {
                caption.unseen { "Lost exchanges by stage and reason" }
                thead { tr { th scope="col" { "Stage" } th scope="col" { "Reason" } th.n scope="col" { "Exchanges" } th scope="col" { "Of" } th scope="col" { "What it is, and what helps" } } }
                tbody { @for ((stage, reason), (n, services)) in &by_reason {
                    tr {
                        td { (stage) }
                        th scope="row" { code { (reason) } }
                        td.n { (text::count(*n)) }
                        td { (text::name(&services.iter().take(3).copied().collect::<Vec<_>>().join(", "))) }
                        td.prose { (remedy::lost(reason)) }
                    }
                } }
            } } }
            @if stats.lost_process_events + stats.late_processes > 0 {
                p.quiet {
                    (text::count(stats.lost_process_events)) " beginnings and ends of processes were lost, "
                    (text::counted(stats.late_processes, "process was", "processes were")) " read late: what they did may have another name."
                }
            }
            @if !stats.unknown_parents.is_empty() {
                p.quiet {
                    "Spans without their parent: "
                    @for (nth, (reason, n)) in stats.unknown_parents.iter().enumerate() { @if nth > 0 { ", " } (text::count(n.value)) " " code { (reason) } }
                    ". A parent that is not certain is not given."
                }
            }
        }
    }
}

fn hooks(stats: &Snapshot) -> Markup {
    html! {
        section aria-labelledby="hooks" {
            h2 #hooks { "Hook set" }
            @if is_off(stats) { p.empty { "None: " code { "capture.enabled" } " is false, and requests are counted from the spans that are sent." } }
            @else if stats.hook_sets.is_empty() { p.empty { "Capture is not attached yet." } }
            @else { div.wide tabindex="0" { table {
                caption.unseen { "Hook sets, the cheapest first" }
                thead { tr { th scope="col" { "Set" } th scope="col" { "State" } th scope="col" { "Why" } } }
                tbody { @for it in &stats.hook_sets {
                    tr {
                        th scope="row" { (it.set) }
                        td { @if it.state == "used" { b.good { "● used" } } @else { (it.state) } }
                        td.prose { (if it.reason.is_empty() { "the cheapest that sees everything here" } else { &it.reason }) }
                    }
                } }
            } } }
            @if !stats.not_seen.is_empty() {
                p { "It does not see: " (stats.not_seen.join("; ")) "." }
            }
        }
    }
}

fn memory(metrics: &Metrics) -> Markup {
    let stats = &metrics.stats;
    let mut rows: Vec<(String, u64)> = Vec::new();
    if let Some(process) = &metrics.process {
        rows.push(("process, resident".to_owned(), process.resident_bytes));
    }
    rows.extend(stats.maps.iter().map(|map| (format!("kernel maps: {}", map.subsystem), map.bytes)));
    let inside = stats.profile.iter().flat_map(|profile| &profile.memory);
    let history = ("of the process, the last two hours of all services".to_owned(), stats.history_bytes);
    let evidence = stats.evidence.map(|it| ("of the process, traces of evidence".to_owned(), it.bytes));
    let inside = inside.map(|(what, bytes)| (format!("of the process, profiles: {what}"), *bytes));
    let inside: Vec<_> = inside.chain([history]).chain(evidence).collect();
    html! {
        section aria-labelledby="memory" {
            h2 #memory { "Memory" }
            div.wide tabindex="0" { table {
                caption.unseen { "Memory by subsystem" }
                thead { tr { th scope="col" { "What" } th.n scope="col" { "Bytes" } } }
                tbody {
                    @for (what, bytes) in rows.iter().chain(&inside) { tr { th scope="row" { (what) } td.n { (text::bytes(*bytes)) } } }
                    tr.total { th scope="row" { "process and kernel maps together" } td.n { (text::bytes(rows.iter().map(|(_, bytes)| bytes).sum())) } }
                }
            } }
            @if let Some(evidence) = stats.evidence.filter(|it| it.refused > 0) {
                p { span.bad { "▲ " (text::counted(evidence.refused, "span", "spans")) } " of traces that show where objectives burn found no room: " code { "slo.evidence_bytes" } "." }
            }
        }
    }
}

fn exports(stats: &Snapshot) -> Markup {
    html! {
        section aria-labelledby="exports" {
            h2 #exports { "Exports" }
            @if stats.lanes.is_empty() { p { "Nothing is sent anywhere; " a href="/metrics" { "/metrics" } " is there to be scraped. Destinations: " code { "export.otlp" } ", " code { "export.remote_write" } ", " code { "export.pyroscope" } "." } }
            @else { div.wide tabindex="0" { table {
                caption.unseen { "Destinations" }
                thead { tr {
                    th scope="col" { "Destination" } th scope="col" { "Signal" } th.n scope="col" { "Sent" } th.n scope="col" { "Lost" } th.n scope="col" { "Queued" } th.n scope="col" { "On disk" } th.n scope="col" { "Retries" } th scope="col" { "Why lost" }
                } }
                tbody { @for lane in &stats.lanes { (destination(lane)) } }
            } } }
        }
    }
}

fn destination(lane: &Lane) -> Markup {
    let lost: u64 = lane.lost.iter().map(|(_, n)| n).sum();
    html! {
        tr {
            th scope="row" { (text::name(&lane.destination)) }
            td { (lane.signal) }
            td.n { (text::count(lane.sent)) }
            td.n { @if lost > 0 { span.bad { "▲ " (text::count(lost)) } } @else { "0" } }
            td.n { (text::count(lane.queued_items)) " " span.of { (text::bytes(lane.queued_bytes + lane.attempt_bytes)) } }
            td.n { @if let Some(spooled) = lane.spooled { (text::count(spooled.items)) " " span.of { (text::bytes(spooled.bytes)) } } @else { "–" } }
            td.n { (text::count(lane.retries)) }
            td.prose { @for (reason, n) in lane.lost.iter().filter(|(_, n)| *n > 0) { (text::count(*n)) " " code { (reason) } ": " (remedy::export(reason)) ". " } }
        }
    }
}

fn profiles(stats: &Snapshot) -> Markup {
    html! {
        section aria-labelledby="profiles" {
            h2 #profiles { "Profiles" }
            @match &stats.profile {
                None => p { "No stacks are sampled: " code { "profile.enabled" } " is false, or this kernel does not allow it; " code { "obi doctor" } " says which." },
                Some(profile) => {
                    p {
                        "Every CPU is looked at " (profile.frequency) " times a second; "
                        (text::counted(profile.samples, "sample", "samples")) " so far, " (text::count(profile.held)) " held. "
                        a href=(super::profile::PAGE) { "Flame graph of the last minute, whole machine" }
                    }
                    (counts("Lost", &profile.lost)) (cut_short(&profile.truncated)) (counts("Links to spans", &profile.links))
                },
            }
        }
    }
}

fn counts(what: &str, counts: &[(&'static str, u64)]) -> Markup {
    let some: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).collect();
    html! {
        @if !some.is_empty() {
            p.quiet { (what) ": " @for (nth, (word, n)) in some.iter().enumerate() { @if nth > 0 { ", " } (text::count(*n)) " " code { (word) } } "." }
        }
    }
}

/// Stacks whose outermost frames are not known, and what helps.
fn cut_short(counts: &[(&'static str, u64)]) -> Markup {
    let some: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).collect();
    html! {
        @if !some.is_empty() {
            p.quiet { "Stacks cut short:" }
            ul.plain.quiet { @for (reason, n) in some {
                li { (text::count(*n)) " " code { (reason) } ": " (remedy::truncated(reason)) "." }
            } }
        }
    }
}

fn api() -> Markup {
    html! {
        section aria-labelledby="api" {
            h2 #api { "API" }
            dl.pairs { @for (address, what) in API { div { dt { a href=(address) { code { (address) } } } dd { (what) "." } } } }
        }
    }
}
