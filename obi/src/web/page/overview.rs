//! `/`: what is burning on this machine, and what is not seen of it.
//!
//! In: a snapshot of the counts, the objectives. Out: a page. Refuses to count.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::figures::{self, Row};
use super::frame::{Here, MACHINE, Page};
use super::parameter::{self, Order, Range, Wanted};
use super::state::{State as Slo, sorted};
use super::{blind, lately, link, table, text};
use crate::export::Metrics;
use crate::objective::view::{AlertView, View};
use crate::red::{Past, ServiceTotals};
use crate::span::SpanKind;
use crate::web::Command;

/// Rows that are shown at once; the others by the filter.
const SHOWN: usize = 300;

pub(super) async fn serve(
    State(state): State<super::Web>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(pairs) = pairs?;
    let wanted = parameter::parse(pairs)?;
    let objectives = state.objectives.clone();
    let past: Past = state.handle.ask(Command::Past).await?;
    let make = move |metrics: Metrics| {
        let view = objectives.view().unwrap_or_default();
        page(&metrics, &past, &view, &wanted).into_response()
    };
    Ok(state.answer(Command::Metrics, make).await?)
}

pub(super) fn page(metrics: &Metrics, past: &Past, view: &View, wanted: &Wanted) -> Page {
    let mut rows = figures::rows(&metrics.red);
    lately::apply(&mut rows, past, wanted.range);
    let states = states(view);
    let state = |row: &Row| match row.kind {
        SpanKind::Server => states.get(&*row.service.name).copied(),
        SpanKind::Client | SpanKind::Internal => None,
    };
    rows.sort_by_key(|row| order(row, state(row), wanted.order));
    let all = rows.len();
    rows.retain(|row| wanted.takes(&row.service.name, &row.service.namespace, row.figures.errors > 0));
    let body = html! {
        h1.unseen { "Services on " (*MACHINE) }
        div data-live="state" { (firing(view)) (sum(metrics)) }
        (controls(wanted))
        div data-live="services" {
            @if all == 0 { (empty(metrics.stats.watched_processes)) }
            @else if rows.is_empty() { p.empty { "No service fits. " a href="/" { "Show all " (all) } } }
            @else { (services(&rows, &state, wanted)) }
        }
        div data-live="blind" { (blind::section(&metrics.stats)) }
    };
    Page {
        here: Here::Services,
        title: format!("Services on {}", *MACHINE),
        crumbs: Vec::new(),
        json: Some("/api/v1/status".to_owned()),
        body,
    }
}

/// The worst objective of each service.
fn states(view: &View) -> BTreeMap<&str, Slo> {
    let mut states = BTreeMap::new();
    for (state, objective) in sorted(view) {
        states.entry(&*objective.service).or_insert(state);
    }
    states
}

/// Smaller is earlier.
fn order(row: &Row, state: Option<Slo>, by: Order) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let figures = &row.figures;
    let nano = |seconds: f64| Reverse((seconds * 1e9) as u64);
    let burns = match state {
        Some(Slo::Burning) => 0,
        Some(Slo::Spent) => 1,
        Some(Slo::Increasing) => 2,
        _ => 3,
    };
    let name = format!("{} {}", row.service.name, row.service.namespace);
    match by {
        Order::Worst => (burns, nano(figures.error_ratio()), Reverse(figures.requests), name),
        Order::Name => (0, Reverse(0), Reverse(0), name),
        Order::Requests => (0, Reverse(figures.requests), Reverse(0), name),
        Order::Errors => (0, nano(figures.error_ratio()), Reverse(figures.errors), name),
        Order::Queue => (0, nano(row.queue_wait.unwrap_or(0.0)), Reverse(0), name),
        Order::Cpu => (0, nano(row.cpu.unwrap_or(0.0)), Reverse(0), name),
        Order::Median | Order::Slow | Order::Slowest => {
            let duration = by.ratio().and_then(|ratio| figures.spread.quantile(ratio));
            (0, nano(duration.unwrap_or(0.0)), Reverse(0), name)
        }
    }
}

/// Alerts that fire. A ticket says nothing new where its objective pages.
fn firing(view: &View) -> Markup {
    let all: Vec<_> = view.alerts.iter().filter(|alert| alert.state == "firing").collect();
    let is_page = |alert: &AlertView| alert.labels.get("severity").is_some_and(|severity| severity == "page");
    let is_new = |alert: &AlertView| {
        let pages =
            all.iter().any(|other| is_page(other) && other.labels.get("slo") == alert.labels.get("slo"));
        is_page(alert) || !pages
    };
    let firing: Vec<_> = all.iter().copied().filter(|alert| is_new(alert)).collect();
    html! {
        @if !firing.is_empty() {
            section.alarm aria-label="Alerts" aria-live="polite" {
                @for alert in firing { (super::slos::alert(alert)) }
            }
        }
    }
}

fn sum(metrics: &Metrics) -> Markup {
    let spans = |totals: &ServiceTotals| totals.server_spans.value + totals.client_spans.value;
    let seen: u64 = metrics.red.services.iter().map(spans).sum();
    let lost: u64 = metrics.stats.lost.iter().map(|(_, counter)| counter.value).sum();
    let since = metrics.red.services.iter().map(|totals| totals.created).min();
    let hook_set = metrics.stats.hook_set;
    html! {
        p.sum {
            b { (text::count(seen)) } " exchanges seen, "
            @if lost == 0 { "none lost" }
            @else { a.bad href="/agent#losses" { "▲ " (text::count(lost)) " lost (" (text::share(lost, seen + lost)) ")" } }
            @if let Some(since) = since { ", since " (text::moment(since)) }
            ". "
            (text::counted(metrics.stats.watched_processes, "process", "processes")) " watched"
            @if !hook_set.is_empty() { " by " a href="/agent#hooks" { (hook_set) } }
            "."
        }
    }
}

