//! `/profiles`, `/profiles/compare`: a flame graph with a way back, and the same selection in other ways.
//!
//! In: the parameters of `/api/v1/profiles`. Out: a page around the API's own picture. Refuses to draw, and to sum up.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::{self, Failure};
use super::frame::{Here, Page};
use super::span::{picture, types};
use super::{link, text};
use crate::export::Metrics;
use crate::export::flame::{Frames, Look, View};
use crate::profile::SampleKind;
use crate::profile::ask::AskError;
use crate::profile::choose::Filter;
use crate::web::profiles::{self, Request};
use crate::web::spans::json::hex;
use crate::web::{Command, Error};

/// A selection's page.
pub(super) const PAGE: &str = "/profiles";
/// The page of two selections.
pub(super) const COMPARE: &str = "/profiles/compare";
/// A selection's picture.
pub(super) const PICTURE: &str = "/api/v1/profiles";
const DIFFERENCE: &str = "/api/v1/profiles/compare";

type Pairs = Vec<(String, String)>;

/// What the page is about.
#[derive(Debug)]
struct Asked {
    /// The picture's address, without parameters.
    picture: &'static str,
    /// As given, with the times that were meant, without a format.
    pairs: Pairs,
    title: String,
    filter: Filter,
    look: Look,
    /// Types of samples that there are beside CPU time.
    types: Vec<SampleKind>,
}

pub(super) async fn serve(
    State(state): State<super::Web>,
    pairs: Result<Query<Pairs>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(pairs) = pairs?;
    let request = Request::parse(pairs.clone(), profiles::now())?;
    let title = request.title.clone();
    shown(&state, &request, Asked::new(PICTURE, pairs, title, &request)).await
}

pub(super) async fn compare(
    State(state): State<super::Web>,
    pairs: Result<Query<Pairs>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(pairs) = pairs?;
    let (request, base) =
        Request::parse_both(pairs.clone(), profiles::now())?.ok_or(Error::NothingToCompare)?;
    let title = format!("{}, compared with {}", request.title, base.title);
    shown(&state, &request, Asked::new(DIFFERENCE, pairs, title, &request)).await
}

async fn shown(state: &super::Web, request: &Request, mut asked: Asked) -> Result<Response, Failure> {
    asked.types = types(&state.profiles);
    let filter = &asked.filter;
    let is_one = filter.span_id.is_some() || filter.trace_id.is_some();
    let mut absent = None;
    // The picture asks once more; of a span that is little.
    if is_one || filter.kind.is_of_moment() || !state.profiles.has(filter.kind) {
        absent = match profiles::ask(state, request).await {
            Err(Error::Profiles(AskError::Off(reason) | AskError::TypeOff { reason, .. })) => {
                Some((StatusCode::OK, format!("Not known: {reason}.")))
            }
            Err(error @ Error::NotSampled(_)) => Some((error.status(), failure::sentence(&error))),
            answer => answer.map(|_| None)?,
        };
    }
    let make = move |metrics: Metrics| {
        let (status, sentence) = absent.unzip();
        (status.unwrap_or(StatusCode::OK), asked.page(sentence.as_deref(), &metrics)).into_response()
    };
    Ok(state.answer(Command::Metrics, make).await?)
}

