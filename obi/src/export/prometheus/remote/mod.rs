//! Metrics as remote write: what a scrape would get, in requests that the agent sends by itself.
//!
//! In: [`Metrics`], moment by moment. Out: packed requests of version 2, and the same content as version 1 for those
//! who want it. Refuses to know connections, answers and repetitions.
//!
//! - `writer`: families to requests, by the same walk along all families as the other formats. `own`: the agent's own
//!   families. `message`: what prost writes. `version1`: the older form.
//! - A series that is gone is reported once as ended, so that its last value does not stand for five minutes more; so
//!   are all at the agent's end. For that, what was written last is known: a number for each series, and the labels
//!   that the registry has anyway.

mod message;
mod own;
mod version1;
mod writer;

use std::sync::Arc;

use prost::Message as _;
use thiserror::Error;

pub(crate) use self::writer::Packed;
use self::writer::{Form, Moment, Seen, What, Writer};
use super::red::Walk;
use super::{agent, objective};
use crate::config::remote_write::RemoteWriteDestination;
use crate::export::{Metrics, Unseen};
use prometheus_client::registry::Registry;

/// Makes the requests to one destination, and remembers what it was sent.
#[derive(Debug)]
pub(crate) struct Remote {
    form: Form,
    /// When the agent's own counters began, nanoseconds since the Unix epoch.
    start: u64,
    last: Last,
}

/// What was written last.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// Milliseconds since the Unix epoch.
    time: i64,
    seen: Seen,
    /// What had these series, without what was counted.
    outline: Arc<Metrics>,
}

/// Requests are far smaller.
const UNPACKED_BYTES: usize = 64 << 20;

/// Why a request cannot be had in version 1.
#[derive(Debug, Error)]
pub(crate) enum UnreadableRequest {
    /// It is not packed as it should be.
    #[error("failed to unpack a request of remote write: {0}")]
    Packing(#[from] snap::Error),
    /// It says to be larger than any.
    #[error("failed to unpack a request of remote write: {0} bytes")]
    TooLarge(usize),
    /// It is no request.
    #[error("failed to decode a request of remote write: {0}")]
    Message(#[from] prost::DecodeError),
}

/// The same request in version 1, packed.
///
/// # Errors
/// When it is none.
pub(crate) fn version1(packed: &[u8]) -> Result<Vec<u8>, UnreadableRequest> {
    // It may come from a file.
    let length = snap::raw::decompress_len(packed)?;
    if length > UNPACKED_BYTES {
        return Err(UnreadableRequest::TooLarge(length));
    }
    let request = message::Request::decode(&*snap::raw::Decoder::new().decompress_vec(packed)?)?;
    Ok(writer::pack(&version1::of(&request).encode_to_vec()))
}

impl Remote {
    /// `host` is the name of this machine, `start` when counting began, nanoseconds since the Unix epoch.
    pub(crate) fn new(destination: &RemoteWriteDestination, host: &str, start: u64) -> Self {
        let form = Form {
            labels: destination.series_labels(host),
            buckets: destination.histograms,
            hasher: foldhash::quality::RandomState::default(),
        };
        Self { form, start, last: Last::default() }
    }

    /// Goes on where another one ended, if series have the same names in both; else that one is left as it is.
    pub(crate) fn succeed(&mut self, former: &mut Self) {
        if self.form.labels == former.form.labels && self.form.buckets == former.form.buckets {
            self.form.hasher = former.form.hasher.clone();
            self.last = std::mem::take(&mut former.last);
        }
    }

    /// Everything as it is `now` (milliseconds since the Unix epoch); what is gone since the last time has ended.
    pub(crate) fn write(&mut self, metrics: &Arc<Metrics>, now: i64) -> Vec<Packed> {
        self.write_as(What::Values, metrics, now)
    }

    /// The same, and that everything ends with it.
    pub(crate) fn write_last(&mut self, metrics: &Arc<Metrics>, now: i64) -> Vec<Packed> {
        self.write_as(What::LastValues, metrics, now)
    }

    /// That everything that was written has ended.
    pub(crate) fn end(&mut self, now: i64) -> Vec<Packed> {
        let Last { outline, seen, time } = std::mem::take(&mut self.last);
        if seen.series.is_empty() {
            return Vec::new();
        }
        self.walk(What::Ended, &outline, &Last { time, ..Last::default() }, now).0
    }

    fn write_as(&mut self, what: What<'_>, metrics: &Arc<Metrics>, now: i64) -> Vec<Packed> {
        let (mut requests, seen) = self.walk(what, metrics, &self.last, now);
        if self.last.seen.series.iter().any(|number| !seen.series.contains(number)) {
            requests.extend(self.walk(What::EndedSince(&seen), &self.last.outline, &Last::default(), now).0);
        }
        self.last = match what {
            What::LastValues => Last::default(),
            _ => Last { time: now, seen, outline: Arc::new(metrics.outline()) },
        };
        requests
    }

    fn walk(&self, what: What<'_>, metrics: &Arc<Metrics>, last: &Last, now: i64) -> (Vec<Packed>, Seen) {
        let moment = Moment { now, before: last.time, seen: &last.seen, what };
        let mut writer = Writer::new(&self.form, moment);
        // Values are shown as they are: zeros of new series come beside them.
        let unseen = Unseen(None);
        while Walk::default().write(metrics, unseen, &mut writer, usize::MAX) {}
        let mut registry = Registry::default();
        registry.register_collector(Box::new(objective::Collector { metrics: Arc::clone(metrics) }));
        // These counts outlive the agent.
        own::write(&registry, None, &mut writer);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(agent::Collector { metrics: Arc::clone(metrics), unseen }));
        own::write(&registry, Some(self.start), &mut writer);
        writer.finish()
    }
}

#[cfg(test)]
mod tests;
