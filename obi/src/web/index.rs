//! `/`: where everything is, and the services that were seen.
//!
//! In: a snapshot of the counts. Out: HTML. Refuses to trust a name: it comes from the programs that are watched.

use std::fmt::Write as _;

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Command, Error};
use crate::red::ServiceTotals;

const PAGE: &str = include_str!("index.html");
/// Stands in the page where services go.
const SERVICES: &str = "<!-- services -->";
/// Services that are listed; `/api/v1/status` has them all.
const LISTED: usize = 200;

pub(super) async fn serve(State(state): State<super::State>) -> Result<Response, Error> {
    let make = |metrics: crate::export::Metrics| {
        Html(PAGE.replacen(SERVICES, &list(&metrics.red.services), 1)).into_response()
    };
    state.answer(Command::Metrics, make).await
}

/// A table of services, most requests first.
fn list(services: &[ServiceTotals]) -> String {
    let mut sorted: Vec<_> = services.iter().map(|totals| (requests(totals), totals)).collect();
    sorted.sort_by(|(one, first), (other, second)| {
        other.cmp(one).then_with(|| first.service.name.cmp(&second.service.name))
    });
    if sorted.is_empty() {
        return "<p>No service has served or sent a request yet.</p>".to_owned();
    }
    let mut text = "<table><tr><th>Service<th>Served<th>Sent<th>See\n".to_owned();
    for (_, totals) in sorted.iter().take(LISTED) {
        let (name, query) = (escaped(&totals.service.name), encoded(&totals.service.name));
        let (served, sent) = (totals.server_spans.value, totals.client_spans.value);
        let row = writeln!(
            text,
            "<tr><td>{name}<td>{served}<td>{sent}<td><a href=\"/api/v1/spans?service={query}\">spans</a> \
             <a href=\"/api/v1/profiles?format=svg&amp;service={query}\">flame graph</a> \
             <a href=\"/api/v1/slos/suggested?service={query}\">objectives</a>"
        );
        row.expect("writing to a string cannot fail");
    }
    text.push_str("</table>");
    if sorted.len() > LISTED {
        let more = sorted.len() - LISTED;
        text.push_str(&format!("<p>{more} more: <a href=\"/api/v1/status\">/api/v1/status</a></p>"));
    }
    text
}

fn requests(totals: &ServiceTotals) -> u64 {
    totals.server_spans.value.saturating_add(totals.client_spans.value)
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Text that stays text within an element.
fn escaped(name: &str) -> String {
    let escape = |character: char| match character {
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '&' => "&amp;".to_owned(),
        '"' => "&quot;".to_owned(),
        other => other.to_string(),
    };
    name.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::Service;

    fn totals(name: &str, server: u64) -> ServiceTotals {
        let service = Service { name: name.to_owned(), ..Service::default() };
        let mut totals = ServiceTotals::new(Arc::new(service), 0);
        totals.server_spans.value = server;
        totals
    }

    #[test]
    fn names_are_only_text() {
        let check = |name: &str, shown: &str, query: &str| {
            let page = list(&[totals(name, 3)]);
            assert!(page.contains(&format!("<td>{shown}<td>3<td>0<td>")), "{page}");
            assert_eq!(page.matches(&format!("service={query}\"")).count(), 3, "{page}");
            assert_eq!(page.matches('<').count(), list(&[totals("x", 3)]).matches('<').count(), "{page}");
        };
        check("shop", "shop", "shop");
        check(
            "<script>alert(1)</script>",
            "&lt;script&gt;alert(1)&lt;/script&gt;",
            "%3Cscript%3Ealert%281%29%3C%2Fscript%3E",
        );
        check("a\"b&c", "a&quot;b&amp;c", "a%22b%26c");
        check("übung\n", "übung\n", "%C3%BCbung%0A");
    }

    #[test]
    fn the_busiest_come_first_and_the_rest_is_counted() {
        let many: Vec<_> = (0..250).map(|n| totals(&format!("s{n}"), n)).collect();
        let page = list(&many);
        assert_eq!(page.matches("<tr><td>").count(), LISTED);
        assert!(page.find("<td>s249<") < page.find("<td>s248<") && !page.contains("<td>s49<"), "{page}");
        assert!(page.contains("<p>50 more"), "{page}");
        assert!(list(&[]).contains("No service"));
    }
}
