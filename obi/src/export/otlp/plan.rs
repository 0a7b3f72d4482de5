//! From the configuration to lanes, queues and what fills them.
//!
//! In: destinations, accounts of those before. Out: a [`Plan`]; certificates are read and folders are made here, while
//! that is allowed. Refuses to know what is sent.

use std::sync::Arc;

use super::chunk::Chunk;
use super::lane::{Lane, Settings};
use super::meter::Meter;
use super::queue::{Limits, Queue, Receiver};
use super::remote::{self, Writing, Writings};
use super::sample::Sampler;
use super::spooling::Spooling;
use super::transport::{Language, Transport};
use super::{Accounts, CHUNK_ITEMS, Exporter, OtlpError, Plan, ProfileFormat, SpanExport, tls};
use crate::config::export::{Export, OtlpDestination, Signal};
use crate::config::spool::{Mode, Spool};
use crate::export::spool::{self, About, Bounds};

/// Opens the spool where it is wanted, or goes on with the one that is open. One that cannot be used is said, and the
/// agent goes on without.
fn open_spool(accounts: &mut Accounts, config: &Spool) {
    let bounds = Bounds { directory: config.directory.clone(), bytes: config.bytes, max_age: config.max_age };
    if config.bytes == 0 {
        (accounts.spool, accounts.is_spool_usable) = (None, None);
        return;
    }
    if accounts.spool.as_ref().is_some_and(|spool| spool.rebound(&bounds)) {
        return;
    }
    accounts.spool = spool::Spool::open(bounds)
        .inspect_err(|error| tracing::warn!("export.spool: {error}; what is not taken waits in memory only"))
        .ok();
    accounts.is_spool_usable = Some(accounts.spool.is_some());
}

impl Plan {
    /// Reads certificates and makes the queues. `start` is when counting began, ns since the Unix epoch.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn new(export: &Export, start: u64) -> Result<Self, OtlpError> {
        Self::after(Accounts::new(start), export)
    }

    /// The same in the place of an earlier plan, whose counts go on.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn after(mut accounts: Accounts, export: &Export) -> Result<Self, OtlpError> {
        open_spool(&mut accounts, &export.spool);
        let mut lanes = Vec::new();
        let (mut spans, mut metrics, mut profiles, mut logs) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for destination in &export.otlp {
            let name: Arc<str> = destination.label().into();
            for signal in Signal::ALL {
                if signal == Signal::Logs && !accounts.has_logs {
                    continue;
                }
                let Some(transport) = transport(destination, signal, &name)? else { continue };
                let (queue, end) = queue(destination, accounts.meter(&name, signal));
                let spooling = end.spooling(&accounts, &export.spool, &transport);
                match signal {
                    Signal::Traces => spans.push(queue),
                    Signal::Metrics => metrics.push((destination.histograms, queue)),
                    Signal::Profiles => profiles.push((ProfileFormat::Otlp, queue)),
                    Signal::Logs => logs.push(queue),
                }
                lanes.push(end.lane(transport, settings(destination, signal), spooling));
            }
        }
        for pyroscope in &export.pyroscope {
            let (destination, signal) = (pyroscope.connection(), Signal::Profiles);
            let name: Arc<str> = pyroscope.label().into();
            let Some(url) = pyroscope.ingest() else { continue };
            let transport = connected(&destination, signal, &name, &url)?.speaking(Language::Pyroscope);
            let (queue, end) = queue(&destination, accounts.meter(&name, signal));
            profiles.push((ProfileFormat::Pyroscope, queue));
            let spooling = end.spooling(&accounts, &export.spool, &transport);
            lanes.push(end.lane(transport, settings(&destination, signal), spooling));
        }
        let mut writings = Writings::default();
        for remote_write in &export.remote_write {
            let (destination, signal) = (remote_write.connection(), Signal::Metrics);
            let name: Arc<str> = remote_write.label().into();
            let Some(url) = &remote_write.url else { continue };
            let transport = connected(&destination, signal, &name, url)?.speaking(Language::RemoteWrite);
            let (queue, end) = queue(&destination, accounts.meter(&name, signal));
            writings.0.push(Writing::new(remote_write, accounts.start, queue));
            let spooling = end.spooling(&accounts, &export.spool, &transport);
            lanes.push(end.lane(transport, one_by_one(settings(&destination, signal)), spooling));
        }
        accounts.tell_of_others();
        let smallest = export.otlp.iter().map(|destination| u64::from(destination.batch_items)).min();
        let limit = smallest.unwrap_or(CHUNK_ITEMS).min(CHUNK_ITEMS);
        let span_export = SpanExport {
            sampler: Sampler::new(export.sampling),
            chunk: (!spans.is_empty()).then(|| Chunk::new(limit)),
            queues: spans,
            accounts: accounts.all.clone(),
            is_spool_usable: accounts.is_spool_usable,
            are_linked: false,
        };
        let retry_for = export.otlp.iter().map(|destination| destination.retry_for);
        let pyroscopes = export.pyroscope.iter().map(|destination| destination.retry_for);
        let retry_for = retry_for.chain(pyroscopes).chain(remote::retry_for(&export.remote_write));
        let retry_for = retry_for.max().unwrap_or_default();
        Ok(Self { lanes, span_export, metrics, profiles, logs, writings, accounts, retry_for })
    }

    /// What the plan after this one goes on with.
    #[must_use]
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Starts the lanes on the runtime. The [`SpanExport`] goes to the pipeline.
    #[must_use]
    pub fn start(self) -> (SpanExport, Exporter) {
        let Self { lanes, span_export, metrics, profiles, logs, writings, accounts, retry_for } = self;
        let meters = lanes.iter().map(|lane| Arc::clone(&lane.meter)).collect();
        let lanes = lanes.into_iter().map(Lane::run).collect();
        let start = accounts.start;
        (span_export, Exporter { lanes, metrics, profiles, logs, writings, start, meters, retry_for })
    }
}

