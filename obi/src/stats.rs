//! The agent about itself: what it received, what it lost and why, what it costs.
//!
//! In: counts from every stage, kept by the pipeline thread alone. Out: a [`Snapshot`].
//! Refuses to know exporters and what an event means.
#![forbid(unsafe_code)]

mod process;

use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};

use crate::capture::tls::view::View as Tls;
use crate::counter::Counter;
use crate::kubernetes::view::View as Kubernetes;
use crate::profile::view::View as Profile;
use crate::receive::View as Receive;

pub use process::Process;

/// Where in the flow something was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The kernel programs.
    Kernel,
    /// Reading the ring buffer.
    Capture,
    /// Parsing and pairing.
    Protocol,
    /// Making spans.
    Span,
}

impl Stage {
    /// All stages, in flow order.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Capture, Self::Protocol, Self::Span];

    /// The value of the `stage` label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Capture => "capture",
            Self::Protocol => "protocol",
            Self::Span => "span",
        }
    }
}

/// What was lost: the labels of `obi_lost_total`, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loss<'a> {
    /// Where.
    pub stage: Stage,
    /// Why, a word of the stage that counts it.
    pub reason: &'static str,
    /// `server`, `client`, or empty when unknown.
    pub side: &'static str,
    /// `service.name`, or empty when unknown.
    pub service_name: &'a str,
}

/// [`Loss`], owned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnedLoss {
    /// Where.
    pub stage: Stage,
    /// Why.
    pub reason: &'static str,
    /// Side, or empty.
    pub side: &'static str,
    /// Service, or empty.
    pub service_name: Box<str>,
}

impl Equivalent<OwnedLoss> for Loss<'_> {
    fn equivalent(&self, owned: &OwnedLoss) -> bool {
        (self.stage, self.reason, self.side) == (owned.stage, owned.reason, owned.side)
            && self.service_name == &*owned.service_name
    }
}

/// What the kernel reports of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Nanoseconds it has run and how often, since it was loaded; `None` while the kernel keeps no statistics.
    pub run: Option<(u64, u64)>,
    /// Runs that never happened; `None` where the kernel does not report them.
    pub misses: Option<u64>,
}

/// What became of one hook set at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookSetState {
    /// Its name.
    pub set: &'static str,
    /// `used`, `spare`, `unsupported` or `refused`.
    pub state: &'static str,
    /// Why it is not used; empty for the one that is.
    pub reason: String,
}

/// Kernel memory of the maps of one subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapMemory {
    /// `capture`, `discover`, …
    pub subsystem: &'static str,
    /// Elements × element size, bytes.
    pub bytes: u64,
}

/// One signal on its way to one destination: what became of its items (spans, or points of metrics).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Name of the destination.
    pub destination: Arc<str>,
    /// `traces`, `metrics` or `profiles`.
    pub signal: &'static str,
    /// Items waiting or under way.
    pub queued_items: u64,
    /// Memory that they take, bytes.
    pub queued_bytes: u64,
    /// Memory of the request under way beside that: its copy for the wire, bytes.
    pub attempt_bytes: u64,
    /// Items that the destination took.
    pub sent: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Items that did not arrive, by reason; every reason is there.
    pub lost: Vec<(&'static str, u64)>,
    /// What waits on the disk; `None` without a spool.
    pub spooled: Option<Spooled>,
}

/// What a destination has in the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spooled {
    /// Bytes of its files.
    pub bytes: u64,
    /// Items that wait there.
    pub items: u64,
    /// When the oldest of them came, seconds since the Unix epoch; 0 for none.
    pub oldest: u64,
    /// Items that were put there since the start.
    pub written: u64,
    /// Items that left because their destination has settled them.
    pub delivered: u64,
    /// Items that an earlier run had left.
    pub restored: u64,
}

/// More combinations of stage, reason, side and service than this fold into the service `_OTHER`.
const MAX_LOSSES: usize = 4_096;

/// Service name of losses that found no room.
const OTHER: &str = "_OTHER";

