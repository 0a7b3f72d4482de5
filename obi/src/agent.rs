//! The composition root: makes every stage, joins them, runs, drains.
//!
//! In: a checked configuration and a signal to stop. Out: when it returns, nothing of the agent is left
//! in the kernel.

mod exports;
mod heap;
mod misses;
mod outlet;
mod pipeline;
mod process;
pub mod profile;
mod reload;
mod route_state;
mod tally;
mod tls;
mod wait;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use self::exports::Export;
use self::misses::Misses;
use self::outlet::Outlet;
use self::pipeline::Pipeline;
use self::reload::{Exported, Reload};
use self::route_state::RouteState;
use self::tally::Tallies;
use self::wait::Wait;
use crate::capture::discover::Processes;
use crate::capture::hook_set::Preemption;
use crate::capture::program::{Programs, Settings, flavour_name, return_memory};
use crate::capture::select::{self, Selection, State, Verdict};
use crate::capture::support::Support;
use crate::capture::support::blind_spot::BlindSpot;
use crate::clock::{Clock, monotonic_ns, tick_ns};
use crate::config::{Config, Source};
use crate::export::otlp::{Plan, Tap};
use crate::objective::{self, files};
use crate::privilege::{self, Kept};
use crate::protocol::Exchanges;
use crate::red::Registry;
use crate::shutdown::Shutdown;
use crate::span::assemble::Assembler;
use crate::span::context::Ids;
use crate::span::method::KnownMethods;
use crate::span::route::Patterns;
use crate::span::service::{Host, Services};
use crate::span_store::Store;
use crate::stats::{HookSetState, Stats};
use crate::web::{self, Handle};

/// Questions of the web that may wait for the pipeline.
const COMMANDS: usize = 64;

/// Runs the agent until `shutdown` completes.
///
/// # Errors
/// When the listen address is taken, or the kernel refuses what capture needs.
pub async fn run(
    config: Config,
    source: Source,
    support: Support,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    heap::limit();
    // Certificates and keys are read while we may.
    let plan = Plan::new(&config.export, Clock::now().unix(monotonic_ns()))?;
    let (replacements, replaced) = exports::replacements();
    let exported = Exported { accounts: plan.accounts().clone(), replacements };
    let objectives =
        event_objectives(files::load(&config.slo.files).with_context(|| source.place("slo.files"))?);
    let (reloader, reloads) = reload::on_hangup(source, config.clone(), exported)
        .context("failed to install the handler of SIGHUP")?;
    let listener = TcpListener::bind(config.web.listen)
        .await
        .with_context(|| format!("web.listen: failed to listen on `{}`", config.web.listen))?;

    let (sender, commands) = mpsc::channel(COMMANDS);
    let stopping = Arc::new(AtomicBool::new(false));
    let (tap, exporter) = plan.start();
    let Built { mut pipeline, naming, sampling } =
        build(&config, support, Inputs { commands, reloads, tap }, Arc::clone(&stopping))?;
    let probing = prepare_probing(&mut pipeline);
    let bell = pipeline.wait.bell();
    let by_event = probing.as_ref().is_some_and(|prepared| !prepared.is_multi());
    let kept = privilege::reduce(by_event, || pipeline.maps.n_ignored.get(&0, 0).map(|_| ()))?;
    let naming = naming.start().context("failed to start the thread for processes")?;
    let mut probing_running = None;
    if let Some(prepared) = probing {
        let (watch, running) = prepared.start().context("failed to start the thread for TLS libraries")?;
        (pipeline.tls, probing_running) = (Some(watch), Some(running));
    }
    let wanted = Arc::new(AtomicBool::new(exporter.wants_profiles()));
    let (profiles, sampled, profiling) =
        match sampling.and_then(|prepared| prepared.start(Arc::clone(&wanted))) {
            Ok(profile::Started { tell, handle, running, exports }) => {
                pipeline.outlet.profile = Some(tell);
                pipeline.outlet.tap.link_profiles(true);
                (handle, Some(exports), Some(running))
            }
            Err(reason) => (profile::off(&config.profile, &reason), None, None),
        };
    announce(&pipeline, &listener, &kept)?;

    let reloading = tokio::spawn(reloader.run(bell.clone()));
    let call = bell.clone();
    let handle = Handle::new(sender, Arc::new(move || call.ring()));
    let ready = Arc::new(AtomicBool::new(true));
    let export = Export { exporter, period: config.export.metric_interval };
    let sampled = sampled.map(|selections| exports::Profiles { selections, wanted });
    let exports = exports::start(export, replaced, handle.clone(), sampled);
    let hosts = web::host::Hosts::new(&config.web);
    let mut state = web::State::new(handle, Arc::clone(&ready)).with_profiles(profiles).with_hosts(hosts);
    let mut objectives_running = None;
    if !objectives.is_empty() {
        let (recorder, view, running) = start_objectives(&config, objectives, &listener)?;
        pipeline.outlet.objectives = Some(recorder);
        state = state.with_objectives(view);
        objectives_running = Some(running);
    }
    let router = web::router(state);
    let thread = std::thread::Builder::new()
        .name("pipeline".to_owned())
        .spawn(move || pipeline.run())
        .context("failed to start the pipeline thread")?;
    // This thread only waits from now on; those of the runtime gave up everything when they started.
    privilege::give_up()?;
    privilege::verify(&kept)?;

    let (stop_web, web_stopped) = tokio::sync::oneshot::channel::<()>();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move {
        let stopped = async move { drop(web_stopped.await) };
        axum::serve(listener, service).with_graceful_shutdown(stopped).await
    });
    let trimming = tokio::spawn(heap::keep_small());
    shutdown.wait().await;
    trimming.abort();

    ready.store(false, Ordering::Release);
    stopping.store(true, Ordering::Release);
    bell.ring();
    reloading.abort();
    // Once it has really ended, no further exporter comes.
    let _ = reloading.await;
    let mut outlet = tokio::task::spawn_blocking(move || thread.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the pipeline thread panicked"))?;
    outlet.hand_over();
    // The sampler ends when nobody can tell it anything any more.
    drop(outlet.profile.take());
    if let Some(running) = profiling {
        tokio::task::spawn_blocking(move || running.finish()).await?;
    }
    if let Some(running) = probing_running {
        tokio::task::spawn_blocking(move || running.finish()).await?;
    }
    if let Some(running) = objectives_running {
        running.finish().await;
    }
    // Questions under way have been answered with the pipeline's last state, or are refused now.
    drop(stop_web);
    let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
    exports.finish(&mut outlet).await;
    drop(outlet);
    let services = tokio::task::spawn_blocking(move || naming.finish()).await?;
    tracing::info!(services, "stopped; kernel programs detached");
    Ok(())
}

