//! The kernel side's end in the pipeline: records of the ring to exchanges, verdicts and questions back.
//!
//! In: kernel records, what was found out about processes. Out: exchanges, losses and lost time for the span pipeline;
//! which processes the kernel side ignores. There is none where nothing is captured. Refuses to know spans and series.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use obi_ebpf::{
    GIVEN_CUT, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, ignored_program, process_event, tally_key,
    thread_state,
};

use super::misses::Misses;
use super::process::News;
use super::span_pipeline::SpanPipeline;
use super::tally::Tallies;
use super::tls::Watch;
use crate::capture::content;
use crate::capture::discover::ExecArguments;
use crate::capture::event::{Event, decode};
use crate::capture::program::{ELEMENT_OVERHEAD, IgnoredProgram, Maps, Measured, Programs};
use crate::clock::monotonic_ns;
use crate::protocol::Exchanges;
use crate::stats::{MapMemory, Stage};

/// Records taken before questions are answered.
pub(super) const BATCH: usize = 65_536;
/// Exchanges that wait to be forgotten; the kernel side keeps some thousand more.
const FORGOTTEN: usize = 4_096;
/// An exchange whose end was lost in the ring is forgotten after this. Long polls live longer than
/// minutes; what is forgotten has been counted by the kernel side.
const EXCHANGE_AGE: Duration = Duration::from_secs(24 * 3600);

/// Programs, maps, and what is known of them.
pub(super) struct Kernel {
    pub(super) programs: Programs,
    pub(super) maps: Maps,
    pub(super) exchanges: Exchanges,
    pub(super) tallies: Tallies,
    pub(super) misses: Misses,
    /// Exchanges whose end found no room in the ring. What came before that may still be in there.
    pub(super) forgotten: Vec<u64>,
    /// Processes that the kernel side ignores.
    pub(super) ignored: HashSet<u32>,
    /// Probes TLS libraries; `None` where that is not wanted or not possible.
    pub(super) tls: Option<Watch>,
}

impl Kernel {
    pub(super) fn new(programs: Programs, maps: Maps, exchanges: Exchanges) -> Self {
        Self {
            programs,
            maps,
            exchanges,
            tallies: Tallies::default(),
            misses: Misses::default(),
            forgotten: Vec::new(),
            ignored: HashSet::new(),
            tls: None,
        }
    }