fn controls(wanted: &Wanted) -> Markup {
    let errors = if wanted.errors { "true" } else { "" };
    let at = |range: Range| {
        let parameters = [
            ("q", &*wanted.text),
            ("errors", errors),
            ("sort", wanted.order.word()),
            ("range", range.given()),
        ];
        link::with("/", &parameters)
    };
    html! {
        form.controls method="get" action="/" role="search" {
            label.unseen for="filter" { "Filter" }
            input #filter type="search" name="q" value=(wanted.text) placeholder="Filter services  ( / )" autocomplete="off" data-filter="rows";
            label { input type="checkbox" name="errors" value="true" checked[wanted.errors]; " only with errors" }
            @if wanted.order != Order::Worst { input type="hidden" name="sort" value=(wanted.order.word()); }
            @if wanted.range != Range::default() { input type="hidden" name="range" value=(wanted.range.word()); }
            button { "Show" }
            (lately::ranges(wanted.range, at))
        }
    }
}

fn empty(watched: u64) -> Markup {
    html! {
        div.empty {
            p { b { "Nothing was served or called yet." } }
            p {
                (text::counted(watched, "process is", "processes are")) " watched. Send one of them a request, or try "
                code { "obi demo" } ", which brings a small shop with traffic of its own."
            }
        }
    }
}

fn services(rows: &[Row], state: &dyn Fn(&Row) -> Option<Slo>, wanted: &Wanted) -> Markup {
    let errors = if wanted.errors { "true" } else { "" };
    let head = |order: Order, name: &str, class: &str| {
        let range = wanted.range.given();
        let parameters = [("q", &*wanted.text), ("errors", errors), ("range", range), ("sort", order.word())];
        table::sorted(
            &link::with("/", &parameters),
            (wanted.order == order).then_some(order.direction()),
            name,
            class,
        )
    };
    let has_slos = rows.iter().any(|row| state(row).is_some());
    html! {
        div.wide tabindex="0" {
            table.rows #rows {
                caption.unseen { "Services, each as a server and as a client" }
                thead { tr {
                    (head(Order::Name, "Service", "")) th scope="col" { "Side" }
                    (head(Order::Requests, "Requests", "n")) (head(Order::Errors, "Errors", "n"))
                    (head(Order::Median, "p50", "n")) (head(Order::Slow, "p95", "n")) (head(Order::Slowest, "p99", "n"))
                    (head(Order::Queue, "Queue p95", "n")) (head(Order::Cpu, "CPU", "n"))
                    @if has_slos { th scope="col" { "Objectives" } }
                } }
                tbody { @for row in rows.iter().take(SHOWN) { (service(row, has_slos.then(|| state(row)))) } }
            }
        }
        p.quiet { "Queue: between a request’s arrival and the moment that the program read it. CPU: of a request. p50, p95, p99: half, 95 % and 99 % took no longer; " (if rows.iter().any(|row| row.lately.is_some()) { "≈, at most 19 % off. ▲ is more than twice what it was an hour before." } else { "at most 5 % off." }) }
        @if rows.len() > SHOWN {
            p { (rows.len() - SHOWN) " more: filter by name." }
        }
    }
}

fn service(row: &Row, slo: Option<Option<Slo>>) -> Markup {
    let figures = &row.figures;
    let quantile = |ratio| lately::quantile(row, ratio);
    html! {
        tr {
            th scope="row" { (table::service(&row.service.namespace, &row.service.name)) }
            td.kind { (table::side(row.kind)) }
            td.n { (lately::requests(row)) }
            td.n { (table::errors(figures)) }
            td.n { (quantile(0.5)) }
            td.n { (quantile(0.95)) }
            td.n { (quantile(0.99)) }
            td.n { (text::maybe_duration(row.queue_wait)) }
            td.n { (text::maybe_duration(row.cpu)) }
            @if let Some(state) = slo {
                td { @if let Some(state) = state { a href=(link::with("/slos", &[("service", &row.service.name)])) { (state.badge()) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_shown_where_its_objective_does_not_page() {
        let check = |alerts: &[(&str, &str, &str)], expected: &[&str]| {
            let alert = |(slo, severity, state): &(&str, &str, &str)| AlertView {
                state: (*state).to_owned(),
                labels: [("slo", *slo), ("severity", *severity)]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                annotations: [("summary".to_owned(), format!("<{slo} {severity}>"))].into(),
                starts_at: "2026-11-24T22:00:00Z".to_owned(),
                resolved_at: None,
            };
            let view = View { alerts: alerts.iter().map(alert).collect(), ..View::default() };
            let page = firing(&view).into_string();
            assert_eq!(page.matches("class=\"alert").count(), expected.len(), "{alerts:?}: {page}");
            for shown in expected {
                assert!(page.contains(&format!("&lt;{shown}&gt;")), "{shown}: {page}");
            }
        };
        let (firing, resolved) = ("firing", "resolved");
        check(&[("a", "page", firing), ("a", "ticket", firing)], &["a page"]);
        check(&[("a", "page", firing), ("b", "ticket", firing)], &["a page", "b ticket"]);
        check(&[("a", "page", resolved), ("a", "ticket", firing)], &["a ticket"]);
        check(&[("a", "info", firing), ("a", "page", resolved)], &["a info"]);
        check(&[("a", "page", resolved)], &[]);
    }
}
