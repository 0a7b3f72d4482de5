//! Profiles: what the agent starts, passes on and ends for them.
//!
//! In: the maps of the hook set, section `profile`. Out: three ends: the pipeline's ([`Tell`]), the web's
//! ([`crate::profile::ask::Handle`]) and the exporter's. Everything that needs privileges is opened by [`prepare`].
//!
//! ```text
//! pipeline ── spans, names of processes ──▶ sampler ── chosen samples ──▶ symbolizer ──▶ answers, exports
//!          ◀── CPU time, questions of names ──┘ owns the store             owns the names
//! ```
//!
//! Questions come by [`crate::profile::ask::Handle`] to the sampler, which chooses samples; the symbolizer answers
//! them. What is read from processes at that moment comes by `moment`.
//!
//! No arrow waits: what finds no room is counted, and tried again where it matters.

pub mod alone;
mod find;
mod frame_address;
mod guests;
mod moment;
mod releases;
mod sampler;
mod symbolizer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use self::guests::Guests;
use self::moment::{Moments, Reader};
use self::releases::Releases;
use self::sampler::{MAPPING_BLOCKS, Rhythm, Sampler, State};
use self::symbolizer::{Symbolizer, SymbolizerView};
use super::part::{self, Ending};
use super::wait::Wait;
use crate::capture::kernel_types::KernelTypes;
use crate::capture::mapping::interpreter::{Interpreters, Maps};
use crate::capture::mapping::kernel::{Blocks, Chunks};
use crate::capture::mapping::resolver::Resolver;
use crate::capture::mapping::survey::Survey;
use crate::capture::mapping::tables::Tables;
use crate::capture::program::profile::{
    PAGE_FAULT_PERIOD, ProfileMaps, Profiler, ProfilerSettings, Waits, online_cpus, ring_bytes,
};
use crate::capture::program::{LoadError, Measured, Settings, SharedMaps};
use crate::capture::unwind;
use crate::config;
use crate::profile::ask::{Handle, Missing};
use crate::profile::join::Ended;
use crate::profile::sample_type::HEAP_PERIOD;
use crate::profile::store::Store;
use crate::profile::symbol::{Bounds, Symbols};
use crate::profile::view::View;
use crate::profile::{Origin, SampleKind, SampleType, Selection};
use crate::red::CpuSamples;
use crate::span::{Detail, Span, SpanKind};

/// What the pipeline sends to the sampler.
#[derive(Debug)]
enum Notice {
    /// Spans that have ended.
    Ended(Vec<Ended>),
    /// Who a process is.
    Called(u32, Arc<Origin>),
    /// A process is not watched.
    LeftOut(u32),
    /// A process is another one, or runs another program, since a monotonic time.
    Renewed(u32, u64),
    /// The traces whose samples stay, all of them.
    Kept(Vec<[u8; 16]>),
}

/// What the sampler sends to the pipeline.
#[derive(Debug)]
pub(super) enum Report {
    /// CPU time of requests.
    Cpu(Vec<CpuSamples>),
    /// Who is this process?
    Who(u32),
}

/// Messages that may wait, in each direction.
const NOTICES: usize = 4_096;
/// Spans that may wait to be linked, of 80 bytes each: those of a second at the most that a machine serves; more are
/// not, and counted.
const SPANS: usize = 262_144;
/// Jobs that may wait for names.
const JOBS: usize = 64;
/// Selections that may wait for the exporter.
const EXPORTS: usize = 2;
const QUESTIONS: usize = 16;
/// How long the end waits for samples to be named and handed over.
const ENDING: Duration = Duration::from_secs(5);

/// What is opened and loaded while everything is allowed.
pub(super) struct Prepared {
    profiler: Profiler,
    maps: ProfileMaps,
    survey: Survey,
    symbols: Symbols,
    config: config::Profile,
    /// For samples of kept traces.
    kept_bytes: usize,
}

