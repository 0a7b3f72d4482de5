//! `/slos` and `/slos/{name}`: what was promised, what is left of it, and what shows where it burns.
//!
//! In: a view of the objectives. Out: pages. Refuses to compute a burn rate.

use std::cmp::Reverse;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, Page};
use super::state::{State as Slo, sorted};
use super::{burn_down, link, table, text, trace};
use crate::cause::context::parse_id;
use crate::objective::view::{AlertView, BurnRateView, ObjectiveView, View};
use crate::span_store::{Page as Found, Stored};
use crate::web::objectives::view;
use crate::web::{Command, Error};

const UNKNOWN: &str = "unknown parameter, expected service or sort";

/// What comes first in a table of objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    State,
    Name,
    /// Bad events.
    Bad,
    /// The least budget left.
    Budget,
}

impl By {
    /// In an address; nothing for the usual one.
    fn word(self) -> &'static str {
        match self {
            Self::State => "",
            Self::Name => "name",
            Self::Bad => "bad",
            Self::Budget => "budget",
        }
    }

    /// For `aria-sort`.
    fn direction(self) -> &'static str {
        if self == Self::Bad { "descending" } else { "ascending" }
    }

    fn of(word: &str) -> Result<Self, &'static str> {
        let mut all = [Self::State, Self::Name, Self::Bad, Self::Budget].into_iter();
        all.find(|by| by.word() == word).ok_or("expected name, bad or budget")
    }

    fn sort(self, objectives: &mut [(Slo, &ObjectiveView)]) {
        match self {
            Self::State => {}
            Self::Name => objectives.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name)),
            Self::Bad => objectives.sort_by_key(|(_, it)| Reverse(it.bad)),
            Self::Budget => {
                let left = |it: &ObjectiveView| it.error_budget_remaining_ratio;
                objectives.sort_by(|(_, a), (_, b)| left(a).total_cmp(&left(b)));
            }
        }
    }
}

/// Parameters: `service`, `sort`.
pub(super) async fn serve(
    State(state): State<super::Web>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(pairs) = pairs?;
    let (mut service, mut by) = (None, By::State);
    for (parameter, value) in pairs {
        let result = match parameter.as_str() {
            "service" => {
                service = Some(value.clone()).filter(|value| !value.is_empty());
                Ok(())
            }
            "sort" => By::of(&value).map(|given| by = given),
            _ => Err(UNKNOWN),
        };
        result.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    Ok(page(&view(state).await?, service.as_deref(), by).into_response())
}

pub(super) async fn one(
    State(state): State<super::Web>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let Path(segment) = path?;
    let name = link::name_of(&segment);
    let view = view(state.clone()).await?;
    let ids = view.objectives.iter().find(|it| it.name == name).map_or(&[][..], |it| &it.evidence.trace_ids);
    let mut spans = Vec::new();
    for trace_id in ids.iter().filter_map(|id| parse_id(id)) {
        let found: Found = state.handle.ask(|reply| Command::Spans(trace::query(trace_id), reply)).await?;
        spans.extend(found.spans);
    }
    let page = detail(&view, &spans, name).ok_or_else(|| Failure::NoSlo(name.to_owned()))?;
    Ok(page.into_response())
}

fn page(view: &View, service: Option<&str>, by: By) -> Page {
    let mut objectives = sorted(view);
    objectives.retain(|(_, objective)| service.is_none_or(|service| objective.service == service));
    by.sort(&mut objectives);
    let head = |order: By, name: &str, class: &str| {
        let parameters = [("service", service.unwrap_or_default()), ("sort", order.word())];
        table::sorted(
            &link::with("/slos", &parameters),
            (by == order).then_some(order.direction()),
            name,
            class,
        )
    };
    let body = html! {
        h1 { "Objectives" @if let Some(service) = service { " of " (text::name(service)) } }
        div data-live="alerts" {
            @if !view.alerts.is_empty() {
                section.alarm aria-label="Alerts" aria-live="polite" { @for it in &view.alerts { (alert(it)) } }
            }
        }
        div data-live="slos" {
            @if !objectives.is_empty() { (rows(&objectives, &head)) }
            @else if view.objectives.is_empty() {
                div.empty {
                    p { b { "No objective is watched." } }
                    p { "Write one in OpenSLO, name its file in " code { "slo.files" } ". To begin with, each service’s page suggests one from what was measured." }
                    p { a href="/" { "Services" } }
                }
            } @else { p.empty { "None. " a href="/slos" { "All objectives" } } }
        }
        p.quiet { "Counted by this agent alone: requests that this machine served or sent." }
    };
    let json = Some("/api/v1/slos".to_owned());
    Page { here: Here::Slos, title: "Objectives".to_owned(), crumbs: Vec::new(), json, body }
}

/// A table of objectives, the worst first.
pub(super) fn list(objectives: &[(Slo, &ObjectiveView)]) -> Markup {
    rows(
        objectives,
        &|_, name, class| html! { th scope="col" class=[(!class.is_empty()).then_some(class)] { (name) } },
    )
}

fn rows(objectives: &[(Slo, &ObjectiveView)], head: &dyn Fn(By, &str, &str) -> Markup) -> Markup {
    html! {
        div.wide tabindex="0" { table.rows {
            caption.unseen { "Objectives" }
            thead { tr {
                (head(By::State, "State", "")) (head(By::Name, "Objective", "")) th scope="col" { "Service" }
                th.n scope="col" { "Target" } th.n scope="col" { "Kept" } (head(By::Budget, "Budget left", "")) (head(By::Bad, "Bad", "n")) th.n scope="col" { "Lasts" }
            } }
            tbody { @for (state, objective) in objectives { (row(*state, objective)) } }
        } }
    }
}

fn row(state: Slo, objective: &ObjectiveView) -> Markup {
    html! {
        tr {
            td { (state.badge()) }
            th scope="row" { (named(&objective.name)) }
            td { (text::name(&objective.service)) }
            td.n { (text::target(objective.target)) " " span.of { "in " (objective.window.duration) } }
            td.n { (objective.ratio.map_or_else(|| text::NONE.to_owned(), text::percent)) }
            td { (budget(objective)) }
            td.n { (text::count(objective.bad)) " " span.of { "of " (text::count(objective.good + objective.bad)) } }
            td.n { (lasts(objective)) }
        }
    }
}

fn named(name: &str) -> Markup {
    html! {
        @match link::slo(name) {
            Some(address) => a href=(address) { (text::name(name)) },
            None => (text::name(name)),
        }
    }
}

/// As a bar and as a number.
fn budget(objective: &ObjectiveView) -> Markup {
    let left = objective.error_budget_remaining_ratio;
    let shown = left.clamp(0.0, 1.0) * 100.0;
    html! {
        svg.meter viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.rest width="100" height="8" {}
            rect.left width=(format!("{shown:.1}")) height="8" {}
        }
        span.n { @if left < 0.0 { "spent " (text::significant(1.0 - left)) " times" } @else { (text::percent(left)) } }
    }
}

