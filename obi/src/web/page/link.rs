//! Addresses of pages and of the API, with what must be escaped in them.
//!
//! In: names, ids. Out: paths within this listener, never anything else. Refuses to know what is there.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::web::spans::json::hex;

/// What a path or a value of a query cannot have as it is, and the quotation marks of HTML.
const SPECIAL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// A request for a longer address would be refused.
const MAX_BYTES: usize = 8_000;
/// Stands for the namespace of services that have none.
const NO_NAMESPACE: &str = "-";
/// Before a name that means something else as a part of a path.
const LITERAL: char = '~';

/// Text as a value of a query.
pub(super) fn value(text: &str) -> String {
    utf8_percent_encode(text, SPECIAL).to_string()
}

/// A path and query parameters; those without a value are left out. The path alone if all would be too long.
pub(super) fn with(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut link = path.to_owned();
    for (name, text) in parameters.iter().filter(|(_, text)| !text.is_empty()) {
        let mark = if link.len() == path.len() { '?' } else { '&' };
        let _ = write!(link, "{mark}{name}={}", value(text));
    }
    if link.len() > MAX_BYTES { path.to_owned() } else { link }
}

/// A service's page; `None` for a name that is too long to be asked for.
pub(super) fn service(namespace: &str, name: &str) -> Option<String> {
    let namespace = match namespace {
        "" => NO_NAMESPACE.to_owned(),
        namespace => segment(namespace),
    };
    Some(format!("/services/{namespace}/{}", segment(name))).filter(|link| link.len() <= MAX_BYTES)
}

/// What [`service`] made of a namespace.
pub(super) fn namespace_of(segment: &str) -> &str {
    if segment == NO_NAMESPACE { "" } else { name_of(segment) }
}

/// What a link made of a name.
pub(super) fn name_of(segment: &str) -> &str {
    segment.strip_prefix(LITERAL).unwrap_or(segment)
}

/// An objective's page; `None` as for services.
pub(super) fn slo(name: &str) -> Option<String> {
    Some(format!("/slos/{}", segment(name))).filter(|link| link.len() <= MAX_BYTES)
}

/// A trace's page.
pub(super) fn trace(trace_id: &[u8; 16]) -> String {
    format!("/traces/{}", hex(trace_id))
}

/// A span's page.
pub(super) fn span(trace_id: &[u8; 16], span_id: &[u8; 8]) -> String {
    format!("/traces/{}/{}", hex(trace_id), hex(span_id))
}

/// A name as one part of a path. Browsers take `.` and `..` for directions, however they are written.
fn segment(name: &str) -> String {
    let encoded = value(name);
    match name {
        "" | "." | ".." | NO_NAMESPACE => format!("{LITERAL}{encoded}"),
        _ if name.starts_with(LITERAL) => format!("{LITERAL}{encoded}"),
        _ => encoded,
    }
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;

    use super::*;

    #[test]
    fn links() {
        let check = |namespace: &str, name: &str, expected: &str| {
            assert_eq!(service(namespace, name).as_deref(), Some(expected));
        };
        check("", "shop", "/services/-/shop");
        check("prod", "a/b c", "/services/prod/a%2Fb%20c");
        check("-", "..", "/services/~-/~..");
        check("~", "", "/services/~~/~");
        check("", "<\"'&>", "/services/-/%3C%22%27%26%3E");
        assert_eq!(service("", &"x".repeat(9_000)), None);
        assert_eq!(
            with("/spans", &[("service", "a&b"), ("kind", ""), ("error", "true")]),
            "/spans?service=a%26b&error=true"
        );
        assert_eq!(with("/spans", &[("path", &"x".repeat(9_000))]), "/spans");
        assert_eq!(span(&[1; 16], &[2; 8]), "/traces/01010101010101010101010101010101/0202020202020202");
    }

    proptest::proptest! {
        #[test]
        fn every_name_comes_back(namespace in "(?s).{0,20}", name in "(?s)[.~-]{0,3}.{0,20}") {
            let link = service(&namespace, &name).unwrap();
            assert!(link.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"'&?#".contains(&byte)), "{link}");
            let parts: Vec<_> = link.split('/').map(|part| percent_decode_str(part).decode_utf8().unwrap()).collect();
            assert_eq!(parts.len(), 4, "{link}");
            assert!(![".", "..", ""].contains(&&*parts[2]) && ![".", "..", ""].contains(&&*parts[3]), "{link}");
            assert_eq!((namespace_of(&parts[2]), name_of(&parts[3])), (&*namespace, &*name));
        }
    }
}