/// The pipeline's end.
#[derive(Debug)]
pub(super) struct Tell {
    notices: SyncSender<Notice>,
    reports: Receiver<Report>,
    view: Arc<ArcSwap<View>>,
    programs: Arc<ArcSwap<Vec<Measured>>>,
    spans: Vec<Ended>,
    /// Spans handed over that have not been looked at.
    waiting: Arc<AtomicUsize>,
    /// Spans, and other messages, that found no room.
    unreported: u64,
    /// Traces whose samples stay, until they have been sent.
    kept: Option<Vec<[u8; 16]>>,
}

/// Everything that has been started.
pub(super) struct Started {
    pub(super) tell: Tell,
    pub(super) handle: Handle,
    /// The threads, in the order of their end.
    pub(super) running: [part::Running; 2],
    /// Samples to be exported.
    pub(super) exports: mpsc::Receiver<Selection>,
}

/// Loads and attaches the sampler, and looks at what is mapped and named: all that needs privileges.
///
/// # Errors
/// When this kernel, or what it allows us, is not enough.
pub(super) fn prepare(
    config: &config::Profile,
    capture: &Settings,
    shared: Result<SharedMaps, LoadError>,
    types: Option<&KernelTypes>,
) -> anyhow::Result<Prepared> {
    if !config.enabled {
        anyhow::bail!("profile.enabled is false");
    }
    let types = types.context("there is no kernel type information")?;
    let shared = shared.context("failed to share the maps of the hook set")?;
    open(config, capture.statistics, &shared, types)
}

/// Why nothing is sampled, said once where it is a surprise.
pub(super) fn off(config: &config::Profile, reason: &anyhow::Error) -> Handle {
    if config.enabled {
        tracing::warn!("nothing is sampled: {reason:#}");
    }
    Handle::off(&format!("{reason:#}"))
}

/// As [`prepare`], whatever the configuration says, for any hook set or none.
///
/// # Errors
/// When this kernel, or what it allows us, is not enough.
pub(super) fn open(
    config: &config::Profile,
    statistics: bool,
    shared: &SharedMaps,
    types: &KernelTypes,
) -> anyhow::Result<Prepared> {
    let cpus = online_cpus().context("failed to list CPUs")?;
    let settings = ProfilerSettings {
        self_tgid: std::process::id(),
        hertz: config.frequency,
        ring_bytes: ring_bytes(cpus.len(), config.frequency),
        table_bytes: config.table_bytes.into(),
        mapping_blocks: MAPPING_BLOCKS,
        statistics,
        off_cpu: config.off_cpu,
        page_faults: config.page_faults,
    };
    // Opened first: what is mapped from now on is reported.
    let survey = Survey::open().context("failed to open the events of mappings")?;
    let (profiler, maps) =
        Profiler::load(&settings, shared, types).context("failed to load the sampler of stacks")?;
    let bounds = Bounds { cache_bytes: config.symbol_bytes as usize, ..Bounds::default() };
    let (symbols, config) = (Symbols::open(bounds), config.clone());
    Ok(Prepared { profiler, maps, survey, symbols, config, kept_bytes: 0 })
}

impl Prepared {
    /// The same with room for samples of traces that are kept beyond their time.
    pub(super) fn keeping(self, kept_bytes: usize) -> Self {
        Self { kept_bytes, ..self }
    }

