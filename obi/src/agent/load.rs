//! Everything that needs privileges, and the pipeline made of it.
//!
//! In: a checked configuration, what the kernel supports. Out: attached programs, the pipeline that reads them, and
//! parts that wait for their start. Refuses to start a thread.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::foreign::{Counting, Foreign};
use super::kernel::Kernel;
use super::open_calls::OpenCalls;
use super::pipeline::Pipeline;
use super::reload::Reload;
use super::room::Room;
use super::route_state::RouteState;
use super::span_pipeline::SpanPipeline;
use super::systemd::Beat;
use super::wait::Wait;
use super::{kubernetes, process, profile, tls};
use crate::capture::discover::Processes;
use crate::capture::hook_set::Preemption;
use crate::capture::program::{Programs, Settings, flavour_name, return_memory};
use crate::capture::select::{self, Selection, State, Verdict};
use crate::capture::support::Support;
use crate::capture::support::blind_spot::BlindSpot;
use crate::cause::{Causes, context::Ids};
use crate::clock::{Clock, tick_ns};
use crate::config::Config;
use crate::export::otlp::SpanExport;
use crate::privilege::{self, Kept};
use crate::protocol::Exchanges;
use crate::red::Registry;
use crate::span::assemble::Assembler;
use crate::span::method::KnownMethods;
use crate::span::route::Patterns;
use crate::span::service::{Host, Numbers, Peers, Services};
use crate::span_store::Store;
use crate::stats::{HookSetState, Stats};
use crate::web;

/// What the pipeline is asked for and given.
pub(super) struct Inputs {
    pub(super) commands: mpsc::Receiver<web::Command>,
    pub(super) reloads: mpsc::Receiver<Reload>,
    pub(super) span_export: SpanExport,
    /// Who asks for the names of pods.
    pub(super) cluster: Option<kubernetes::Started>,
    pub(super) stopping: Arc<AtomicBool>,
}

/// What is loaded and not yet running.
pub(super) struct Loaded {
    pub(super) pipeline: Pipeline,
    pub(super) naming: process::Prepared,
    /// `None` where TLS is not wanted or not possible.
    pub(super) probing: Option<tls::Prepared>,
    pub(super) sampling: anyhow::Result<profile::Prepared>,
    pub(super) cluster: Option<kubernetes::Started>,
    /// The capabilities that are left.
    pub(super) kept: Kept,
}

/// Loads and attaches everything, and gives up what that has needed. `support`: what the kernel allows; `None` where
/// nothing is to be captured.
///
/// # Errors
/// When the kernel refuses what capture needs, or privileges cannot be given up.
pub(super) fn load(config: &Config, support: Option<Support>, inputs: Inputs) -> anyhow::Result<Loaded> {
    match support {
        Some(support) => with_capture(config, support, inputs),
        None => without_capture(config, inputs),
    }
}

fn with_capture(config: &Config, support: Support, mut inputs: Inputs) -> anyhow::Result<Loaded> {
    let settings = settings(config, &support);
    let selection = select::load(&support, config.capture.hooks.forced(), &settings)?;
    report(&selection);
    let Selection { loaded: mut programs, verdicts, not_seen, .. } = selection;
    let shared = programs.shared_maps();
    let (services, numbers) = services(config, &inputs);
    let pods = inputs.cluster.as_ref().map(|cluster| cluster.pods.clone());
    let mut processes =
        Processes::new(config.discover.clone(), settings.self_tgid, services, Default::default());
    let maps = programs.start()?;
    // After the start: who begins in between is known from the kernel's event.
    processes.scan().context("failed to list `/proc`")?;
    let (processes, naming) = process::prepare(processes, programs.held_maps(), pods);
    // Requests are captured already: a look at everything that is mapped takes a while.
    let sampling = profile::prepare(&config.profile, &settings, shared, support.types.as_ref());
    drop(support);
    return_memory();
    let mut span_pipeline = span_pipeline(config, processes, &mut inputs, programs.sees_waits())?;
    span_pipeline.keep_accounts(programs.keeps_accounts());
    let counts = config.receive.otlp.is_on() && config.receive.otlp.count;
    span_pipeline.foreign = counts.then(|| Foreign::new(Counting::Uncaptured, numbers));
    span_pipeline.stats.hook_set = programs.set().name();
    span_pipeline.stats.hook_sets = verdicts.into_iter().map(hook_set_state).collect();
    span_pipeline.stats.not_seen = not_seen.into_iter().map(BlindSpot::what).collect();
    let wait = Wait::new(&maps.events).context("failed to watch the ring buffer")?;
    let mut kernel = Kernel::new(programs, maps, exchanges(config));
    let probing = prepare_probing(&mut kernel, &span_pipeline);
    let by_event = probing.as_ref().is_some_and(|prepared| !prepared.is_multi());
    let kept = privilege::reduce(by_event, || kernel.maps.n_ignored.get(&0, 0).map(|_| ()))?;
    let (pipeline, cluster) = pipeline(Some(kernel), span_pipeline, wait, inputs);
    Ok(Loaded { pipeline, naming, probing, sampling, cluster, kept })
}

/// Why nothing of the kernel's is known.
const OFF: &str = "`capture.enabled` is `false`";