/// Counters and facts, owned by the pipeline thread.
#[derive(Debug, Default)]
pub struct Stats {
    /// Processes that are watched now.
    pub watched_processes: u64,
    /// The hook set in use; empty until capture is attached.
    pub hook_set: &'static str,
    /// All hook sets, the cheapest first; empty until capture is attached.
    pub hook_sets: Vec<HookSetState>,
    /// What the set in use does not see here, in a user's words.
    pub not_seen: Vec<&'static str>,
    /// Kernel programs.
    pub programs: Vec<Program>,
    /// Map memory by subsystem.
    pub maps: Vec<MapMemory>,
    /// Exports; empty when nothing is exported.
    pub lanes: Vec<Lane>,
    /// Whether the spool can be used; `None` where it is not wanted.
    pub is_spool_usable: Option<bool>,
    /// Spans that sampling kept from being exported; `None` when no spans are.
    pub unsampled: Option<u64>,
    /// What the last hours of all services take, bytes ([`crate::red::history`]).
    pub history_bytes: u64,
    /// What shows where objectives burn; `None` without objectives.
    pub evidence: Option<Evidence>,
    /// TLS libraries; `None` when they are not probed.
    pub tls: Option<Arc<Tls>>,
    /// What CPUs do is sampled; `None` when it is not.
    pub profile: Option<Arc<Profile>>,
    /// What others send; `None` where nothing is received.
    pub sent_to_us: Option<Arc<Receive>>,
    /// The pods of this node; `None` outside of Kubernetes.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// Why it is not booked where the time of serving threads goes; empty where it is, `None` until capture is
    /// attached.
    pub waiting: Option<String>,
    /// Beginnings and ends of processes that the kernel could not report.
    pub lost_process_events: u64,
    /// Times that a process was not read in time.
    pub late_processes: u64,
    received: [u64; Stage::ALL.len()],
    lost: HashMap<OwnedLoss, Counter, RandomState>,
    uncovered: Vec<(&'static str, Counter)>,
    read_late: Vec<(&'static str, Counter)>,
    unknown_parents: Vec<(&'static str, Counter)>,
    lost_times: Vec<(&'static str, Counter)>,
    reloads: Reloads,
    snapshots: u64,
}

/// Traces that are kept whole, as they show why an objective burns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Traces that are kept now.
    pub traces: u64,
    /// Bytes of their spans that the ring of recent spans has given up.
    pub bytes: u64,
    /// Spans of them that found no room, since the start.
    pub refused: u64,
}

/// Times that the configuration was read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reloads {
    /// It was valid and has been applied.
    pub applied: u64,
    /// It was refused.
    pub refused: u64,
    /// The last one was refused.
    pub failing: bool,
}

impl Stats {
    /// Counts `n` events that entered a stage.
    #[inline]
    pub fn receive(&mut self, stage: Stage, n: u64) {
        self.received[stage as usize] += n;
    }

    /// Counts `n` exchanges as lost. A combination that was seen before costs no allocation.
    pub fn lose(&mut self, loss: Loss<'_>, n: u64) {
        let full = self.lost.len() >= MAX_LOSSES;
        let loss =
            if full && !self.lost.contains_key(&loss) { Loss { service_name: OTHER, ..loss } } else { loss };
        let born = self.snapshots;
        if let Some(counter) = self.lost.get_mut(&loss) {
            counter.add(n, born);
        } else if n > 0 {
            let Loss { stage, reason, side, service_name } = loss;
            let owned = OwnedLoss { stage, reason, side, service_name: service_name.into() };
            self.lost.insert(owned, Counter { value: n, born });
        }
    }

    /// Counts `n` connections that can be seen but not read.
    pub fn uncover(&mut self, reason: &'static str, n: u64) {
        add(&mut self.uncovered, reason, n, self.snapshots);
    }

    /// Counts `n` of these connections that are read from now on.
    pub fn read_late(&mut self, reason: &'static str, n: u64) {
        add(&mut self.read_late, reason, n, self.snapshots);
    }

    /// Counts a span whose parent is not known.
    pub fn orphan(&mut self, reason: &'static str) {
        add(&mut self.unknown_parents, reason, 1, self.snapshots);
    }

    /// Counts `n` requests of which it is not known where the time of their threads went.
    pub fn lose_times(&mut self, reason: &'static str, n: u64) {
        add(&mut self.lost_times, reason, n, self.snapshots);
    }

    /// Counts a configuration that was read again.
    pub fn reload(&mut self, applied: bool) {
        let Reloads { applied: n_applied, refused: n_refused, .. } = self.reloads;
        self.reloads = Reloads {
            applied: n_applied + u64::from(applied),
            refused: n_refused + u64::from(!applied),
            failing: !applied,
        };
    }

    /// Copies everything and begins a new generation of births.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let mut lost: Vec<_> = self.lost.iter().map(|(loss, counter)| (loss.clone(), *counter)).collect();
        lost.sort_unstable_by(|(a, _), (b, _)| {
            (a.stage, a.reason, a.side, &a.service_name).cmp(&(b.stage, b.reason, b.side, &b.service_name))
        });
        Snapshot {
            number: self.snapshots,
            received: self.received,
            lost,
            uncovered: self.uncovered.clone(),
            read_late: self.read_late.clone(),
            unknown_parents: self.unknown_parents.clone(),
            lost_times: self.lost_times.clone(),
            waiting: self.waiting.clone(),
            lost_process_events: self.lost_process_events,
            late_processes: self.late_processes,
            reloads: self.reloads,
            watched_processes: self.watched_processes,
            hook_set: self.hook_set,
            hook_sets: self.hook_sets.clone(),
            not_seen: self.not_seen.clone(),
            programs: self.programs.clone(),
            maps: self.maps.clone(),
            lanes: self.lanes.clone(),
            is_spool_usable: self.is_spool_usable,
            unsampled: self.unsampled,
            history_bytes: self.history_bytes,
            evidence: self.evidence,
            tls: self.tls.clone(),
            profile: self.profile.clone(),
            sent_to_us: self.sent_to_us.clone(),
            kubernetes: self.kubernetes.clone(),
        }
    }
}

fn add(counters: &mut Vec<(&'static str, Counter)>, reason: &'static str, n: u64, born: u64) {
    if let Some((_, counter)) = counters.iter_mut().find(|(held, _)| *held == reason) {
        counter.add(n, born);
    } else if n > 0 {
        counters.push((reason, Counter { value: n, born }));
    }
}

/// [`Stats`] at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Counts the snapshots, from 1.
    pub number: u64,
    /// Events by stage, in the order of [`Stage::ALL`].
    pub received: [u64; Stage::ALL.len()],
    /// Exchanges lost, ordered by label.
    pub lost: Vec<(OwnedLoss, Counter)>,
    /// Connections seen but not read, by reason.
    pub uncovered: Vec<(&'static str, Counter)>,
    /// Those of them that were read later, by reason.
    pub read_late: Vec<(&'static str, Counter)>,
    /// Spans whose parent is not known, by reason.
    pub unknown_parents: Vec<(&'static str, Counter)>,
    /// Requests of which it is not known where the time of their threads went, by reason.
    pub lost_times: Vec<(&'static str, Counter)>,
    /// Why it is not booked where the time of serving threads goes; empty where it is, `None` until capture is
    /// attached.
    pub waiting: Option<String>,
    /// Beginnings and ends of processes that the kernel could not report.
    pub lost_process_events: u64,
    /// Times that a process was not read in time, so that what it did has the name known until then.
    pub late_processes: u64,
    /// Configurations read again.
    pub reloads: Reloads,
    /// Processes watched.
    pub watched_processes: u64,
    /// Hook set; empty until attached.
    pub hook_set: &'static str,
    /// All hook sets, the cheapest first; empty until capture is attached.
    pub hook_sets: Vec<HookSetState>,
    /// What the set in use does not see here, in a user's words.
    pub not_seen: Vec<&'static str>,
    /// Kernel programs.
    pub programs: Vec<Program>,
    /// Map memory.
    pub maps: Vec<MapMemory>,
    /// Exports; empty when nothing is exported.
    pub lanes: Vec<Lane>,
    /// Whether the spool can be used; `None` where it is not wanted.
    pub is_spool_usable: Option<bool>,
    /// Spans that sampling kept from being exported; `None` when no spans are.
    pub unsampled: Option<u64>,
    /// What the last hours of all services take, bytes ([`crate::red::history`]).
    pub history_bytes: u64,
    /// What shows where objectives burn; `None` without objectives.
    pub evidence: Option<Evidence>,
    /// TLS libraries; `None` when they are not probed.
    pub tls: Option<Arc<Tls>>,
    /// What CPUs do is sampled; `None` when it is not.
    pub profile: Option<Arc<Profile>>,
    /// What others send; `None` where nothing is received.
    pub sent_to_us: Option<Arc<Receive>>,
    /// The pods of this node; `None` outside of Kubernetes.
    pub kubernetes: Option<Arc<Kubernetes>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(service_name: &str) -> Loss<'_> {
        Loss { stage: Stage::Kernel, reason: "ring_full", side: "server", service_name }
    }

    #[test]
    fn losses_add_up_by_label_and_remember_their_birth() {
        let mut stats = Stats::default();
        stats.lose(loss("shop"), 2);
        stats.lose(loss("cart"), 0);
        assert_eq!(stats.snapshot().number, 1);
        stats.lose(loss("shop"), 3);
        stats.lose(loss("cart"), 1);
        let lost: Vec<_> =
            stats.snapshot().lost.into_iter().map(|(loss, counter)| (loss.service_name, counter)).collect();
        let expected =
            [("cart".into(), Counter { value: 1, born: 1 }), ("shop".into(), Counter { value: 5, born: 0 })];
        assert_eq!(lost, expected);
    }

    #[test]
    fn no_loss_goes_uncounted_when_services_are_too_many() {
        let mut stats = Stats::default();
        for service in 0..2 * MAX_LOSSES {
            stats.lose(loss(&service.to_string()), 1);
        }
        let lost = stats.snapshot().lost;
        assert_eq!(lost.len(), MAX_LOSSES + 1);
        assert_eq!(lost.iter().map(|(_, counter)| counter.value).sum::<u64>(), 2 * MAX_LOSSES as u64);
    }

    #[test]
    fn stages_and_uncovered_reasons_are_counted_apart() {
        let mut stats = Stats::default();
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            stats.receive(stage, index as u64 + 1);
        }
        stats.uncover("tls", 1);
        stats.uncover("http2", 2);
        stats.uncover("tls", 4);
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.received, [1, 2, 3, 4]);
        let uncovered: Vec<_> =
            snapshot.uncovered.iter().map(|(reason, count)| (*reason, count.value)).collect();
        assert_eq!(uncovered, [("tls", 5), ("http2", 2)]);
    }
}
