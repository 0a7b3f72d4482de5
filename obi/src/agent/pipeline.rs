//! The pipeline thread: the one owner of all state, from the ring buffer to the series.
//!
//! In: kernel records, questions of the web, ticks. Out: answers. Opens no file. Waits for no one but, within bounds,
//! for the name of a process that is new.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::kernel::{BATCH, Kernel};
use super::process::Counts;
use super::reload::Reload;
use super::span_pipeline::SpanPipeline;
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
    pub(super) span_pipeline: SpanPipeline,
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
    pub(super) fn run(mut self) -> SpanPipeline {
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
            self.span_pipeline.exchange_with_profile();
            if stopping {
                self.span_pipeline.processes.await_answers();
                self.span_pipeline.exchange_with_profile();
            }
            if stopping || Instant::now() >= next_round {
                self.keep_house();
                next_round = Instant::now() + HOUSEKEEPING;
            }
            self.span_pipeline.settle();
            if stopping {
                self.take_records();
                self.forget();
                self.span_pipeline.settle_all();
            }
            self.span_pipeline.take_received(stopping);
            self.span_pipeline.span_export.tick();
            self.answer(stopping);
            if stopping {
                let SpanPipeline { assembler, route_state, .. } = &mut self.span_pipeline;
                route_state.finish(assembler.routes_mut());
                self.span_pipeline.span_export.flush();
                return self.span_pipeline;
            }
        }
    }

    fn take_records(&mut self) -> usize {
        self.kernel.as_mut().map_or(0, |kernel| kernel.take_records(&mut self.span_pipeline))
    }

    fn forget(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.forget(&mut self.span_pipeline);
        }
    }

    fn take_news(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.take_news(&mut self.span_pipeline);
        }
    }

    fn keep_house(&mut self) {
        let now = monotonic_ns();
        self.beat.strike();
        if let Some(kernel) = &mut self.kernel {
            kernel.keep_house(&mut self.span_pipeline);
        }
        self.span_pipeline.causes.sweep(now);
        self.span_pipeline.processes.tick();
        let Counts { dropped, late } = self.span_pipeline.processes.take_counts();
        self.span_pipeline.stats.lost_process_events += dropped;
        self.span_pipeline.stats.late_processes += late;
        self.span_pipeline.clock.tick();
        self.span_pipeline.registry.advance(now);
        self.take_news();
        let SpanPipeline { assembler, route_state, .. } = &mut self.span_pipeline;
        route_state.tick(assembler.routes_mut(), Instant::now());
        self.span_pipeline.hand_over();
    }

    fn answer(&mut self, stopping: bool) {
        while let Ok(reload) = self.reloads.try_recv() {
            reload.take_effect(&mut self.span_pipeline);
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
        let Self { asked, span_pipeline, .. } = self;
        let is_due = |since| stopping || span_pipeline.room.is_quiet_since(since);
        ready.extend(asked.extract_if(.., |(_, since)| is_due(*since)).map(|(command, _)| command));
        for command in ready {
            if matches!(command, Command::Metrics(_)) {
                if let Some(kernel) = &mut self.kernel {
                    kernel.count(&mut self.span_pipeline);
                }
                self.span_pipeline.exchange_with_profile();
                self.measure();
                self.span_pipeline.hand_over();
            }
            let SpanPipeline { registry, stats, store, .. } = &mut self.span_pipeline;
            command.answer(&mut Sources { registry, stats, store });
        }
    }

    /// What the agent costs in the kernel.
    fn measure(&mut self) {
        let kernel = self.kernel.as_mut().map(|kernel| kernel.measure(&mut self.span_pipeline));
        let evidence = self.span_pipeline.evidence();
        let history = self.span_pipeline.registry.history_bytes();
        let stats = &mut self.span_pipeline.stats;
        stats.history_bytes = history as u64;
        stats.watched_processes = self.span_pipeline.processes.table().watched() as u64;
        stats.lanes = self.span_pipeline.span_export.lanes();
        stats.is_spool_usable = self.span_pipeline.span_export.is_spool_usable();
        stats.unsampled = self.span_pipeline.span_export.unsampled();
        stats.evidence = evidence;
        stats.kubernetes = self.span_pipeline.peers.as_ref().map(|peers| Arc::new(peers.pods().view()));
        stats.sent_to_us = self.span_pipeline.intake.as_ref().map(|intake| Arc::new(intake.view()));
        stats.profile = self.span_pipeline.profile.as_ref().map(|profile| Arc::new(profile.view()));
        if let Some(view) = &stats.profile {
            stats.maps.push(MapMemory { subsystem: "profile", bytes: view.map_bytes });
        }
        let program = |measured: Measured| Program {
            name: measured.name,
            run: measured.statistics.then_some((measured.info.nanoseconds, measured.info.runs)),
            misses: measured.misses,
        };
        let mut measured = kernel.unwrap_or_default();
        measured.extend(self.span_pipeline.profile.iter().flat_map(|profile| profile.programs().to_vec()));
        stats.programs = measured.into_iter().map(program).collect();
    }
}