/// How long the budget lasts at the pace of the last hour.
fn lasts(objective: &ObjectiveView) -> String {
    match objective.exhausted_in_seconds {
        Some(0.0) => "gone".to_owned(),
        Some(seconds) => text::duration(seconds),
        None => text::NONE.to_owned(),
    }
}

/// The way to more spans like those that were bad: they need not have failed, they may have been slow.
fn more(objective: &ObjectiveView) -> Markup {
    let service = ("service", &*objective.service);
    // Method and route.
    let route = objective.evidence.worst_route.split_once(' ').map_or("", |(_, route)| route);
    html! {
        @if route.is_empty() {
            a href=(link::with("/spans", &[service, ("error", "true")])) { "All failed spans of this service" }
        } @else {
            a href=(link::with("/spans", &[service, ("route", route)])) { "All spans of " (text::name(route)) }
        }
        "."
    }
}

/// An alert, with the way to its objective.
pub(super) fn alert(alert: &AlertView) -> Markup {
    let label = |name: &str| alert.labels.get(name).map_or("", String::as_str);
    let is_firing = alert.state == "firing";
    let summary = alert.annotations.get("summary").map_or_else(|| label("slo"), String::as_str);
    html! {
        p.alert.over[!is_firing] {
            @if is_firing { span.badge.bad { span aria-hidden="true" { "✖" } " " (label("severity")) } }
            @else { span.badge.quiet { "over" } }
            " "
            @match link::slo(label("slo")) {
                Some(address) => a href=(address) { (text::name_to(summary, 300)) },
                None => (text::name_to(summary, 300)),
            }
            " " span.of {
                "since " (text::moment_of(&alert.starts_at))
                @if let Some(ended) = &alert.resolved_at { ", ended " (text::moment_of(ended)) }
            }
        }
    }
}

/// `None` when there is no such objective. The spans are those of the traces that show where it burns.
pub(super) fn detail(view: &View, spans: &[Stored], name: &str) -> Option<Page> {
    let objective = view.objectives.iter().find(|objective| objective.name == name)?;
    let alerts: Vec<_> =
        view.alerts.iter().filter(|alert| alert.labels.get("slo").is_some_and(|slo| slo == name)).collect();
    let title = if objective.display_name.is_empty() { name } else { &objective.display_name };
    let evidence = &objective.evidence;
    let body = html! {
        h1 { (text::name(title)) }
        @if !objective.description.is_empty() { p { (text::name_to(&objective.description, 1_000)) } }
        div data-live="alerts" {
            @if !alerts.is_empty() { section.alarm aria-label="Alerts" aria-live="polite" { @for it in alerts { (alert(it)) } } }
        }
        div data-live="state" {
            (tiles(objective))
            section aria-labelledby="evidence" {
                h2 #evidence { "Where it burns" }
                @if evidence.trace_ids.is_empty() { p.empty { "No bad event was seen since this agent started." } }
                @else {
                    p { "Most bad events of late: " b { (text::name_to(&evidence.worst_route, 200)) } ". Traces of some:" }
                    ul.ways { @for id in &evidence.trace_ids { li { (proof(id, spans, &objective.service)) } } }
                    p {
                        (more(objective)) " "
                        span.quiet { "Those above stay, with all their spans and flame graphs, while an alert fires and 15 minutes longer." }
                    }
                }
            }
            (burn_down::section(objective))
            (windows(objective))
            (period(objective))
        }
    };
    Some(Page {
        here: Here::Slos,
        title: title.to_owned(),
        crumbs: vec![
            ("Objectives".to_owned(), Some("/slos".to_owned())),
            (objective.service.clone(), Some(link::with("/slos", &[("service", &objective.service)]))),
        ],
        json: Some("/api/v1/slos".to_owned()),
        body,
    })
}

