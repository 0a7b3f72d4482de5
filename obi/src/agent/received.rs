//! The pipeline's end of what others send: spans of SDKs beside captured ones.
//!
//! In: batches of received spans, captured spans as they are counted. Out: each event once in the store and in exports.
//! Counts nothing but what became of received spans: requests are counted from what was captured, or by
//! [`super::foreign`].

use std::sync::Arc;

use super::span_pipeline::SpanPipeline;
use crate::clock::monotonic_ns;
use crate::export::otlp::sample::Kept;
use crate::receive::join::{Captured, Found, Joins, Key};
use crate::receive::{Batches, Counted, Counts, Received, Role, View};
use crate::span::attribute::{EXCHANGE_ID, QUEUE_WAIT};
use crate::span::{AttributeValue, Detail, Span, SpanKind, Twin};

/// Batches taken before captured spans are looked at again.
const BATCHES: usize = 16;

/// State of it; there is none where nothing is received.
#[derive(Debug)]
pub(super) struct Intake {
    batches: Batches,
    counts: Arc<Counts>,
    joins: Joins<Held>,
}

/// A captured span that is to be exported, unless an SDK reports the same event.
#[derive(Debug)]
struct Held {
    span: Span,
    kept: Kept,
}

/// What becomes of a captured span's export.
pub(super) struct Waiting {
    held: Option<Held>,
    key: Option<Key>,
    captured: Captured,
    now: u64,
}

impl Intake {
    pub(super) fn new(batches: Batches, counts: Arc<Counts>) -> Self {
        Self { batches, counts, joins: Joins::default() }
    }

    pub(super) fn view(&self) -> View {
        let (waiting, held) = self.joins.counts();
        self.counts.view(waiting, held)
    }

    /// Looks at a captured span before it is kept and exported. What is not held back is for the caller to export.
    pub(super) fn look(&mut self, span: &Span, kept: Option<Kept>) -> (Waiting, Option<Kept>) {
        let now = monotonic_ns();
        let key = Key::of_captured(span);
        let may_be_below = span.kind == SpanKind::Client && span.parent_span_id.is_some();
        let is_held = (key.is_some() || may_be_below) && self.joins.holds(span.pid, now);
        let (held, kept) = match kept {
            Some(kept) if is_held => (Some(Held { span: span.clone(), kept }), None),
            kept => (None, kept),
        };
        let captured = Captured {
            sequence: 0,
            span_id: span.span_id,
            start: span.start,
            pid: span.pid,
            service: Arc::clone(&span.service),
            exchange_id: span.exchange_id.filter(|_| !matches!(span.detail, Detail::WebSocket(_))),
            queue_wait: (span.kind == SpanKind::Server).then_some(span.queue_wait),
        };
        (Waiting { held, key, captured, now }, kept)
    }

    /// The captured span is in the store, with this number.
    pub(super) fn stored(&mut self, waiting: Waiting, sequence: u64) {
        let Waiting { held, key, captured, now } = waiting;
        match (key, held) {
            (Some(key), held) => self.joins.captured(key, Captured { sequence, ..captured }, held, now),
            (None, Some(held)) => self.joins.hold(held, now),
            (None, None) => {}
        }
    }
}

impl SpanPipeline {
    /// Takes what was sent, and lets go of what has waited for long enough.
    pub(super) fn take_received(&mut self, is_last: bool) {
        let Some(mut intake) = self.intake.take() else { return };
        let now = monotonic_ns();
        let limit = if is_last { usize::MAX } else { BATCHES };
        for _ in 0..limit {
            let Ok(batch) = intake.batches.try_recv() else { break };
            for received in batch.spans {
                self.take_one(&mut intake, received, now);
            }
        }
        let found = if is_last { intake.joins.finish() } else { intake.joins.tick(now) };
        for found in found {
            match found {
                Found::Pair(pair, is_out) => self.take_pair(&intake, *pair, is_out),
                Found::Alone(received) => self.take_alone(&intake, *received),
                Found::Out(held) => {
                    let Held { mut span, kept } = *held;
                    span.parent_span_id = span.parent_span_id.map(|id| intake.joins.present_id(id));
                    self.span_export.push(&span, kept);
                }
            }
        }
        self.settle_foreign(is_last);
        self.intake = Some(intake);
    }

    fn take_one(&mut self, intake: &mut Intake, received: Received, now: u64) {
        match &self.foreign {
            // There is nothing captured to wait for.
            Some(foreign) if foreign.is_all() => return self.take_alone(intake, received),
            // Should its service be captured, that is known before it counts.
            Some(_) if received.request.is_some() && Key::of_received(&received).is_none() => {
                return intake.joins.wait(received, now);
            }
            _ => {}
        }
        if let Some(received) = intake.joins.received(received, now) {
            self.take_alone(intake, received);
        }
    }

    /// A span that is no captured one: counted where that is wanted, shown and passed on.
    fn take_alone(&mut self, intake: &Intake, mut received: Received) {
        let counts = self.count_foreign(&mut received);
        intake.counts.count(match received.role {
            Role::Internal => Counted::Internal,
            _ if counts => Counted::Span,
            _ => Counted::Uncaptured,
        });
        self.span_export.pass(&received, &[]);
        self.spare = self.store.push(received.span).or(self.spare.take());
        if counts && let Some(objectives) = &mut self.objectives {
            objectives.stored(&mut self.store);
        }
    }

    /// A span that is a captured one: the captured one takes its id and its parent, and leaves the export to it.
    fn take_pair(&mut self, intake: &Intake, (captured, received): (Captured, Received), is_out: bool) {
        intake.counts.count(Counted::Captured);
        if let Some(foreign) = &mut self.foreign {
            foreign.is_captured(&received.span);
        }
        let exchange = captured.exchange_id.unwrap_or_default();
        let mut more = Vec::new();
        let id = format_args!("{exchange:016x}").to_string();
        if captured.exchange_id.is_some() {
            more.push((EXCHANGE_ID, AttributeValue::Str(&id)));
        }
        if let Some(wait) = captured.queue_wait {
            more.push((QUEUE_WAIT, AttributeValue::Int(i64::try_from(wait).unwrap_or(i64::MAX))));
        }
        if is_out {
            // The agent did not know yet that this process has an SDK: its own span has left.
            more.push((DUPLICATE, AttributeValue::Str("certain")));
        }
        self.span_export.pass(&received, &more);
        let Span { span_id, parent_span_id, detail, .. } = *received.span;
        let Detail::Sdk(sdk) = detail else { return };
        self.store.change(captured.sequence, |span| {
            let former_id = std::mem::replace(&mut span.span_id, span_id);
            span.parent_span_id = parent_span_id.or(span.parent_span_id);
            span.twin = Some(Box::new(Twin { name: sdk.name, former_id }));
        });
    }
}

/// That the same event has gone out before: an attribute of our own.
const DUPLICATE: &str = "obi.duplicate";