    /// Begins the threads, with the privileges that their starter has left. Samples are exported while it is `wanted`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(self, wanted: Arc<AtomicBool>) -> anyhow::Result<Started> {
        let Self { profiler, maps, survey, symbols, config, kept_bytes } = self;
        tracing::debug!(cpus = profiler.n_cpus(), hertz = config.frequency, "stacks are sampled");
        tell_of_waits(&config, &profiler);
        let ProfileMaps { stacks, chunks, mappings, guests, jvms, v8s, table_bytes, fixed_bytes } = maps;
        let tables = Tables::new(Chunks::new(chunks), unwind::build, table_bytes);
        let interpreters = Interpreters::new(Maps { guests, jvms, v8s });
        let resolver = Resolver::start(survey, tables, Blocks::new(mappings), interpreters)
            .context("failed to start the threads that look at files")?;
        let (types, missing) = types(&config, &profiler);
        let on = types.iter().map(|of| (of.row().name, "on".into()));
        let off = missing.iter().map(|(kind, reason)| (kind.row().name, Arc::clone(reason)));
        let states = on.chain(off).collect();
        let config::Profile { frequency: hertz, interval, heap, .. } = config;
        let rhythm = Rhythm { types: states, hertz, interval, heap };
        let (notices, noticed) = sync_channel(NOTICES);
        let (reports, reported) = sync_channel(NOTICES);
        let (jobs, asked) = sync_channel(JOBS);
        let (questions, questioned) = mpsc::channel(QUESTIONS);
        let (exports, exported) = mpsc::channel(EXPORTS);
        let (view, named) = (Arc::new(ArcSwap::default()), Arc::<ArcSwap<SymbolizerView>>::default());
        let programs = Arc::new(ArcSwap::from_pointee(profiler.measure()));
        let symbolizer = Symbolizer::new(symbols, types, exports, Arc::clone(&named));
        let wait = Wait::new(&stacks).context("failed to watch the ring of stacks")?;
        for side_band in resolver.descriptors() {
            wait.add(side_band).context("failed to watch the events of mappings")?;
        }
        let bell = wait.bell();
        let waiting = Arc::<AtomicUsize>::default();
        let reader = Reader::start(jobs.clone())
            .context("failed to start the thread that reads what runtimes know")?;
        let moments = Moments::new(reader);
        let sampler = Sampler {
            profiler,
            stacks,
            wait,
            resolver,
            guests: Guests::start().context("failed to start the thread that looks into interpreters")?,
            store: Store::new(config.store_bytes as usize)
                .keeping(config.retention)
                .with_room_for_traces(kept_bytes),
            notices: noticed,
            waiting: Arc::clone(&waiting),
            reports,
            questions: questioned,
            jobs,
            named,
            view: Arc::clone(&view),
            programs: Arc::clone(&programs),
            wanted,
            fixed_bytes,
            rhythm,
            releases: Releases::default(),
            moments,
            state: State::default(),
        };
        let spawned =
            [spawn("profile", move || sampler.run())?, spawn("symbolizer", move || symbolizer.run(&asked))?];
        let handle = Handle::new(questions, Arc::new(move || bell.ring()), missing);
        let (reports, spans) = (reported, Vec::new());
        let tell = Tell { notices, reports, view, programs, spans, waiting, unreported: 0, kept: None };
        Ok(Started { tell, handle, running: spawned, exports: exported })
    }
}

/// Why waits are not sampled, or not all that is to be known of them, said once.
fn tell_of_waits(config: &config::Profile, profiler: &Profiler) {
    match &profiler.waits {
        Err(reason) if config.off_cpu => tracing::info!(reason, "waits are not sampled"),
        Ok(Waits { no_releases: Some(reason), .. }) => {
            tracing::info!(reason, "who ends waits for locks is not known");
        }
        _ => {}
    }
    if let (Err(reason), true) = (&profiler.page_faults, config.page_faults) {
        tracing::warn!(reason, "page faults are not sampled");
    }
}

