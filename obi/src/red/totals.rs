//! What is counted per service, whatever happens to its series.
//!
//! In: spans. Out: running totals. Refuses to know labels and limits.

use std::sync::Arc;

use super::histogram::Buckets;
use super::took::Took;
use crate::counter::Counter;
use crate::span::{Detail, Service, Span, SpanKind};

/// `obi.parent.evidence` by value.
pub const EVIDENCE: [&str; 3] = ["certain", "strong", "unknown"];

/// Totals of one service.
#[derive(Debug, Clone)]
pub struct ServiceTotals {
    /// The service, as its latest span has it.
    pub service: Arc<Service>,
    /// Server spans.
    pub server_spans: Counter,
    /// Client spans.
    pub client_spans: Counter,
    /// Of the server spans, then of the client spans: those whose request head was not seen whole.
    pub truncated_heads: [Counter; 2],
    /// By how sure their parents are, in the order of [`EVIDENCE`].
    pub parents: [Counter; EVIDENCE.len()],
    /// Queue wait of its server spans, with [`super::QUEUE_WAIT_BOUNDS`]. Born with `server_spans`.
    pub queue_wait: Buckets,
    /// Durations of the HTTP requests that it answered without an error, since its series exist; shared with snapshots.
    pub took: Option<Arc<Took>>,
    /// The end of its first span, nanoseconds since the Unix epoch.
    pub created: u64,
    /// It had no span for so long that its series have expired.
    pub idle: bool,
    pub(super) touched: u64,
}

impl ServiceTotals {
    pub(super) fn new(service: Arc<Service>, created: u64) -> Self {
        let none = Counter::default();
        Self {
            service,
            server_spans: none,
            client_spans: none,
            truncated_heads: [none; 2],
            parents: [none; EVIDENCE.len()],
            queue_wait: Buckets::default(),
            took: None,
            created,
            idle: false,
            touched: 0,
        }
    }

    /// Counts a span, by its kind.
    pub(super) fn count(&mut self, span: &Span, born: u64) {
        match span.kind {
            SpanKind::Server => {
                self.server_spans.add(1, born);
                if matches!(span.detail, Detail::Http(_)) && span.error_type.is_empty() {
                    let duration = span.end.saturating_sub(span.start);
                    Arc::make_mut(self.took.get_or_insert_default()).observe(duration);
                }
            }
            SpanKind::Client => self.client_spans.add(1, born),
            SpanKind::Internal => {}
        }
    }
}
