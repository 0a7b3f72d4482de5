//! The bounded queue in front of a lane.
//!
//! In: [`Payload`]s. Out: the same, in order. What finds no room is counted as lost and dropped at once: the caller
//! never waits. The bound covers what is under way, too: room is given back when a payload is settled.

use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::sync::mpsc;

use super::meter::{Lost, Meter};

/// An export request in bytes. Of spans and metrics, two of them in a row are again a request, with the content of
/// both: that is how protobuf defines repeated fields. Profiles go alone: their indices are those of one dictionary.
#[derive(Debug, Clone)]
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    pub(super) n_items: u64,
    /// What is appended to the URL; then it is a request of its own.
    pub(super) query: Option<Arc<str>>,
}

impl Payload {
    /// A request without a query.
    pub(super) fn new(bytes: impl Into<Bytes>, n_items: u64) -> Self {
        Self { bytes: bytes.into(), n_items, query: None }
    }
}

/// Largest payload: room is left for gRPC's own framing below the 4 MiB that servers take at most.
pub(super) const PAYLOAD_BYTES: usize = (4 << 20) - (64 << 10);

/// The filling end.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::UnboundedSender<Payload>,
    meter: Arc<Meter>,
    limits: Limits,
}

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) items: u64,
    pub(super) bytes: u64,
}

/// The emptying end.
pub(super) type Receiver = mpsc::UnboundedReceiver<Payload>;

impl Queue {
    /// The channel itself knows no bound; `limits` do, and this is its only sender.
    pub(super) fn new(meter: Arc<Meter>, limits: Limits) -> (Self, Receiver) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, meter, limits }, receiver)
    }

    pub(super) fn push(&self, payload: &Payload) {
        let Payload { bytes, n_items, .. } = payload;
        let meter = &self.meter;
        let size = bytes.len() as u64;
        if bytes.len() > PAYLOAD_BYTES {
            return meter.lose(Lost::TooLarge, *n_items);
        }
        // Others only take away, so nothing can grow between this look and the addition.
        let (queued_items, queued_bytes) = meter.queued();
        if queued_items + n_items > self.limits.items || queued_bytes + size > self.limits.bytes {
            return meter.lose(Lost::QueueFull, *n_items);
        }
        meter.queue(*n_items, size);
        if self.sender.send(payload.clone()).is_err() {
            // The lane was given up at the end of the agent.
            meter.lose(Lost::Shutdown, *n_items);
            release(meter, payload);
        }
    }
}

/// Gives room back when a payload has been counted as sent or lost.
pub(super) fn release(meter: &Meter, payload: &Payload) {
    meter.release(payload.n_items, payload.bytes.len() as u64);
}

#[cfg(test)]
mod tests {
    use super::super::meter::Accounts;
    use super::*;
    use crate::config::export::Signal;

    fn payload(n_items: u64, size: usize) -> Payload {
        Payload::new(vec![0; size], n_items)
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut accounts = Accounts::new(1);
        let meter = Arc::new(accounts.meter(&"d".into(), Signal::Traces));
        let (queue, mut receiver) = Queue::new(Arc::clone(&meter), Limits { items: 10, bytes: 100 });
        let check = |pushed: Payload, queued: u64, lost: [u64; 2]| {
            queue.push(&pushed);
            let state = accounts.all[0].state();
            assert_eq!(state.queued_items, queued);
            assert_eq!([Lost::QueueFull, Lost::TooLarge].map(|reason| state.lost[reason as usize].1), lost);
        };
        check(payload(4, 50), 4, [0, 0]);
        check(payload(1, 51), 4, [1, 0]);
        check(payload(7, 1), 4, [8, 0]);
        check(payload(6, 50), 10, [8, 0]);
        check(payload(1, 0), 10, [9, 0]);
        check(payload(2, PAYLOAD_BYTES + 1), 10, [9, 2]);
        release(&meter, &receiver.try_recv().unwrap());
        check(payload(4, 50), 10, [9, 2]);
        drop(receiver);
        release(&meter, &payload(10, 100));
        check(payload(3, 1), 0, [9, 2]);
        assert_eq!(accounts.all[0].state().lost[Lost::Shutdown as usize].1, 3);
    }
}
