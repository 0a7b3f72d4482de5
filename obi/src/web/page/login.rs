//! `/login`: a form for the token, and the cookie that it is exchanged for.
//!
//! In: the form, the only request that brings a body. Out: a cookie and the way to where the reader wanted to go.
//! Refuses to know what the token opens, and to go anywhere outside this listener.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::header::{HOST, HeaderName, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use maud::html;

use super::failure::Failure;
use super::frame::{Here, Page};
use crate::listener::Peer;
use crate::web::Error;
use crate::web::access::Lack;

/// A longer form is refused.
const MAX_BYTES: usize = 16_384;
/// A form that takes longer to come is refused.
const TIMEOUT: Duration = Duration::from_secs(5);
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The form, for those who come by its address.
pub(super) async fn form() -> Response {
    let mut response = refused(Lack::Token, &Uri::from_static("/"), false);
    *response.status_mut() = StatusCode::OK;
    response
}

/// What is said to those who may not read: how they can.
pub(in crate::web) fn refused(lack: Lack, wanted: &Uri, is_wrong: bool) -> Response {
    let to = wanted.path_and_query().map_or("/", |it| it.as_str());
    let body = match lack {
        Lack::Token => html! {
            h1 { "Token needed" }
            @if is_wrong { p.bad role="alert" { "▲ That is another token." } }
            p { "This agent shows what it sees to those who have its token: the value of " code { "web.token" } " in its configuration." }
            form.controls method="post" action="/login" {
                input type="hidden" name="to" value=(to);
                input type="text" name="username" value="obi" autocomplete="username" hidden;
                label { "Token " input type="password" name="token" autocomplete="current-password" required autofocus; }
                button type="submit" { "Show the page" }
            }
            p.quiet { "Programs send it as " code { "Authorization: Bearer TOKEN" } "." }
        },
        Lack::Configuration => html! {
            h1 { "Not shown to other machines" }
            p {
                "You come from another machine, and this agent has no token. Give it one (" code { "web.token" }
                " in its configuration, or " code { "OBI_WEB_TOKEN" } "), or let everyone who reaches its port read what it sees ("
                code { "web.open: true" } "). On its own machine the page is there without either."
            }
            p { a href="/metrics" { "Metrics" } " are open." }
        },
    };
    let page = Page { here: Here::Nowhere, title: "Token".to_owned(), crumbs: Vec::new(), json: None, body };
    let mut response = (StatusCode::UNAUTHORIZED, page).into_response();
    // With no referrer at all, browsers would not say where the form was either.
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Takes the form.
pub(super) async fn serve(State(state): State<super::Web>, request: Request) -> Result<Response, Failure> {
    let external = state.external_url.parse::<Uri>().ok();
    if !is_from_here(request.headers(), external.as_ref()) {
        return Err(Error::Foreign.into());
    }
    let peer = request.extensions().get::<Peer>();
    let over_tls = peer.is_some_and(|peer| peer.over_tls)
        || origin(request.headers()).is_some_and(|origin| origin.starts_with("https://"));
    let body = tokio::time::timeout(TIMEOUT, to_bytes(request.into_body(), MAX_BYTES)).await;
    let body = body.ok().and_then(Result::ok).ok_or(Error::Form)?;
    let Form { token, to } = Form::read(&body).ok_or(Error::Form)?;
    match state.access.login(&token, state.prefix.as_str(), over_tls) {
        Some(cookie) => {
            let to =
                HeaderValue::try_from(format!("{}{to}", state.prefix.as_str())).map_err(|_| Error::Form)?;
            Ok((StatusCode::SEE_OTHER, [(LOCATION, to), (SET_COOKIE, cookie)]).into_response())
        }
        None => Ok(refused(Lack::Token, &to, true)),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Form {
    token: String,
    to: Uri,
}

impl Form {
    fn read(body: &[u8]) -> Option<Self> {
        let query = format!("/?{}", std::str::from_utf8(body).ok()?).parse::<Uri>().ok()?;
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&query).ok()?;
        let value =
            |wanted: &str| pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        Some(Self { token: value("token")?.trim().to_owned(), to: within(&value("to").unwrap_or_default()) })
    }
}

/// An address of this listener; its root where there is none. Browsers take `//name` and `/\name` for other hosts.
fn within(to: &str) -> Uri {
    let is_path = to.starts_with('/') && !to.starts_with("//") && !to.contains('\\');
    is_path.then(|| to.parse().ok()).flatten().unwrap_or_else(|| Uri::from_static("/"))
}

fn origin(headers: &HeaderMap) -> Option<&str> {
    headers.get(ORIGIN).map(|value| value.to_str().unwrap_or("none"))
}

/// Whether the form was one of ours: browsers say where it was. Other programs say nothing.
fn is_from_here(headers: &HeaderMap, external: Option<&Uri>) -> bool {
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    let host = headers.get(HOST).and_then(|value| value.to_str().ok());
    let is_ours = |origin: &str| {
        let Ok(origin) = origin.parse::<Uri>() else { return false };
        let authority = origin.authority().map(|it| it.as_str());
        let is_external =
            external.is_some_and(|it| it.authority() == origin.authority() && it.scheme() == origin.scheme());
        authority.is_some() && (authority == host || is_external)
    };
    site.is_none_or(|site| [&b"same-origin"[..], b"none"].contains(&site))
        && origin(headers).is_none_or(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_lead_nowhere_else() {
        let check = |body: &str, expected: Option<(&str, &str)>| {
            let read = Form::read(body.as_bytes()).map(|form| (form.token, form.to.to_string()));
            let read = read.as_ref().map(|(token, to)| (token.as_str(), to.as_str()));
            assert_eq!(read, expected, "{body}");
        };
        check("token=a%26b&to=%2Fspans%3Fq%3D1", Some(("a&b", "/spans?q=1")));
        check("to=/&token=+x+", Some(("x", "/")));
        check("token=x", Some(("x", "/")));
        for elsewhere in
            ["//evil", "/%5Cevil", "http://evil/", "evil", "", "%2F%2Fevil", "/%0D%0Aset-cookie:x"]
        {
            check(&format!("token=x&to={elsewhere}"), Some(("x", "/")));
        }
        check("to=/", None);
        check("", None);
        check("{\"token\": 1}", None);
    }

    #[test]
    fn forms_of_other_pages_are_refused() {
        let external: Uri = "https://dash.example.org/obi".parse().unwrap();
        let check = |headers: &[(HeaderName, &str)], expected: bool| {
            let map = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
            assert_eq!(is_from_here(&map, Some(&external)), expected, "{headers:?}");
        };
        check(&[(HOST, "10.0.0.7:9464")], true);
        check(&[(HOST, "10.0.0.7:9464"), (ORIGIN, "http://10.0.0.7:9464")], true);
        check(
            &[(HOST, "10.0.0.7:9464"), (ORIGIN, "http://10.0.0.7:9464"), (FETCH_SITE, "same-origin")],
            true,
        );
        check(&[(HOST, "upstream"), (ORIGIN, "https://dash.example.org")], true);
        check(&[(HOST, "upstream"), (ORIGIN, "http://dash.example.org")], false);
        for origin in
            ["null", "http://evil.example", "http://10.0.0.7:80", "http://10.0.0.7:9464.evil", "", "ü"]
        {
            check(&[(HOST, "10.0.0.7:9464"), (ORIGIN, origin)], false);
        }
        for site in ["cross-site", "same-site", ""] {
            check(&[(HOST, "10.0.0.7:9464"), (FETCH_SITE, site)], false);
        }
    }
}
