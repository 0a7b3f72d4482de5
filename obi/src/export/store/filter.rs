//! Which spans a reader wants to see.
//!
//! In: a span. Out: yes or no. Refuses to know where the wishes come from.

use crate::span::{Detail, Span, SpanKind, Status};

/// A condition on `http.response.status_code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFilter {
    /// Exactly this code.
    Code(u16),
    /// Codes with this first digit.
    Class(u8),
}

/// Conditions that must all hold; an absent one always does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `service.name`.
    pub service: Option<String>,
    /// Server or client.
    pub kind: Option<SpanKind>,
    /// `http.request.method`.
    pub method: Option<String>,
    /// `http.route` or `url.template`.
    pub route: Option<String>,
    /// How `url.path` begins.
    pub path: Option<String>,
    /// Response status.
    pub status: Option<StatusFilter>,
    /// Whether the span's status is an error.
    pub error: Option<bool>,
    /// Trace.
    pub trace_id: Option<[u8; 16]>,
    /// Shortest duration, nanoseconds.
    pub min_duration: Option<u64>,
}

impl Filter {
    /// Whether a span fulfils every condition.
    #[must_use]
    pub fn matches(&self, span: &Span) -> bool {
        fn holds<T>(condition: Option<&T>, test: impl FnOnce(&T) -> bool) -> bool {
            condition.is_none_or(test)
        }
        let Detail::Http(http) = &span.detail;
        holds(self.trace_id.as_ref(), |id| *id == span.trace_id)
            && holds(self.kind.as_ref(), |kind| *kind == span.kind)
            && holds(self.error.as_ref(), |error| *error == (span.status() == Status::Error))
            && holds(self.min_duration.as_ref(), |least| span.end.saturating_sub(span.start) >= *least)
            && holds(self.status.as_ref(), |status| status.matches(http.status))
            && holds(self.service.as_ref(), |name| *name == span.service.name)
            && holds(self.method.as_ref(), |method| method == http.method)
            && holds(self.route.as_ref(), |route| **route == *http.route)
            && holds(self.path.as_ref(), |prefix| http.path.starts_with(prefix.as_str()))
    }
}

impl StatusFilter {
    fn matches(self, status: Option<u16>) -> bool {
        match self {
            Self::Code(code) => status == Some(code),
            Self::Class(digit) => status.is_some_and(|status| status / 100 == u16::from(digit)),
        }
    }
}
