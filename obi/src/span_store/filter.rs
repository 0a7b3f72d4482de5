//! Which spans a reader wants to see.
//!
//! In: a span. Out: yes or no. Refuses to know where the wishes come from.

use crate::span::grpc::Code;
use crate::span::{Answer, Detail, Span, SpanKind, Status};

/// A condition on `http.response.status_code`, or on `rpc.response.status_code` of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFilter {
    /// Exactly this code.
    Code(u16),
    /// Codes with this first digit.
    Class(u8),
    /// This status of a call.
    Rpc(Code),
}

/// Conditions that must all hold; an absent one always does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `service.name`.
    pub service: Option<String>,
    /// Server or client.
    pub kind: Option<SpanKind>,
    /// `http.request.method`, or `rpc.method` of a call.
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
    /// Ended then or later, nanoseconds since the Unix epoch.
    pub from: Option<u64>,
    /// Ended before then, nanoseconds since the Unix epoch.
    pub to: Option<u64>,
}

impl Filter {
    /// Whether a span fulfils every condition.
    #[must_use]
    pub fn matches(&self, span: &Span) -> bool {
        fn holds<T>(condition: Option<&T>, test: impl FnOnce(&T) -> bool) -> bool {
            condition.is_none_or(test)
        }
        let http = span.detail.carrier();
        holds(self.trace_id.as_ref(), |id| *id == span.trace_id)
            && holds(self.kind.as_ref(), |kind| *kind == span.kind)
            && holds(self.error.as_ref(), |error| *error == (span.status() == Status::Error))
            && holds(self.min_duration.as_ref(), |least| span.end.saturating_sub(span.start) >= *least)
            && holds(self.from.as_ref(), |time| span.end >= *time)
            && holds(self.to.as_ref(), |time| span.end < *time)
            && holds(self.status.as_ref(), |status| status.matches(span.detail.answer()))
            && holds(self.service.as_ref(), |name| *name == span.service.name)
            && holds(self.method.as_ref(), |method| method == method_of(&span.detail))
            && holds(self.route.as_ref(), |route| http.is_some_and(|http| **route == *http.route))
            && holds(self.path.as_ref(), |prefix| {
                http.is_some_and(|http| http.path.starts_with(prefix.as_str()))
            })
    }
}

fn method_of(detail: &Detail) -> &str {
    match detail {
        Detail::Http(http) => http.method,
        Detail::Rpc(rpc) => &rpc.method,
        Detail::WebSocket(_) => "",
        Detail::Database(database) => &database.operation,
        Detail::Sdk(_) => "",
    }
}

impl StatusFilter {
    fn matches(self, answer: Answer) -> bool {
        match (self, answer) {
            (Self::Code(code), Answer::Http(status)) => status == code,
            (Self::Class(digit), Answer::Http(status)) => status / 100 == u16::from(digit),
            (Self::Rpc(code), Answer::Rpc(status)) => status == code,
            _ => false,
        }
    }
}