/// What is sampled, with the period of what has a clock; and what is not, and why.
fn types(config: &config::Profile, profiler: &Profiler) -> (Vec<SampleType>, Vec<Missing>) {
    let of = |kind, period| SampleType { kind, period };
    let mut types = vec![of(SampleKind::Cpu, config.period())];
    let mut missing = Vec::new();
    match &profiler.waits {
        Ok(_) => types.extend([
            of(SampleKind::OffCpu, 0),
            of(SampleKind::Wall, config.period()),
            of(SampleKind::Lock, 0),
        ]),
        Err(reason) => {
            let kinds = [SampleKind::OffCpu, SampleKind::Wall, SampleKind::Lock];
            missing.extend(kinds.map(|kind| (kind, reason.as_str().into())));
        }
    }
    match &profiler.page_faults {
        Ok(_) => types.push(of(SampleKind::PageFaults, PAGE_FAULT_PERIOD.into())),
        Err(reason) => missing.push((SampleKind::PageFaults, reason.as_str().into())),
    }
    types.extend([SampleKind::Heap, SampleKind::Alloc].map(|kind| of(kind, HEAP_PERIOD)));
    types.push(of(SampleKind::Goroutines, 1));
    (types, missing)
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<part::Running> {
    let else_left = "the last samples were not named in time and are not exported";
    let ending = Ending { within: ENDING, else_left, is_loss: true };
    part::spawn(name, ending, work).with_context(|| format!("failed to start the thread `{name}`"))
}

impl Tell {
    /// A span is complete. Only requests and calls are passed on: their code can be seen.
    pub(super) fn ended(
        &mut self,
        span: &Span,
        wall_offset: u64,
        (is_shared, continues): (bool, Option<u64>),
    ) {
        if !matches!(span.detail, Detail::Http(_) | Detail::Rpc(_)) {
            return;
        }
        if self.spans.len() + self.waiting.load(Ordering::Relaxed) >= SPANS {
            self.unreported += 1;
            return;
        }
        self.spans.push(Ended {
            exchange: span.exchange,
            start: span.start.saturating_sub(wall_offset),
            end: span.end.saturating_sub(wall_offset),
            trace_id: span.trace_id,
            span_id: span.span_id,
            route: Arc::clone(span.detail.operation().place),
            service: Arc::clone(&span.service),
            is_server: span.kind == SpanKind::Server,
            is_booked: span.spent.as_ref().is_some_and(|spent| spent.times.is_some()),
            is_shared,
            continues,
        });
    }

    /// The traces whose samples stay from now on; all others' go when their time has come.
    pub(super) fn keeps(&mut self, traces: Vec<[u8; 16]>) {
        self.kept = Some(traces);
    }

    /// Hands over the spans since the last call.
    pub(super) fn flush(&mut self) {
        if let Some(traces) = self.kept.take()
            && let Err(TrySendError::Full(Notice::Kept(traces))) = self.notices.try_send(Notice::Kept(traces))
        {
            self.kept = Some(traces);
        }
        if self.spans.is_empty() {
            return;
        }
        let n = self.spans.len();
        let spans = std::mem::replace(&mut self.spans, Vec::with_capacity(n.min(1024)));
        self.waiting.fetch_add(n, Ordering::Relaxed);
        if self.notices.try_send(Notice::Ended(spans)).is_err() {
            self.waiting.fetch_sub(n, Ordering::Relaxed);
            self.unreported += n as u64;
        }
    }

    /// Who a process is.
    pub(super) fn called(&mut self, pid: u32, origin: Origin) {
        self.tell(Notice::Called(pid, Arc::new(origin)));
    }

    /// A process is not watched: it is not sampled, and nothing is read of it.
    pub(super) fn left_out(&mut self, pid: u32) {
        self.tell(Notice::LeftOut(pid));
    }

    /// A process is another one, or runs another program, since `time` (`CLOCK_MONOTONIC`).
    pub(super) fn renewed(&mut self, pid: u32, time: u64) {
        self.tell(Notice::Renewed(pid, time));
    }

    /// The sampler's next report.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// What profiling does and costs.
    pub(super) fn view(&self) -> View {
        let mut view = View::clone(&self.view.load());
        view.failures.push(("pipeline_untold", self.unreported));
        view
    }

    /// What the kernel knows of the program.
    pub(super) fn programs(&self) -> Arc<Vec<Measured>> {
        self.programs.load_full()
    }

    fn tell(&mut self, notice: Notice) {
        self.unreported += u64::from(self.notices.try_send(notice).is_err());
    }
}
