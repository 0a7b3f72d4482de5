//! Request targets to what may be shown of them.
//!
//! In: the bytes of a target. Out: authority, path and query without values. Everything that a value could
//! hide in is replaced by [`REDACTED`], because URLs carry tokens and session ids. Refuses to know which
//! names are harmless: a list of those is never complete.

/// Stands for every value (the word of the OpenTelemetry semantic conventions for `url.query`).
pub const REDACTED: &str = "REDACTED";

/// The parts of a request target (RFC 9112 §3.2), still as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target<'a> {
    /// Of the absolute and the authority form, without user information.
    pub authority: Option<&'a [u8]>,
    /// With path parameters; `/` when an absolute target has none, empty in authority form.
    pub path: &'a [u8],
    /// What follows the first `?`; empty without one.
    pub query: &'a [u8],
}

/// Splits a target. A fragment, which no client should send, is cut off: OAuth puts tokens there.
#[must_use]
pub fn split_target<'a>(method: &[u8], target: &'a [u8]) -> Target<'a> {
    let target = before(target, b'#').0;
    if method == b"CONNECT" {
        return Target { authority: Some(host_of(target)), ..Target::default() };
    }
    let (authority, rest) = match after_scheme(target) {
        Some(rest) => {
            let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            (Some(host_of(&rest[..end])), &rest[end..])
        }
        None => (None, target),
    };
    let (path, query) = before(rest, b'?');
    let path = if path.is_empty() { b"/" } else { path };
    // Neither a path nor an asterisk: whatever it is, nothing that looks like a password leaves.
    let path = if path.starts_with(b"/") { path } else { host_of(path) };
    Target { authority, path, query }
}

/// An authority without `user:password@`.
#[must_use]
pub fn host_of(authority: &[u8]) -> &[u8] {
    authority.iter().rposition(|byte| *byte == b'@').map_or(authority, |at| &authority[at + 1..])
}

/// Writes `path` with the value of each `;name=value` parameter replaced; a parameter without a name is a
/// value. Percent-encoding stays.
pub fn write_path(path: &[u8], mut write: impl FnMut(&[u8])) {
    if !path.contains(&b';') {
        return write(path);
    }
    for (index, segment) in path.split(|byte| *byte == b'/').enumerate() {
        if index > 0 {
            write(b"/");
        }
        let (name, parameters) = before(segment, b';');
        write(name);
        if name.len() < segment.len() {
            write(b";");
            write_parameters(parameters, b';', &mut write);
        }
    }
}

/// Writes `query` with each value replaced: keys stay, a parameter without `=` is taken for a value.
pub fn write_query(query: &[u8], mut write: impl FnMut(&[u8])) {
    write_parameters(query, b'&', &mut write);
}

fn write_parameters(parameters: &[u8], separator: u8, write: &mut impl FnMut(&[u8])) {
    for (index, parameter) in parameters.split(|byte| *byte == separator).enumerate() {
        if index > 0 {
            write(&[separator]);
        }
        if let Some(equals) = parameter.iter().position(|byte| *byte == b'=') {
            write(&parameter[..=equals]);
        }
        if !parameter.is_empty() {
            write(REDACTED.as_bytes());
        }
    }
}

/// What stands before and after the first `separator`; nothing after when there is none.
fn before(bytes: &[u8], separator: u8) -> (&[u8], &[u8]) {
    // Mostly there is none, and `contains` looks at many bytes at once.
    match bytes.contains(&separator).then(|| bytes.iter().position(|byte| *byte == separator)).flatten() {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

/// The rest after `scheme://`, if the target starts like that.
fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    let colon = target.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))?;
    target[colon..].strip_prefix(b"://").filter(|_| colon > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(method: &str, target: &str, authority: Option<&str>, path: &str, query: &str) {
        let parts = split_target(method.as_bytes(), target.as_bytes());
        let (mut shown_path, mut shown_query) = (Vec::new(), Vec::new());
        write_path(parts.path, |bytes| shown_path.extend_from_slice(bytes));
        write_query(parts.query, |bytes| shown_query.extend_from_slice(bytes));
        let shown = (
            parts.authority.map(String::from_utf8_lossy),
            String::from_utf8_lossy(&shown_path).into_owned(),
            String::from_utf8_lossy(&shown_query).into_owned(),
        );
        assert_eq!(
            shown,
            (authority.map(Into::into), path.to_owned(), query.to_owned()),
            "{method} {target}"
        );
    }

    #[test]
    fn targets_lose_their_values() {
        check("GET", "/", None, "/", "");
        check("GET", "/a%20b/c?", None, "/a%20b/c", "");
        check("GET", "/a?x=1&y=2", None, "/a", "x=REDACTED&y=REDACTED");
        check("GET", "/a?token", None, "/a", "REDACTED");
        check("GET", "/a?x=1&&y", None, "/a", "x=REDACTED&&REDACTED");
        check("GET", "/a?x=1=2?3", None, "/a", "x=REDACTED");
        check("GET", "/a?x=", None, "/a", "x=REDACTED");
        check("GET", "/a?x=1#access_token=2", None, "/a", "x=REDACTED");
        check(
            "GET",
            "/a;jsessionid=1/b;v=2;3?q=4",
            None,
            "/a;jsessionid=REDACTED/b;v=REDACTED;REDACTED",
            "q=REDACTED",
        );
        check("GET", "/a;", None, "/a;", "");
        check("GET", "http://u:p@host:81/a?b=c", Some("host:81"), "/a", "b=REDACTED");
        check("GET", "http://host", Some("host"), "/", "");
        check("GET", "http://host?a=b", Some("host"), "/", "a=REDACTED");
        check("GET", "/r?to=http://x/", None, "/r", "to=REDACTED");
        check("GET", "/http://x/", None, "/http://x/", "");
        check("OPTIONS", "*", None, "*", "");
        check("CONNECT", "u:p@host:443", Some("host:443"), "", "");
        check("GET", "u:p@host", None, "host", "");
        check("GET", "://x", None, "://x", "");
        check("GET", "", None, "/", "");
    }

    proptest! {
        #[test]
        fn no_value_survives(key in "[a-z]{1,8}", value in "[0-9]{9,12}", path in "(/[a-z]{1,5}){1,4}") {
            let target = format!("http://me:{value}@host{path};s={value}/x?{key}={value}&{value}#{value}");
            let parts = split_target(b"GET", target.as_bytes());
            let mut shown = parts.authority.unwrap().to_vec();
            write_path(parts.path, |bytes| shown.extend_from_slice(bytes));
            write_query(parts.query, |bytes| shown.extend_from_slice(bytes));
            let shown = String::from_utf8(shown).unwrap();
            prop_assert!(!shown.contains(&value), "{shown}");
            prop_assert!(shown.contains(&key), "{shown}");
        }
    }
}