/// Those that count what we see; the others are for `obi slo rules` and `obi slo evaluate`.
fn event_objectives(reading: slo::openslo::Reading) -> Vec<slo::Objective> {
    let (ours, others): (Vec<_>, Vec<_>) =
        reading.objectives.into_iter().partition(slo::Objective::counts_events);
    for other in others {
        let (slo, place) = (&other.name, &other.place);
        tracing::warn!(slo, %place, "objective not watched: its indicator asks another system");
    }
    for finding in
        reading.findings.iter().filter(|finding| finding.severity == slo::openslo::Severity::Warning)
    {
        tracing::warn!("{finding}");
    }
    ours
}

fn start_objectives(
    config: &Config,
    objectives: Vec<slo::Objective>,
    listener: &TcpListener,
) -> anyhow::Result<(objective::record::Recorder, objective::Handle, objective::Running)> {
    let address = listener.local_addr().context("failed to read the listen address")?;
    let n = objectives.len();
    let begun = std::time::Instant::now();
    let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // What listens everywhere is reached by the machine's name.
    let host = if address.ip().is_unspecified() { instance.clone() } else { address.ip().to_string() };
    let url = format!("http://{host}:{}/", address.port());
    let started = objective::start(objective::Start { config: &config.slo, objectives, instance, url })
        .context("failed to start the objectives")?;
    tracing::info!(n, after = ?begun.elapsed(), "objectives watched; budgets on http://{address}/api/v1/slos");
    Ok(started)
}

/// What the pipeline is asked and told.
struct Inputs {
    commands: mpsc::Receiver<web::Command>,
    reloads: mpsc::Receiver<Reload>,
    tap: Tap,
}

/// What is loaded and not yet running.
struct Built {
    pipeline: Pipeline,
    naming: process::Prepared,
    sampling: anyhow::Result<profile::Prepared>,
}

