//! The pipeline thread: the one owner of all state, from the ring buffer to the series.
//!
//! In: kernel records, questions of the web, ticks. Out: answers. Opens no file. Waits for no one but, within bounds,
//! for the name of a process that is new.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use obi_ebpf::{
    GIVEN_CUT, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, ignored_program, process_event, tally_key,
    thread_state,
};
use tokio::sync::mpsc;

use super::misses::Misses;
use super::outlet::Outlet;
use super::process::{Counts, News};
use super::reload::Reload;
use super::systemd::Beat;
use super::tally::Tallies;
use super::tls::Watch;
use super::wait::Wait;
use crate::capture::content;
use crate::capture::discover::Given;
use crate::capture::event::{Event, decode};
use crate::capture::program::{ELEMENT_OVERHEAD, IgnoredProgram, Maps, Measured, Programs};
use crate::clock::monotonic_ns;
use crate::protocol::Exchanges;
use crate::stats::{MapMemory, Program, Stage};
use crate::web::{Command, Sources};

/// How often the ring is emptied when no wake-up comes: small enough that a span is seen at once, large enough that an
/// idle machine is left alone.
const POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_millis(100);
/// Losses, ended processes, clock: how often they are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Records taken before questions are answered.
const BATCH: usize = 65_536;
/// Exchanges that wait to be forgotten; the kernel side keeps some thousand more.
const FORGOTTEN: usize = 4_096;
/// An exchange whose end was lost in the ring is forgotten after this. Long polls live longer than
/// minutes; what is forgotten has been counted by the kernel side.
const EXCHANGE_AGE: Duration = Duration::from_secs(24 * 3600);

/// State and inputs of the thread.
pub(super) struct Pipeline {
    pub(super) programs: Programs,
    pub(super) maps: Maps,
    pub(super) exchanges: Exchanges,
    pub(super) outlet: Outlet,
    pub(super) tallies: Tallies,
    pub(super) misses: Misses,
    /// Exchanges whose end found no room in the ring. What came before that may still be in there.
    pub(super) forgotten: Vec<u64>,
    /// Processes that the kernel side ignores.
    pub(super) ignored: HashSet<u32>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Scrapes, and when they came: they wait for spans that wait for a little longer.
    pub(super) asked: Vec<(Command, u64)>,
    pub(super) reloads: mpsc::Receiver<Reload>,
    pub(super) wait: Wait,
    pub(super) stopping: Arc<AtomicBool>,
    /// Struck once a round of housekeeping.
    pub(super) beat: Beat,
    /// Probes TLS libraries; `None` where that is not wanted or not possible.
    pub(super) tls: Option<Watch>,
}

impl Pipeline {
    /// Runs until `stopping` is set; then takes what is still in the ring.
    pub(super) fn run(mut self) -> Outlet {
        let mut next_round = Instant::now() + HOUSEKEEPING;
        let mut idle = false;
        loop {
            self.wait.sleep(if idle && self.asked.is_empty() { IDLE_POLL } else { POLL });
            let stopping = self.stopping.load(Ordering::Acquire);
            let n_records = self.take_records();
            idle = n_records == 0;
            if n_records < BATCH {
                self.forget();
            }
            self.outlet.exchange_with_profile();
            if stopping || Instant::now() >= next_round {
                self.keep_house();
                next_round = Instant::now() + HOUSEKEEPING;
            }
            self.outlet.settle();
            if stopping {
                self.take_records();
                self.forget();
                self.outlet.settle_all();
            }
            self.outlet.take_received(stopping);
            self.outlet.tap.tick();
            self.answer(stopping);
            if stopping {
                let Outlet { assembler, route_state, .. } = &mut self.outlet;
                route_state.finish(assembler.routes_mut());
                self.outlet.tap.flush();
                return self.outlet;
            }
        }
    }

