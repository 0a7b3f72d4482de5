//! How much of the time of requests is explained, where calls are all that is known of it.
//!
//! Spans of calls say when these were open; what the server spans say must be the union of that.

use std::collections::HashMap;

use integration::span::{Kind, Span};

/// Of the requests of a service.
#[derive(Debug, Default)]
pub(super) struct Explained {
    /// Requests whose thread is known.
    booked: usize,
    /// Others: what they say is what their calls say.
    exact: usize,
    /// It is less: a call has found its parent behind its parent's end.
    late: usize,
    /// Nanoseconds of all requests, and of these not explained.
    whole: u64,
    elsewhere: u64,
}

/// Looks at all requests of a service.
///
/// # Panics
/// When parts are not the whole, or more than calls have taken.
#[track_caller]
pub(super) fn explained(spans: &[Span], service: &str) -> Explained {
    let of_service = || spans.iter().filter(|span| span.service.name == service);
    let mut calls = HashMap::<&str, Vec<(u64, u64)>>::new();
    for call in of_service().filter(|span| span.kind == Kind::Client) {
        if let Some(parent) = &call.parent_span_id {
            calls.entry(parent).or_default().push((call.start_unix_nano.get(), call.end_unix_nano.get()));
        }
    }
    let mut sum = Explained::default();
    // Before Linux 5.17 nothing is known of time.
    let has_parts = |span: &&Span| span.kind == Kind::Server && span.number("obi.elsewhere_ns").is_some();
    for span in of_service().filter(has_parts) {
        let part = |name: &str| span.number(&format!("obi.{name}_ns")).unwrap_or(0);
        let (start, end) = (span.start_unix_nano.get(), span.end_unix_nano.get());
        let parts: u64 = ["queue_wait", "cpu", "runqueue", "blocked", "elsewhere"].map(part).iter().sum();
        assert_eq!(parts, end - start, "{span:?}");
        let open =
            union(calls.get(&*span.span_id).cloned().unwrap_or_default(), start + part("queue_wait"), end);
        let said = part("blocked.downstream");
        sum.whole += end - start;
        sum.elsewhere += part("elsewhere");
        if span.number("obi.cpu_ns").is_some() {
            assert_eq!(said, 0, "its thread is known: {span:?}");
            sum.booked += 1;
        } else {
            assert!(said <= open, "{said} of {open}: {span:?}");
            sum.exact += usize::from(said == open);
            sum.late += usize::from(said < open);
        }
    }
    sum
}

/// How long at least one of these was open within a time.
fn union(mut intervals: Vec<(u64, u64)>, from: u64, until: u64) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut at) = (0, from);
    for (start, end) in intervals {
        let (start, end) = (start.max(at), end.min(until));
        if start < end {
            sum += end - start;
            at = end;
        }
    }
    sum
}

impl Explained {
    /// At least 95 of a hundred requests say all that their calls say.
    #[track_caller]
    pub(super) fn check(&self, what: &str) {
        assert!(self.booked + self.exact > 0, "{what}: no request says where its time went");
        assert!(self.late * 20 <= self.exact + self.late, "{what}: {self:?}");
    }
}

impl std::fmt::Display for Explained {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { booked, exact, late, whole, elsewhere } = self;
        let share = 100.0 * (1.0 - *elsewhere as f64 / (*whole).max(1) as f64);
        write!(out, "{share:.1} % of the time explained; {booked} by threads, {exact} by calls, {late} late")
    }
}