impl Asked {
    fn new(picture: &'static str, mut pairs: Pairs, title: String, request: &Request) -> Self {
        pairs.retain(|(name, _)| name != "format");
        let filter = request.filter.clone();
        // The picture and its files are of the same time as the title; a span is found without one.
        for (name, time) in [("from", filter.start), ("to", filter.end)] {
            if filter.start > 0 && !filter.kind.is_of_moment() && pairs.iter().all(|(given, _)| given != name)
            {
                pairs
                    .push((name.to_owned(), format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000)));
            }
        }
        Self { picture, pairs, title, filter, look: request.look, types: Vec::new() }
    }

    /// An address with the same parameters and some others; an empty one is left out.
    fn address(&self, path: &str, others: &[(&str, &str)]) -> String {
        let is_other = |name: &str| others.iter().any(|(other, _)| *other == name);
        let own = self.pairs.iter().filter(|(name, _)| !is_other(name));
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        link::with(path, &own.chain(others.iter().copied()).collect::<Vec<_>>())
    }

    /// With a sentence in the place of a picture that there is not.
    fn page(&self, absent: Option<&str>, metrics: &Metrics) -> Page {
        let body = html! {
            h1 { @if self.picture == PICTURE { "Flame graph" } @else { "Two flame graphs compared" } }
            p.sum { (text::name_to(&self.title, 300)) }
            (self.types())
            @match absent {
                Some(sentence) => p.empty { (text::plain(sentence)) },
                None => { (views(Some(self.look.view), |name| self.address(self.own(), &[("view", name)]))) (self.ways()) (picture(&self.address(self.picture, &[]), "Flame graph")) },
            }
        };
        let one = self.address(PICTURE, &[("format", "json")]);
        Page {
            here: if self.filter.trace_id.is_some() { Here::Spans } else { Here::Services },
            title: self.title.clone(),
            crumbs: self.crumbs(metrics),
            json: (self.picture == PICTURE && absent.is_none()).then_some(one),
            body,
        }
    }

    /// The way back to what it is a picture of.
    fn crumbs(&self, metrics: &Metrics) -> Vec<(String, Option<String>)> {
        if let Some(trace) = &self.filter.trace_id {
            let mut crumbs = vec![
                ("Spans".to_owned(), Some("/spans".to_owned())),
                ("Trace".to_owned(), Some(link::trace(trace))),
            ];
            crumbs.extend(
                self.filter.span_id.map(|id| (format!("Span {}", hex(&id)), Some(link::span(trace, &id)))),
            );
            return crumbs;
        }
        let mut crumbs = vec![("Services".to_owned(), Some("/".to_owned()))];
        if let Some(name) = &self.filter.service {
            let mut of_name = metrics.red.services.iter().filter(|totals| totals.service.name == *name);
            let address = match (of_name.next(), of_name.next()) {
                (Some(only), None) => link::service(&only.service.namespace, name),
                // Samples are chosen by the name alone.
                _ => Some(link::with("/", &[("q", name)])),
            };
            crumbs.push((name.clone(), address));
        }
        crumbs
    }

    /// The address of this page.
    fn own(&self) -> &'static str {
        if self.picture == PICTURE { PAGE } else { COMPARE }
    }

    /// The same selection by all types.
    fn types(&self) -> Markup {
        let of_type = |kind: SampleKind| self.address(self.own(), &[("type", kind.row().name)]);
        if self.filter.kind.is_of_moment() {
            return moments(|name| self.address(PAGE, &[("type", name)]), Some(self.filter.kind));
        }
        html! {
            @if !self.types.is_empty() {
                p.go { "What threads did: "
                    @for kind in std::iter::once(SampleKind::Cpu).chain(self.types.iter().copied()) {
                        a href=(of_type(kind)) aria-current=[(kind == self.filter.kind).then_some("true")] { (word(kind)) } " "
                    }
                }
            }
        }
    }

    /// The same with what is left out, or without it.
    fn frames(&self) -> Markup {
        let (other, word) = match self.look.frames {
            Frames::Program => ("all", "With frames of interpreters and virtual machines"),
            Frames::All => ("", "Without frames of interpreters and virtual machines"),
        };
        html! { a href=(self.address(self.own(), &[("frames", other)])) { (word) } }
    }

    /// The same selection now, as files, and what it is compared with.
    fn ways(&self) -> Markup {
        let route = self.filter.route.as_deref().unwrap_or_default();
        let is_route = !route.is_empty() && self.filter.pace.is_none();
        let now = self.address(self.own(), &[("from", ""), ("to", "")]);
        let formats = [
            ("svg", "SVG"),
            ("pprof", "pprof"),
            ("otlp", "OTLP"),
            ("folded", "folded stacks"),
            ("json", "numbers"),
        ];
        html! {
            p { "Width is " (width(self.filter.kind)) "; left to right is alphabetical, not time. " (self.frames()) }
            p.go {
                @if self.filter.kind.is_of_moment() { a href=(now) { "As it is now" } " " }
                @else if self.filter.start > 0 { a href=(now) { "The last minute" } " " }
                @if self.picture == PICTURE && is_route {
                    a href=(self.address(COMPARE, &[("slow", "true")])) title="The slowest 5 % against the others" { "Why are the slow ones slow?" } " "
                }
            }
            p.go { "As a file: "
                @if self.picture == PICTURE {
                    @for (format, word) in formats { a href=(self.address(PICTURE, &[("format", format)])) { (word) } " " }
                } @else { a href=(self.address(DIFFERENCE, &[])) { "SVG" } }
            }
        }
    }
}

/// What a bar's width stands for.
fn width(kind: SampleKind) -> &'static str {
    match kind {
        SampleKind::Cpu | SampleKind::OffCpu | SampleKind::Wall | SampleKind::Lock => "time",
        SampleKind::PageFaults => "the number of page faults",
        SampleKind::Heap => "memory that has been allocated there and is still used",
        SampleKind::Alloc => "memory that has been allocated there since the program began",
        SampleKind::Goroutines => "the number of goroutines",
    }
}

/// What Go programs are now, and what they have done.
pub(super) fn moments(address: impl Fn(&str) -> String, shown: Option<SampleKind>) -> Markup {
    html! {
        p.go { "Of programs in Go: "
            @for kind in [SampleKind::Heap, SampleKind::Alloc, SampleKind::Goroutines] {
                a href=(address(kind.row().name)) aria-current=[(Some(kind) == shown).then_some("true")] { (word(kind)) } " "
            }
            @if shown.is_some() { a href=(address("")) { "CPU time" } }
        }
    }
}

/// The same samples in other views, by the addresses of their names; the usual one's is empty.
pub(super) fn views(shown: Option<View>, address: impl Fn(&str) -> String) -> Markup {
    let name = |view: View| if view == View::default() { "" } else { view.name() };
    html! {
        p.go { "View: "
            @for view in View::ALL {
                a href=(address(name(view))) aria-current=[(Some(view) == shown).then_some("true")] { (word_of(view)) } " "
            }
        }
    }
}

/// What a view is called.
fn word_of(view: View) -> &'static str {
    match view {
        View::Flame => "flame graph",
        View::Icicle => "root on top (icicle)",
        View::Callers => "callers of each function",
    }
}

/// What samples of a type show, in a few words.
pub(super) fn word(kind: SampleKind) -> &'static str {
    match kind {
        SampleKind::Cpu => "running",
        SampleKind::OffCpu => "waiting, by reason",
        SampleKind::Wall => "running and waiting",
        SampleKind::Lock => "locks, and who held them",
        SampleKind::PageFaults => "page faults",
        SampleKind::Heap => "memory in use",
        SampleKind::Alloc => "memory allocated since the start",
        SampleKind::Goroutines => "goroutines",
    }
}
