//! What all pages have in common: head, ways to the others, end.
//!
//! In: a [`Page`]. Out: a whole HTML document. Refuses to know what it is about.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::asset::{ICON, SCRIPT, STYLE};
use super::text;
use crate::web::security;

/// Where a page belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Here {
    Services,
    Spans,
    Slos,
    Map,
    Agent,
    Nowhere,
}

/// Name, address and key of each part.
const PARTS: [(Here, &str, &str); 5] = [
    (Here::Services, "Services", "/"),
    (Here::Spans, "Spans", "/spans"),
    (Here::Slos, "SLOs", "/slos"),
    (Here::Map, "Map", "/map"),
    (Here::Agent, "Agent", "/agent"),
];

/// A page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) here: Here,
    /// Of the tab.
    pub(super) title: String,
    /// The way here, without this page: text and address.
    pub(super) crumbs: Vec<(String, Option<String>)>,
    /// Where the same is as JSON.
    pub(super) json: Option<String>,
    /// With a heading.
    pub(super) body: Markup,
}

/// Name of this machine.
pub(super) static MACHINE: LazyLock<String> =
    LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned());

impl Page {
    fn document(&self) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (text::short(&self.title)) " · obi" }
                    link rel="icon" href=(ICON.path) type="image/svg+xml";
                    link rel="stylesheet" href=(STYLE.path);
                    script src=(SCRIPT.path) {}
                }
                body {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        a.mark href="/" { "obi" }
                        nav aria-label="Parts" {
                            @for (part, name, address) in PARTS {
                                a href=(address) aria-current=[(part == self.here).then_some("page")] { (name) }
                            }
                        }
                        span.machine title="this machine" { (text::name(&MACHINE)) }
                        span.tools #tools {}
                    }
                    main #main {
                        @if !self.crumbs.is_empty() {
                            nav.crumbs aria-label="Way here" {
                                @for (name, address) in &self.crumbs {
                                    @match address {
                                        Some(address) => a href=(address) { (text::name(name)) },
                                        None => span { (text::name(name)) },
                                    }
                                }
                            }
                        }
                        (self.body)
                    }
                    footer.end {
                        span { "obi " (env!("CARGO_PKG_VERSION")) }
                        @if let Some(json) = &self.json { a href=(json) { "This page as JSON" } }
                        a href="/metrics" { "Metrics" }
                        a href="/agent#api" { "API" }
                    }
                }
            }
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        ([(CONTENT_SECURITY_POLICY, security::PAGE)], Html(self.document().into_string())).into_response()
    }
}

/// What is said instead of a page, in a sentence, and where to go on.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) status: StatusCode,
    pub(super) heading: &'static str,
    pub(super) sentence: String,
    /// Text and address.
    pub(super) ways: Vec<(&'static str, String)>,
}

impl IntoResponse for Notice {
    fn into_response(self) -> Response {
        let body = html! {
            h1 { (self.heading) }
            p { (text::plain(&self.sentence)) }
            @if !self.ways.is_empty() {
                ul.ways { @for (name, address) in &self.ways { li { a href=(address) { (name) } } } }
            }
        };
        let title = self.heading.to_owned();
        let page = Page { here: Here::Nowhere, title, crumbs: Vec::new(), json: None, body };
        (self.status, page).into_response()
    }
}
