//! Which request methods have a name of their own.
//!
//! In: a method as sent. Out: `http.request.method`: the method when it is known, else `_OTHER`, so that a
//! client cannot make series by inventing methods. Refuses to know what methods do.

/// `http.request.method` of a method that is not known.
pub const OTHER: &str = "_OTHER";

/// RFC 9110 §9, PATCH (RFC 5789) and QUERY: the semantic conventions' list. The most frequent first.
const DEFAULT: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "CONNECT", "TRACE", "QUERY"];

/// The known methods; comparison is case-sensitive, as the conventions demand.
#[derive(Debug, Clone)]
pub struct KnownMethods(Vec<&'static str>);

impl Default for KnownMethods {
    fn default() -> Self {
        Self(DEFAULT.to_vec())
    }
}

impl KnownMethods {
    /// From the value of `OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS`, a comma-separated list that replaces
    /// the default one. An empty list is no list. To be made once at start: unusual names live for ever.
    #[must_use]
    pub fn from_list(list: &str) -> Self {
        let methods: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if methods.is_empty() {
            return Self::default();
        }
        let known = |name: &str| DEFAULT.into_iter().find(|method| *method == name);
        Self(methods.into_iter().map(|name| known(name).unwrap_or_else(|| name.to_owned().leak())).collect())
    }

    /// The method's own name, or [`OTHER`].
    #[must_use]
    pub fn classify(&self, method: &str) -> &'static str {
        self.0.iter().copied().find(|known| *known == method).unwrap_or(OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str, method: &str, expected: &str) {
        assert_eq!(KnownMethods::from_list(list).classify(method), expected, "`{method}` with list `{list}`");
    }

    #[test]
    fn methods_are_known_or_other() {
        for method in DEFAULT {
            check("", method, method);
        }
        check("", "get", OTHER);
        check("", "PROPFIND", OTHER);
        check("", "", OTHER);
        check(" , ", "GET", "GET");
        check("GET, PROPFIND", "PROPFIND", "PROPFIND");
        check("GET, PROPFIND", "GET", "GET");
        check("GET,PROPFIND", "POST", OTHER);
    }
}