/// Loads nothing: requests are counted from the spans that others send.
fn without_capture(config: &Config, mut inputs: Inputs) -> anyhow::Result<Loaded> {
    let (services, numbers) = services(config, &inputs);
    let pods = inputs.cluster.as_ref().map(|cluster| cluster.pods.clone());
    let processes = Processes::new(config.discover.clone(), std::process::id(), services, Default::default());
    let (processes, naming) = process::prepare(processes, None, pods);
    let mut span_pipeline = span_pipeline(config, processes, &mut inputs, false)?;
    span_pipeline.keep_accounts(Err(OFF.to_owned()));
    span_pipeline.foreign = Some(Foreign::new(Counting::All, numbers));
    let wait = Wait::for_bell().context("failed to make a bell")?;
    let kept = privilege::reduce(false, || Ok::<_, std::convert::Infallible>(()))?;
    let (pipeline, cluster) = pipeline(None, span_pipeline, wait, inputs);
    let sampling = Err(anyhow::anyhow!(OFF));
    Ok(Loaded { pipeline, naming, probing: None, sampling, cluster, kept })
}

/// Who names services, and their numbers.
fn services(config: &Config, inputs: &Inputs) -> (Services, Numbers) {
    let mut services = Services::new(Host::read());
    if let Some(cluster) = &inputs.cluster {
        cluster.wait();
        services = services.with_pods(cluster.pods.clone(), &config.kubernetes);
    }
    let numbers = services.numbers();
    (services, numbers)
}

fn pipeline(
    kernel: Option<Kernel>,
    span_pipeline: SpanPipeline,
    wait: Wait,
    inputs: Inputs,
) -> (Pipeline, Option<kubernetes::Started>) {
    let Inputs { commands, reloads, cluster, stopping, .. } = inputs;
    let (asked, beat) = (Vec::new(), Beat::default());
    (Pipeline { kernel, span_pipeline, commands, asked, reloads, wait, stopping, beat }, cluster)
}

fn settings(config: &Config, support: &Support) -> Settings {
    Settings {
        self_tgid: std::process::id(),
        ring_bytes: config.capture.ring_bytes,
        head_limit: config.capture.head_limit,
        tick_ns: tick_ns(),
        statistics: config.capture.statistics,
        tls: config.capture.tls,
        waiting: config.profile.waiting,
        tells_given: support.capabilities.can_read_processes(),
        follows_databases: config.protocol.databases.server_spans,
        preemption: Preemption::None,
    }
}

fn exchanges(config: &Config) -> Exchanges {
    let mut exchanges = Exchanges::new(crate::protocol::Limits {
        open: config.protocol.pending_limit as usize,
        head_bytes: config.capture.head_limit as usize,
        ..Default::default()
    });
    exchanges.set_databases(config.protocol.databases);
    exchanges
}

fn span_pipeline(
    config: &Config,
    processes: process::Directory,
    inputs: &mut Inputs,
    sees_waits: bool,
) -> anyhow::Result<SpanPipeline> {
    let route_limit = config.metrics.route_limit as usize;
    let methods = KnownMethods::from_list(&config.trace.known_methods.join(","));
    let mut assembler = Assembler::new(methods, route_limit);
    let routes = assembler.routes_mut();
    routes.configure(Patterns::new(&config.trace.routes)?, route_limit);
    let route_state = RouteState::open(&config.trace.route_state, routes);
    Ok(SpanPipeline {
        processes,
        causes: Causes::new(Ids::from_entropy(), config.trace.parents, sees_waits),
        room: Room::default(),
        assembler,
        route_state,
        registry: Registry::new(crate::red::Limits {
            series: config.metrics.series_limit as usize,
            idle: Duration::from_secs(config.metrics.idle_seconds.into()),
            history: config.web.history_bytes as usize,
            ..Default::default()
        }),
        store: Store::new(crate::span_store::Limits {
            spans: config.web.spans as usize,
            bytes: config.web.span_bytes as usize,
            kept_bytes: config.slo.evidence_bytes as usize / 2,
        }),
        span_export: std::mem::take(&mut inputs.span_export),
        stats: Stats::default(),
        clock: Clock::now(),
        spare: None,
        objectives: None,
        profile: None,
        intake: None,
        foreign: None,
        peers: inputs.cluster.as_ref().map(|cluster| Peers::new(cluster.pods.clone(), &config.kubernetes)),
        keeps_accounts: false,
        open_calls: OpenCalls::default(),
        served: (0, 0),
    })
}

/// Probes the first TLS libraries, where that is wanted and possible.
fn prepare_probing(kernel: &mut Kernel, span_pipeline: &SpanPipeline) -> Option<tls::Prepared> {
    let programs = kernel.programs.take_user_programs()?;
    for (program, reason) in programs.skipped() {
        tracing::warn!(program, reason, "the kernel refuses a program at libraries: some of TLS is not read");
    }
    if programs.loaded().next().is_none() {
        let reason = programs.skipped().first().map_or("", |(_, reason)| reason);
        tracing::warn!(reason, "TLS is not read: the kernel takes no program for it");
        return None;
    }
    Some(tls::prepare(programs, span_pipeline.processes.table().watched_processes()))
}

/// Which set captures and why; what should have worked and did not.
fn report(Selection { set, loaded, why, not_seen, verdicts }: &Selection<Programs>) {
    for verdict in verdicts.iter().filter(|verdict| verdict.state == State::Refused) {
        tracing::warn!(hook_set = %verdict.set, reason = verdict.reason, "hook set refused, the next one is used");
    }
    let object = flavour_name(loaded.flavour());
    let not_seen = not_seen.iter().map(|spot| spot.what()).collect::<Vec<_>>().join(", ");
    tracing::info!(hook_set = %set, object, why, not_seen, "kernel programs attached");
    for (program, reason) in loaded.skipped() {
        tracing::debug!(program, reason, "optional kernel program not used");
    }
}

fn hook_set_state(verdict: Verdict) -> HookSetState {
    HookSetState { set: verdict.set.name(), state: verdict.state.name(), reason: verdict.reason }
}