    /// Takes what is in the ring; how many records that were.
    pub(super) fn take_records(&mut self, span_pipeline: &mut SpanPipeline) -> usize {
        let mut n_records = 0;
        while n_records < BATCH {
            let Some(record) = self.maps.events.next() else { break };
            n_records += 1;
            let process = match decode(&record) {
                // What others were given does not leave the ring, but for a few variables.
                Ok(Event::Process(event, bytes)) => {
                    let is_whole = event.header.flags & GIVEN_CUT == 0;
                    Some((
                        *event,
                        ExecArguments::new(
                            bytes,
                            (event.n_arguments as usize, event.n_path as usize),
                            is_whole,
                        ),
                    ))
                }
                Ok(event) => {
                    span_pipeline.stats.receive(Stage::Protocol, 1);
                    if let Event::Close(close) = &event
                        && close.n_aside > 0
                    {
                        let open = self.exchanges.open_streams(close.header.exchange);
                        for reported in content::take(&mut self.maps.contents, close, &open) {
                            self.exchanges.accept(&Event::Frame(&reported, &[]), span_pipeline);
                        }
                    }
                    self.exchanges.accept(&event, span_pipeline);
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "kernel record skipped");
                    None
                }
            };
            drop(record);
            if let Some((event, given)) = process {
                self.process(&event, given, span_pipeline);
            }
        }
        span_pipeline.stats.receive(Stage::Capture, n_records as u64);
        self.take_news(span_pipeline);
        n_records
    }

    /// To be called when the ring was emptied after these were taken: their last records have been read.
    pub(super) fn forget(&mut self, span_pipeline: &mut SpanPipeline) {
        for number in self.forgotten.drain(..) {
            self.exchanges.forget(number, span_pipeline);
        }
    }

    fn process(&mut self, event: &process_event, given: ExecArguments, span_pipeline: &mut SpanPipeline) {
        let processes = &mut span_pipeline.processes;
        let tgid = event.header.tgid;
        match event.action {
            PROCESS_EXEC => {
                processes.exec(tgid, event.exec_id, event.comm, given);
                renewed(span_pipeline, tgid, event.header.time);
            }
            PROCESS_FORK => {
                processes.fork(tgid, event.exec_id, event.parent);
                renewed(span_pipeline, tgid, event.header.time);
            }
            PROCESS_EXIT => {
                processes.exit(tgid, event.header.time);
                self.tallies.process_ended(tgid);
            }
            other => tracing::error!(action = other, "unknown process event"),
        }
    }

    /// Takes what was found out about processes: the kernel side learns whom not to watch, the TLS thread who began.
    pub(super) fn take_news(&mut self, span_pipeline: &mut SpanPipeline) {
        let before = self.ignored.len();
        for news in span_pipeline.processes.news() {
            let change = match news {
                News::Verdict(change) => change,
                News::Renamed(tgid) => {
                    renewed(span_pipeline, tgid, monotonic_ns());
                    continue;
                }
                News::Began(tgid) => {
                    if let (Some(tls), Some((executable, cgroup))) =
                        (&mut self.tls, span_pipeline.processes.place(tgid))
                    {
                        tls.begun(tgid, (&executable, &cgroup), Instant::now());
                    }
                    continue;
                }
            };
            let result = if change.is_ignored() {
                self.ignored.insert(change.tgid);
                let program = span_pipeline.processes.program(change.tgid);
                self.maps.process.insert(change.tgid, IgnoredProgram(program), 0)
            } else if self.ignored.remove(&change.tgid) {
                // Absent means watched; the kernel side may have dropped an ended process already.
                self.maps.process.remove(&change.tgid).or(Ok(()))
            } else {
                Ok(())
            };
            if let Err(error) = result {
                // The agent drops its exchanges all the same; only the saving is lost.
                tracing::warn!(tgid = change.tgid, %error, "failed to store a process verdict in the kernel");
            }
        }
        let n_ignored = self.ignored.len();
        if n_ignored != before
            && let Err(error) = self.maps.n_ignored.set(0, u32::try_from(n_ignored).unwrap_or(u32::MAX), 0)
        {
            tracing::warn!(n_ignored, %error, "failed to set in the kernel how many processes to ignore");
        }
    }

    /// Programs that few machines need begin when something was missed for want of them.
    fn attach_wanted(&mut self) {
        let wanted = self.maps.global.get(&0, 0).map_or(0, |global| global.0.wanted);
        match self.programs.attach_wanted(wanted) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                tracing::info!(?names, "further kernel programs attached: traffic of their kind was seen")
            }
            Err(error) => tracing::warn!(%error, "traffic of one kind stays unreadable"),
        }
    }

    /// Whose TLS is not read may have mapped its library meanwhile.
    fn report_uncovered(&mut self, span_pipeline: &mut SpanPipeline) {
        for (tgid, connections) in self.tallies.uncovered_tls() {
            if let (Some(tls), Some((executable, _))) = (&self.tls, span_pipeline.processes.place(tgid)) {
                tls.uncovered(tgid, executable, connections);
            }
        }
    }

    /// To be called about once a second.
    pub(super) fn keep_house(&mut self, span_pipeline: &mut SpanPipeline) {
        self.attach_wanted();
        while self.forgotten.len() < FORGOTTEN
            && let Ok(number) = self.maps.forgotten.pop(0)
        {
            self.forgotten.push(number);
        }
        self.tallies.read(&mut self.maps, span_pipeline);
        self.report_uncovered(span_pipeline);
        if let Some(tls) = &mut self.tls {
            tls.tick(Instant::now(), |tgid| span_pipeline.processes.table().is_running(tgid));
        }
        let measured = self.programs.measure();
        self.misses.read(&measured, &mut span_pipeline.stats);
        self.misses.warn(self.programs.set(), &measured);
        self.exchanges.sweep(monotonic_ns(), EXCHANGE_AGE, span_pipeline);
    }

    /// What only the kernel side has counted, before a scrape is answered.
    pub(super) fn count(&mut self, span_pipeline: &mut SpanPipeline) {
        self.tallies.read(&mut self.maps, span_pipeline);
        span_pipeline.count_active(&mut self.exchanges);
    }

    /// What it costs: memory into the statistics, and what became of each program.
    pub(super) fn measure(&mut self, span_pipeline: &mut SpanPipeline) -> Vec<Measured> {
        let (capture, discover) = self.map_bytes(span_pipeline);
        let stats = &mut span_pipeline.stats;
        stats.tls = self.tls.as_ref().map(Watch::view);
        stats.maps = vec![
            MapMemory { subsystem: "capture", bytes: capture },
            MapMemory { subsystem: "discover", bytes: discover },
        ];
        let measured = self.programs.measure();
        self.misses.read(&measured, stats);
        measured
    }

    /// Bytes of the maps of capture, and of those that say who is watched: as the kernel counts them, else estimated.
    fn map_bytes(&mut self, span_pipeline: &mut SpanPipeline) -> (u64, u64) {
        let element = |n: usize, bytes: usize| n as u64 * (bytes as u64 + ELEMENT_OVERHEAD);
        let counted = span_pipeline.processes.map_bytes();
        let maps = &self.maps;
        let connections = maps.global.get(&0, 0).map_or(0, |global| open_connections(global.0.n_open));
        let connection_bytes = self.programs.connection_bytes();
        let ring_bytes = u64::from(self.programs.ring_bytes());
        let verdicts = element(maps.process.keys().count(), size_of::<u32>() + size_of::<ignored_program>());
        match (counted, self.programs.preallocated()) {
            (Some(counted), _) => {
                let kept = if self.programs.is_in_storage() { connections * connection_bytes } else { 0 };
                (counted.saturating_sub(verdicts) + kept, verdicts)
            }
            (None, Some(whole)) => {
                let kept =
                    if whole.connections == 0 { connections * connection_bytes } else { whole.connections };
                (ring_bytes + kept + whole.capture, whole.discover)
            }
            (None, None) => {
                let threads = element(maps.thread.keys().count(), size_of::<thread_state>());
                let tallies = element(maps.tally.keys().count(), size_of::<tally_key>() + size_of::<u64>());
                (ring_bytes + connections * connection_bytes + threads + tallies, verdicts)
            }
        }
    }
}

/// The process runs another program: profiles look at it anew.
fn renewed(span_pipeline: &mut SpanPipeline, tgid: u32, time: u64) {
    if let Some(profile) = &mut span_pipeline.profile {
        profile.renewed(tgid, time);
    }
}

/// Connections whose state is alive. It was seen below zero: the kernel side marks a connection as counted, and as
/// finished, without a lock, so two processors can take away the same one.
fn open_connections(counted: u64) -> u64 {
    u64::try_from(counted.cast_signed()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_connections_than_none_are_none() {
        let check = |counted, expected| assert_eq!(open_connections(counted), expected, "{counted}");
        check(0, 0);
        check(7, 7);
        check(u64::MAX, 0);
        check(u64::MAX - 5, 0);
    }
}