pub(super) fn transport(
    destination: &OtlpDestination,
    signal: Signal,
    name: &Arc<str>,
) -> Result<Option<Transport>, OtlpError> {
    let url = destination.url(signal);
    url.map(|url| connected(destination, signal, name, &url)).transpose()
}

fn connected(
    destination: &OtlpDestination,
    signal: Signal,
    name: &Arc<str>,
    url: &str,
) -> Result<Transport, OtlpError> {
    let url = url.parse().map_err(|reason| OtlpError::Url { destination: name.to_string(), reason })?;
    let tls = tls::configuration(destination, &url)
        .map_err(|reason| OtlpError::Tls { destination: name.to_string(), reason })?;
    Ok(Transport::new(destination, signal, url, Arc::new(tls)))
}

/// The end of a queue that a lane empties.
struct End {
    receiver: Receiver,
    meter: Arc<Meter>,
    /// Bytes that may wait.
    memory: u64,
}

fn queue(destination: &OtlpDestination, meter: Meter) -> (Queue, End) {
    let meter = Arc::new(meter);
    let limits = Limits { items: destination.queue_items.into(), bytes: destination.queue_bytes.into() };
    let (queue, receiver) = Queue::new(Arc::clone(&meter), limits);
    (queue, End { receiver, meter, memory: limits.bytes })
}

impl End {
    /// How the lane uses the spool, if there is one.
    fn spooling(&self, accounts: &Accounts, config: &Spool, transport: &Transport) -> Option<Spooling> {
        let (destination, signal) = self.meter.name();
        let about = About { destination: destination.to_owned(), signal: signal.to_owned() };
        let slot = accounts.spool.as_ref()?.shelf(&transport.address(), &about);
        self.meter.keep(&slot.counts);
        Some(Spooling {
            slot,
            always: config.mode == Mode::Always,
            drain: config.drain,
            // Points of metrics are refused where younger ones have been before.
            in_order: signal == Signal::Metrics.name(),
            is_packed: transport.is_otlp(),
            memory: self.memory / 2,
        })
    }

    fn lane(self, transport: Transport, settings: Settings, spooling: Option<Spooling>) -> Lane {
        let Self { receiver, meter, .. } = self;
        let (destination, signal) = meter.name();
        let name = format!("{destination} {signal}");
        Lane {
            receiver,
            transport,
            meter,
            settings,
            name,
            left_over: None,
            warned: None,
            rests: None,
            spooling,
        }
    }
}

fn settings(destination: &OtlpDestination, signal: Signal) -> Settings {
    let settings = Settings {
        batch_items: destination.batch_items.into(),
        batch_delay: destination.batch_delay,
        timeout: destination.timeout,
        retry_for: destination.retry_for,
    };
    // Two requests with profiles in a row are none: each has a dictionary of its own.
    if signal == Signal::Profiles { one_by_one(settings) } else { settings }
}

/// For requests that cannot be put together.
fn one_by_one(settings: Settings) -> Settings {
    Settings { batch_items: 1, ..settings }
}
