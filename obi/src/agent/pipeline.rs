//! The pipeline thread: the one owner of all state, from the ring buffer to the series.
//!
//! In: kernel records, questions of the web, ticks. Out: answers. Opens no file. Waits for no one but, within bounds,
//! for the name of a process that is new.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::kernel::{BATCH, Kernel};
use super::outlet::Outlet;
use super::process::Counts;
use super::reload::Reload;
use super::systemd::Beat;
use super::wait::Wait;
use crate::capture::program::Measured;
use crate::clock::monotonic_ns;
use crate::stats::{MapMemory, Program};
use crate::web::{Command, Sources};

/// How often the ring is emptied when no wake-up comes: small enough that a span is seen at once, large enough that an
/// idle machine is left alone.
const POLL: Duration = Duration::from_millis(20);
const IDLE_POLL: Duration = Duration::from_millis(100);
/// Losses, ended processes, clock: how often they are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// State and inputs of the thread.
pub(super) struct Pipeline {
    /// `None` where nothing is captured.
    pub(super) kernel: Option<Kernel>,
    pub(super) outlet: Outlet,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Scrapes, and when they came: they wait for spans that wait for a little longer.
    pub(super) asked: Vec<(Command, u64)>,
    pub(super) reloads: mpsc::Receiver<Reload>,
    pub(super) wait: Wait,
    pub(super) stopping: Arc<AtomicBool>,
    /// Struck once a round of housekeeping.
    pub(super) beat: Beat,
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
        self.kernel.as_mut().map_or(0, |kernel| kernel.take_records(&mut self.outlet))
    }

    fn forget(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.forget(&mut self.outlet);
        }
    }

    fn take_news(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.take_news(&mut self.outlet);
        }
    }

    fn keep_house(&mut self) {
        let now = monotonic_ns();
        self.beat.strike();
        if let Some(kernel) = &mut self.kernel {
            kernel.keep_house(&mut self.outlet);
        }
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
                if let Some(kernel) = &mut self.kernel {
                    kernel.count(&mut self.outlet);
                }
                self.outlet.exchange_with_profile();
                self.measure();
                self.outlet.hand_over();
            }
            let Outlet { registry, stats, store, .. } = &mut self.outlet;
            command.answer(&mut Sources { registry, stats, store });
        }
    }

    /// What the agent costs in the kernel.
    fn measure(&mut self) {
        let kernel = self.kernel.as_mut().map(|kernel| kernel.measure(&mut self.outlet));
        let evidence = self.outlet.evidence();
        let stats = &mut self.outlet.stats;
        stats.watched_processes = self.outlet.processes.table().watched() as u64;
        stats.lanes = self.outlet.tap.lanes();
        stats.is_spool_usable = self.outlet.tap.is_spool_usable();
        stats.unsampled = self.outlet.tap.unsampled();
        stats.evidence = evidence;
        stats.kubernetes = self.outlet.peers.as_ref().map(|peers| Arc::new(peers.pods().view()));
        stats.sent_to_us = self.outlet.intake.as_ref().map(|intake| Arc::new(intake.view()));
        stats.profile = self.outlet.profile.as_ref().map(|profile| Arc::new(profile.view()));
        if let Some(view) = &stats.profile {
            stats.maps.push(MapMemory { subsystem: "profile", bytes: view.map_bytes });
        }
        let program = |measured: Measured| Program {
            name: measured.name,
            run: measured.statistics.then_some((measured.info.nanoseconds, measured.info.runs)),
            misses: measured.misses,
        };
        let mut measured = kernel.unwrap_or_default();
        measured.extend(self.outlet.profile.iter().flat_map(|profile| profile.programs().to_vec()));
        stats.programs = measured.into_iter().map(program).collect();
    }
}