    fn take_records(&mut self) -> usize {
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
                        Given::new(bytes, (event.n_arguments as usize, event.n_path as usize), is_whole),
                    ))
                }
                Ok(event) => {
                    self.outlet.stats.receive(Stage::Protocol, 1);
                    if let Event::Close(close) = &event
                        && close.n_aside > 0
                    {
                        let open = self.exchanges.open_streams(close.header.exchange);
                        for told in content::take(&mut self.maps.contents, close, &open) {
                            self.exchanges.accept(&Event::Frame(&told, &[]), &mut self.outlet);
                        }
                    }
                    self.exchanges.accept(&event, &mut self.outlet);
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "kernel record skipped");
                    None
                }
            };
            drop(record);
            if let Some((event, given)) = process {
                self.process(&event, given);
            }
        }
        self.outlet.stats.receive(Stage::Capture, n_records as u64);
        self.take_news();
        n_records
    }

    /// To be called when the ring was emptied after these were taken: their last records have been read.
    fn forget(&mut self) {
        for number in self.forgotten.drain(..) {
            self.exchanges.forget(number, &mut self.outlet);
        }
    }

    fn process(&mut self, event: &process_event, given: Given) {
        let processes = &mut self.outlet.processes;
        let tgid = event.header.tgid;
        match event.action {
            PROCESS_EXEC => {
                processes.exec(tgid, event.exec_id, event.comm, given);
                self.renewed(tgid, event.header.time);
            }
            PROCESS_FORK => {
                processes.fork(tgid, event.exec_id, event.parent);
                self.renewed(tgid, event.header.time);
            }
            PROCESS_EXIT => {
                processes.exit(tgid, event.header.time);
                self.tallies.process_ended(tgid);
            }
            other => tracing::error!(action = other, "unknown process event"),
        }
    }

    fn renewed(&mut self, tgid: u32, time: u64) {
        if let Some(profile) = &mut self.outlet.profile {
            profile.renewed(tgid, time);
        }
    }

    /// Takes what was found out about processes: the kernel side learns whom not to watch, the TLS thread who began.
    fn take_news(&mut self) {
        let before = self.ignored.len();
        for news in self.outlet.processes.news() {
            let change = match news {
                News::Verdict(change) => change,
                News::Renamed(tgid) => {
                    self.renewed(tgid, monotonic_ns());
                    continue;
                }
                News::Began(tgid) => {
                    if let (Some(tls), Some((executable, cgroup))) =
                        (&mut self.tls, self.outlet.processes.place(tgid))
                    {
                        tls.begun(tgid, (&executable, &cgroup), Instant::now());
                    }
                    continue;
                }
            };
            let result = if change.is_ignored() {
                self.ignored.insert(change.tgid);
                let program = self.outlet.processes.program(change.tgid);
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
            tracing::warn!(n_ignored, %error, "failed to tell the kernel how many processes to ignore");
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
    fn tell_uncovered(&mut self) {
        for (tgid, connections) in self.tallies.uncovered_tls() {
            if let (Some(tls), Some((executable, _))) = (&self.tls, self.outlet.processes.place(tgid)) {
                tls.uncovered(tgid, executable, connections);
            }
        }
    }

    fn keep_house(&mut self) {
        let now = monotonic_ns();
        self.beat.strike();
        self.attach_wanted();
        while self.forgotten.len() < FORGOTTEN
            && let Ok(number) = self.maps.forgotten.pop(0)
        {
            self.forgotten.push(number);
        }
        self.tallies.read(&mut self.maps, &mut self.outlet);
        self.tell_uncovered();
        if let Some(tls) = &mut self.tls {
            tls.tick(Instant::now(), |tgid| self.outlet.processes.table().is_running(tgid));
        }
        let measured = self.programs.measure();
        self.misses.read(&measured, &mut self.outlet.stats);
        self.misses.warn(self.programs.set(), &measured);
        self.exchanges.sweep(now, EXCHANGE_AGE, &mut self.outlet);
        self.outlet.causes.sweep(now);
        self.outlet.processes.tick();
        let Counts { dropped, late } = self.outlet.processes.take_counts();
        self.outlet.stats.lost_process_events += dropped;
        self.outlet.stats.late_processes += late;
        self.outlet.clock.tick();
        self.outlet.registry.advance(now);
        self.take_news();
        let Outlet { assembler, route_state, .. } = &mut self.outlet;
        route_state.tick(assembler.routes_mut(), Instant::now());
        self.outlet.hand_over();
    }

    fn answer(&mut self, stopping: bool) {
        while let Ok(reload) = self.reloads.try_recv() {
            reload.take_effect(&mut self.outlet);
            self.take_news();
        }
        let mut ready: Vec<Command> = Vec::new();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Metrics(_) => {
                    // The scrape is to hold every request that ended before it came.
                    self.take_records();
                    self.asked.push((command, monotonic_ns()));
                }
                _ => ready.push(command),
            }
        }
        let Self { asked, outlet, .. } = self;
        let is_due = |since| stopping || outlet.room.is_quiet_since(since);
        ready.extend(asked.extract_if(.., |(_, since)| is_due(*since)).map(|(command, _)| command));
        for command in ready {
            if matches!(command, Command::Metrics(_)) {
                self.tallies.read(&mut self.maps, &mut self.outlet);
                self.outlet.count_active(&mut self.exchanges);
                self.outlet.exchange_with_profile();
                self.measure();
                self.outlet.hand_over();
            }
            let Outlet { registry, stats, store, .. } = &mut self.outlet;
            command.answer(&mut Sources { registry, stats, store });
        }
    }

    /// Bytes of the maps of capture, and of those that say who is watched: as the kernel counts them, else estimated.
    fn map_bytes(&mut self) -> (u64, u64) {
        let element = |n: usize, bytes: usize| n as u64 * (bytes as u64 + ELEMENT_OVERHEAD);
        let counted = self.outlet.processes.map_bytes();
        let maps = &self.maps;
        let connections = maps.global.get(&0, 0).map_or(0, |global| global.0.n_open);
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

    /// What the agent costs in the kernel.
    fn measure(&mut self) {
        let (capture, discover) = self.map_bytes();
        let evidence = self.outlet.evidence();
        let stats = &mut self.outlet.stats;
        stats.watched_processes = self.outlet.processes.table().watched() as u64;
        stats.lanes = self.outlet.tap.lanes();
        stats.is_spool_usable = self.outlet.tap.is_spool_usable();
        stats.unsampled = self.outlet.tap.unsampled();
        stats.evidence = evidence;
        stats.kubernetes = self.outlet.peers.as_ref().map(|peers| Arc::new(peers.pods().view()));
        stats.sent_to_us = self.outlet.intake.as_ref().map(|intake| Arc::new(intake.view()));
        stats.tls = self.tls.as_ref().map(Watch::view);
        stats.maps = vec![
            MapMemory { subsystem: "capture", bytes: capture },
            MapMemory { subsystem: "discover", bytes: discover },
        ];
        stats.profile = self.outlet.profile.as_ref().map(|profile| Arc::new(profile.view()));
        if let Some(view) = &stats.profile {
            stats.maps.push(MapMemory { subsystem: "profile", bytes: view.map_bytes });
        }
        let program = |measured: Measured| Program {
            name: measured.name,
            run: measured.statistics.then_some((measured.info.nanoseconds, measured.info.runs)),
            misses: measured.misses,
        };
        let mut measured = self.programs.measure();
        self.misses.read(&measured, stats);
        measured.extend(self.outlet.profile.iter().flat_map(|profile| profile.programs().to_vec()));
        stats.programs = measured.into_iter().map(program).collect();
    }
}
