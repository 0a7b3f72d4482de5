//! Discovery rules: patterns that pick processes.
//!
//! In: a rule as written. Out: compiled patterns that answer "does this match". Refuses to know processes.

use serde::de::{Deserializer, Error};
use serde::ser::{SerializeStruct as _, Serializer};
use serde::{Deserialize, Serialize};

use super::value::{Scalar, scalar, text};

/// One rule of `discover.include` or `discover.exclude`: it matches a process when everything that it names does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Glob on the path of the executable. Example: `/usr/sbin/nginx`, `*/bin/shop-*`.
    pub executable: Option<Pattern>,
    /// Glob on the service name. Example: `shop-*`.
    pub service: Option<Pattern>,
    /// A TCP port that the process listens on. Example: `8080`, `8000-8099`.
    pub port: Option<PortRange>,
    /// Glob on the path of the control group. Example: `/system.slice/*`.
    pub cgroup: Option<Pattern>,
}

/// A glob: `*` (any characters, also `/`), `?`, `[a-z]`, `{a,b}`. Compared by its text.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    glob: globset::GlobMatcher,
}

/// Ports from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl Pattern {
    /// Whether the whole text matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.glob.is_match(text)
    }

    fn parse(text: &str) -> Option<Self> {
        let glob = (1..=4096).contains(&text.len()).then(|| globset::Glob::new(text).ok()).flatten()?;
        Some(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }
}

impl PortRange {
    /// Whether the port lies within.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(Self { first, last })
    }
}

// === as written ===

/// The shape in the file; `deny_unknown_fields` and the non-empty check make it a [`Rule`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    executable: Option<Pattern>,
    service: Option<Pattern>,
    port: Option<PortRange>,
    cgroup: Option<Pattern>,
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { executable, service, port, cgroup } = Written::deserialize(deserializer)?;
        if executable.is_none() && service.is_none() && port.is_none() && cgroup.is_none() {
            return Err(D::Error::custom(
                "matches everything, expected at least one of executable, service, port, cgroup",
            ));
        }
        Ok(Self { executable, service, port, cgroup })
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rule = serializer.serialize_struct("Rule", 4)?;
        let text = |pattern: &Option<Pattern>| pattern.as_ref().map(|pattern| pattern.text.clone());
        rule.serialize_field("executable", &text(&self.executable))?;
        rule.serialize_field("service", &text(&self.service))?;
        rule.serialize_field("port", &self.port.map(|range| format!("{}-{}", range.first, range.last)))?;
        rule.serialize_field("cgroup", &text(&self.cgroup))?;
        rule.end()
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a glob, such as */bin/shop-*";
        let written = text(deserializer, EXPECTED)?;
        Self::parse(&written)
            .ok_or_else(|| D::Error::custom(format_args!("is not a valid glob, expected {EXPECTED}")))
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let range = match scalar(deserializer)? {
            Some(Scalar::Number(number)) => Self::parse(&number.to_string()),
            Some(Scalar::Text(text)) => Self::parse(&text),
            Some(Scalar::Truth(_)) | None => None,
        };
        range.ok_or_else(|| {
            D::Error::custom(
                "is not valid, expected a port from 1 to 65535 or a range, such as 8080 or 8000-8099",
            )
        })
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_text() {
        fn check(pattern: &str, text: &str, expected: bool) {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(text), expected, "{pattern} on {text}");
        }
        check("/usr/sbin/nginx", "/usr/sbin/nginx", true);
        check("nginx", "/usr/sbin/nginx", false);
        check("*/nginx", "/usr/sbin/nginx", true);
        check("/usr/*", "/usr/sbin/nginx", true);
        check("shop-?", "shop-1", true);
        check("shop-?", "shop-12", false);
        check("{cart,stock}", "stock", true);
        check("/system.slice/*", "/user.slice/user-0.slice", false);
    }

    #[test]
    fn a_port_range_has_both_ends() {
        fn check(text: &str, expected: Option<(u16, u16)>) {
            assert_eq!(PortRange::parse(text).map(|range| (range.first, range.last)), expected, "{text}");
        }
        check("80", Some((80, 80)));
        check("8000-8099", Some((8000, 8099)));
        check("8000 - 8099", Some((8000, 8099)));
        check("0", None);
        check("90-80", None);
        check("65536", None);
        check("http", None);
        check("", None);
        let range = PortRange::parse("80-82").unwrap();
        assert!(range.contains(80) && range.contains(82) && !range.contains(79) && !range.contains(83));
    }
}
