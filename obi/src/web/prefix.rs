//! The page below a path of another listener: `web.external_url` with a path, such as behind a reverse proxy.
//!
//! In: requests with that path in front, or without it where the proxy takes it away; pages whose links begin at the
//! root. Out: requests below the root; pages whose links begin at that path. Refuses to know what is linked.
//!
//! Only here is known where pages are. They are written with a single kind of quotation mark, which nothing that
//! programs say can contain unescaped, so that the beginning of a link cannot be mistaken.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State as FromState};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::Response;

use super::{Error, State};
use crate::config::Web as Config;

/// How links begin in pages.
const BEGINS: [&str; 3] = [" href=\"/", " src=\"/", " action=\"/"];

/// A path without a slash at its end; empty for the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix(String);

impl Prefix {
    /// That of `web.external_url`.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let url = config.external_url.parse::<Uri>().ok();
        let parts = url.as_ref().map_or("", Uri::path).split('/').filter(|part| !part.is_empty());
        Self(parts.map(|part| format!("/{part}")).collect())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same address below the root. One that does not begin with the path stays as it is.
    pub(super) fn strip(&self, uri: &Uri) -> Option<Uri> {
        let rest = uri.path_and_query()?.as_str().strip_prefix(&self.0).filter(|_| !self.0.is_empty())?;
        let path = match rest.as_bytes().first() {
            None => "/".to_owned(),
            Some(b'/') => rest.to_owned(),
            Some(b'?') => format!("/{rest}"),
            Some(_) => return None,
        };
        path.parse().ok()
    }

    fn add_to(&self, page: &str) -> String {
        let prefix = self.0.replace('&', "&amp;");
        let mut page = page.to_owned();
        for begin in BEGINS {
            let (attribute, _) = begin.split_at(begin.len() - 1);
            page = page.replace(begin, &format!("{attribute}{prefix}/"));
        }
        page
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.starts_with("text/html"))
}

/// Gives the links of a page the path in front.
pub(super) async fn add(
    FromState(state): FromState<State>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let response = next.run(request).await;
    if state.prefix.0.is_empty() || !is_page(response.headers()) {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    // Pages are whole already, and never empty but for HEAD, whose length is not known without making them.
    let bytes = to_bytes(body, usize::MAX).await.map_err(|_| Error::Unanswered)?;
    let page = state.prefix.add_to(&String::from_utf8_lossy(&bytes));
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(page)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Prefix {
        Prefix::new(&Config { external_url: url.to_owned(), ..Config::default() })
    }

    #[test]
    fn paths() {
        let check = |url: &str, expected: &str| assert_eq!(of(url).as_str(), expected, "{url}");
        check("", "");
        check("https://obi.example.org", "");
        check("https://obi.example.org/", "");
        check("https://example.org/obi/", "/obi");
        check("https://example.org/a/b", "/a/b");
        check("https://example.org//evil.example/", "/evil.example");
        check("https://example.org/a?b=c", "/a");
    }

    #[test]
    fn requests() {
        let check = |asked: &str, expected: Option<&str>| {
            let uri: Uri = asked.parse().unwrap();
            let stripped = of("https://h/obi").strip(&uri).map(|uri| uri.to_string());
            assert_eq!(stripped.as_deref(), expected, "{asked}");
        };
        check("/obi", Some("/"));
        check("/obi/", Some("/"));
        check("/obi?q=1", Some("/?q=1"));
        check("/obi/spans?a=/obi/", Some("/spans?a=/obi/"));
        check("http://h/obi/spans", Some("/spans"));
        check("/obix", None);
        check("/spans", None);
        check("/", None);
        assert_eq!(of("").strip(&"/spans".parse().unwrap()), None);
    }

    #[test]
    fn links() {
        let page = "<a href=\"/\">a href=&quot;/x</a><a href=\"#main\"><form action=\"/spans\" title=\"/cart\">\
                    <iframe src=\"/api/v1\">";
        let expected = "<a href=\"/a&amp;b/\">a href=&quot;/x</a><a href=\"#main\"><form action=\"/a&amp;b/spans\" \
                        title=\"/cart\"><iframe src=\"/a&amp;b/api/v1\">";
        assert_eq!(of("https://h/a&b").add_to(page), expected);
    }
}