/// A trace by its span that failed, of this service if there is one.
fn proof(id: &str, spans: &[Stored], service: &str) -> Markup {
    let trace_id: Option<[u8; 16]> = parse_id(id);
    let of = spans.iter().map(|stored| &stored.span).filter(|span| Some(span.trace_id) == trace_id);
    let span = of.max_by_key(|span| (trace::is_error(span), span.service.name == service));
    let Some(address) = trace_id.as_ref().map(link::trace) else { return html! { (text::name(id)) } };
    html! {
        @match span {
            Some(span) => {
                a href=(address) { (text::name(&span.name().to_string())) } " "
                @if trace::is_error(span) { span.bad { "▲ " (text::name(span.error_type)) } ", " }
                (text::duration(crate::red::seconds(span.end.saturating_sub(span.start)))) ", " (text::moment(span.start))
            },
            None => { a href=(address) { code { (text::short(id)) } } },
        }
    }
}

fn tiles(objective: &ObjectiveView) -> Markup {
    let ratio = objective.ratio.map_or_else(|| text::NONE.to_owned(), text::percent);
    html! {
        dl.tiles {
            (table::tile("State", &Slo::of(objective).badge()))
            (table::tile("Target", &html! { (text::target(objective.target)) " " span.of { "in " (objective.window.duration) } }))
            (table::tile("Kept", &html! { (ratio) }))
            (table::tile("Budget left", &budget(objective)))
            (table::tile("Bad", &html! { span data-is="bad" { (text::count(objective.bad)) } " " span.of { (allowed(objective)) } }))
            (table::tile("Lasts", &html! { (lasts(objective)) " " span.of { "at the pace of the last hour" } }))
        }
    }
}

/// How many events may be bad of those that there were.
fn allowed(objective: &ObjectiveView) -> String {
    let total = objective.good + objective.bad;
    let allowed = (1.0 - objective.target) * total as f64;
    format!("of {} allowed in {}", text::significant(allowed), text::counted(total, "event", "events"))
}

fn windows(objective: &ObjectiveView) -> Markup {
    html! {
        section aria-labelledby="windows" {
            h2 #windows { "Burn rates" }
            div.wide tabindex="0" { table {
                caption { "1 uses up exactly the budget in exactly the period; more is too fast." }
                thead { tr {
                    th scope="col" { "Last" } th.n scope="col" { "Burn rate" } th.n scope="col" { "Bad" } th.n scope="col" { "Events" } th.n scope="col" { "Observed" }
                } }
                tbody { @for rate in &objective.burn_rates { (window(rate)) } }
            } }
            p.quiet {
                "Alerts: "
                @for (nth, severity) in objective.alerts.iter().enumerate() {
                    @if nth > 0 { ", " }
                    (text::name(&severity.severity)) @if severity.is_firing { b.bad { " fires" } } @else { " does not fire" }
                }
                @if objective.alerts.is_empty() { "none are defined" }
                "."
            }
        }
    }
}

fn window(rate: &BurnRateView) -> Markup {
    let is_fast = rate.burn_rate > 1.0;
    html! {
        tr {
            th scope="row" { (rate.window) }
            td.n { @if is_fast { span.bad { "▲ " (text::significant(rate.burn_rate)) } } @else { (text::significant(rate.burn_rate)) } }
            td.n { (text::count(rate.bad)) }
            td.n { (text::count(rate.good + rate.bad)) }
            td.n { (text::percent(rate.coverage)) }
        }
    }
}

fn period(objective: &ObjectiveView) -> Markup {
    let window = &objective.window;
    html! {
        p.quiet {
            @if window.is_rolling { "The budget is that of the last " (window.duration) ": what is spent comes back when it is older." }
            @else { "The budget is that of " (text::moment_of(&window.start)) " to " (text::moment_of(&window.end)) "." }
            " This agent observed " (text::percent(window.coverage)) " of it. Budgeting: " (objective.budgeting_method) "."
        }
    }
}