fn build(
    config: &Config,
    support: Support,
    Inputs { commands, reloads, tap }: Inputs,
    stopping: Arc<AtomicBool>,
) -> anyhow::Result<Built> {
    let own = std::process::id();
    let settings = Settings {
        self_tgid: own,
        ring_bytes: config.capture.ring_bytes,
        head_limit: config.capture.head_limit,
        tick_ns: tick_ns(),
        statistics: config.capture.statistics,
        tls: config.capture.tls,
        tells_given: support.capabilities.can_read_processes(),
        follows_databases: config.protocol.databases.server_spans,
        preemption: Preemption::None,
    };
    let selection = select::load(&support, config.capture.hooks.forced(), &settings)?;
    report(&selection);
    let Selection { loaded: mut programs, verdicts, not_seen, .. } = selection;
    let shared = programs.shared_maps();
    let services = Services::new(Host::read());
    let mut processes = Processes::new(config.discover.clone(), own, services, Default::default());
    let maps = programs.start()?;
    // After the start: whoever begins in between is known from the kernel's event.
    processes.scan().context("failed to list `/proc`")?;
    let (processes, naming) = process::prepare(processes, programs.held_maps());
    // Requests are captured already: a look at everything that is mapped takes a while.
    let sampling = profile::prepare(&config.profile, &settings, shared, support.types.as_ref());
    drop(support);
    return_memory();
    let mut stats = Stats::default();
    stats.hook_set = programs.set().name();
    stats.hook_sets = verdicts.into_iter().map(hook_set_state).collect();
    stats.not_seen = not_seen.into_iter().map(BlindSpot::what).collect();
    let route_limit = config.metrics.route_limit as usize;
    let methods = KnownMethods::from_list(&config.trace.known_methods.join(","));
    let mut assembler = Assembler::new(Ids::from_entropy(), methods, route_limit);
    let routes = assembler.routes_mut();
    routes.configure(Patterns::new(&config.trace.routes)?, route_limit);
    let route_state = RouteState::open(&config.trace.route_state, routes);
    let outlet = Outlet {
        processes,
        assembler,
        route_state,
        registry: Registry::new(crate::red::Limits {
            series: config.metrics.series_limit as usize,
            idle: Duration::from_secs(config.metrics.idle_seconds.into()),
            ..Default::default()
        }),
        store: Store::new(crate::span_store::Limits {
            spans: config.web.spans as usize,
            bytes: config.web.span_bytes as usize,
        }),
        tap,
        stats,
        clock: Clock::now(),
        spare: None,
        objectives: None,
        profile: None,
        served: (0, 0),
    };
    let limits = crate::protocol::Limits {
        open: config.protocol.pending_limit as usize,
        head_bytes: config.capture.head_limit as usize,
        ..Default::default()
    };
    let wait = Wait::new(&maps.events).context("failed to watch the ring buffer")?;
    let mut exchanges = Exchanges::new(limits);
    exchanges.set_databases(config.protocol.databases);
    let pipeline = Pipeline {
        programs,
        maps,
        exchanges,
        outlet,
        tallies: Tallies::default(),
        misses: Misses::default(),
        ignored: HashSet::new(),
        commands,
        reloads,
        wait,
        stopping,
        tls: None,
    };
    Ok(Built { pipeline, naming, sampling })
}

/// Probes the first TLS libraries, where that is wanted and possible.
fn prepare_probing(pipeline: &mut Pipeline) -> Option<tls::Prepared> {
    let programs = pipeline.programs.take_user_programs()?;
    for (program, reason) in programs.skipped() {
        tracing::debug!(program, reason, "kernel program for TLS libraries not used");
    }
    if programs.loaded().next().is_none() {
        let reason = programs.skipped().first().map_or("", |(_, reason)| reason);
        tracing::warn!(reason, "TLS is not read: the kernel takes no program for it");
        return None;
    }
    Some(tls::prepare(programs, pipeline.outlet.processes.table().watched_processes()))
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

/// One look at what is watched and what is not; afterwards the log is quiet.
fn announce(pipeline: &Pipeline, listener: &TcpListener, kept: &Kept) -> anyhow::Result<()> {
    let address = listener.local_addr().context("failed to read the listen address")?;
    tracing::info!(
        processes = pipeline.outlet.processes.table().watched(),
        tls = pipeline.tls.is_some(),
        "watching; what can be seen and not read, as TLS of other libraries than OpenSSL and its relatives, is \
         counted in obi_uncovered_connections_total"
    );
    if pipeline.outlet.profile.is_some() {
        tracing::info!(
            "stacks sampled on every CPU; flame graphs on http://{address}/api/v1/profiles?format=svg"
        );
    }
    tracing::info!("capabilities kept: {kept}; no others can be had any more");
    tracing::info!("metrics on http://{address}/metrics, spans on http://{address}/api/v1/spans");
    Ok(())
}
