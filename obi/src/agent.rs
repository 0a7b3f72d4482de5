//! The composition root: makes every stage, joins them, runs, drains on a signal.
//!
//! In: a checked configuration and a signal to stop. Out: when it returns, nothing of the agent is left
//! in the kernel.
//!
//! ```text
//! Opened ──────────▶ Loaded ─────────────▶ Running ─────────▶ finish
//! what the           what needs            threads and        each part ends when the
//! configuration      privileges            tasks, with what   last sender is dropped
//! names              (`load`)              is left of those
//! ```

mod exports;
mod foreign;
pub mod heap;
mod kernel;
mod kubernetes;
mod load;
mod misses;
mod open_calls;
mod pages;
mod part;
mod pipeline;
mod process;
pub mod profile;
mod received;
mod reload;
mod room;
mod route_state;
mod span_pipeline;
mod systemd;
mod tally;
mod tls;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle as Task, spawn_blocking};

use self::exports::{Export, Exports, Passing, Wanted};
use self::load::{Inputs, Loaded};
use self::pipeline::Pipeline;
use self::received::Intake;
use self::reload::{Exported, Reloader};
use self::span_pipeline::SpanPipeline;
use self::wait::Bell;
use crate::capture::support::Support;
use crate::clock::{Clock, monotonic_ns};
use crate::config::{self, Config, Source};
use crate::export::otlp::{Accounts, Exporter, Plan};
use crate::listener::Listening;
use crate::listener::tls::{Files, Tls};
use crate::objective::{self, files};
use crate::privilege::{self, Kept};
use crate::receive;
use crate::shutdown::Shutdown;
use crate::web::{self, Handle};

/// Questions of the web that may wait for the pipeline.
const COMMANDS: usize = 64;
/// How long answers under way may take at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Runs the agent until `shutdown` completes. `support`: `None` where nothing is to be captured.
///
/// # Errors
/// When the listen address is taken, or the kernel refuses what capture needs.
pub async fn run(
    config: Config,
    source: Source,
    support: Option<Support>,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    let (opened, inputs) = Opened::new(&config, source).await?;
    let loaded = load::load(&config, support, inputs)?;
    let running = opened.start(&config, loaded)?;
    shutdown.wait().await;
    systemd::stopping();
    running.finish().await
}

/// Files and addresses that the configuration names, opened while that is allowed.
struct Opened {
    exporter: Exporter,
    replaced: mpsc::UnboundedReceiver<Export>,
    objectives: Vec<slo::Objective>,
    reloader: Reloader,
    web: Web,
    receive: Option<(receive::Plan, receive::Inlets)>,
    commands: mpsc::Sender<web::Command>,
    stopping: Arc<AtomicBool>,
}

/// Everything that runs, to be ended.
struct Running {
    pipeline: JoinHandle<SpanPipeline>,
    bell: Bell,
    ready: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
    reloading: Task<()>,
    trimming: Task<()>,
    /// Feeds systemd's watchdog.
    living: Task<()>,
    /// The parts that the pipeline sends messages to, in the order of their end.
    parts: Vec<part::Running>,
    /// Its table is read until the last span has gone.
    naming: part::Running,
    cluster: Option<kubernetes::Started>,
    objectives: Option<objective::Running>,
    /// How objectives stand.
    view: objective::Handle,
    exports: Exports,
    receiving: Option<receive::Listeners>,
    web: Listening,
}

/// The listener for people and scrapers, and its certificate.
struct Web {
    socket: TcpListener,
    tls: Option<Tls>,
}

impl Opened {
    async fn new(config: &Config, source: Source) -> anyhow::Result<(Self, Inputs)> {
        // Certificates and keys are read while we may.
        let accounts =
            Accounts::new(Clock::now().unix(monotonic_ns())).with_logs(config.receive.otlp.is_on());
        let plan = Plan::after(accounts, &config.export)?;
        let (replacements, replaced) = exports::replacements();
        let exported = Exported { accounts: plan.accounts().clone(), replacements };
        let objectives =
            event_objectives(files::load(&config.slo.files).with_context(|| source.place("slo.files"))?);
        let (reloader, reloads) = reload::on_hangup(source, config.clone(), exported)
            .context("failed to install the handler of SIGHUP")?;
        let web = Web::open(&config.web).await?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let finds_requests = config.receive.otlp.count || !config.capture.enabled;
        let receive = receive::Plan::new(&config.receive.otlp, host).await?;
        let receive = receive.map(|(plan, inlets)| (plan.finding_requests(finds_requests), inlets));
        let (commands, asked) = mpsc::channel(COMMANDS);
        let stopping = Arc::new(AtomicBool::new(false));
        let (span_export, exporter) = plan.start();
        let cluster = kubernetes::start(&config.kubernetes)
            .context("failed to start the thread for the names of pods")?;
        let inputs =
            Inputs { commands: asked, reloads, span_export, cluster, stopping: Arc::clone(&stopping) };
        Ok((Self { exporter, replaced, objectives, reloader, web, receive, commands, stopping }, inputs))
    }

    /// Starts every thread and task with the privileges that are left, and gives up those of this one.
    fn start(self, config: &Config, loaded: Loaded) -> anyhow::Result<Running> {
        let Self { exporter, replaced, objectives, reloader, web, receive, commands, stopping } = self;
        let Loaded { mut pipeline, naming, probing, sampling, cluster, kept } = loaded;
        let naming = naming.start().context("failed to start the thread for processes")?;
        let mut parts = Vec::new();
        let wanted = Arc::new(AtomicBool::new(exporter.wants_profiles()));
        let kept_bytes = config.slo.evidence_bytes as usize / 2;
        let sampling = sampling.map(|prepared| prepared.keeping(kept_bytes));
        let (profiles, selections) = match sampling.and_then(|prepared| prepared.start(Arc::clone(&wanted))) {
            Ok(profile::Started { tell, handle, running, exports }) => {
                pipeline.span_pipeline.profile = Some(tell);
                pipeline.span_pipeline.span_export.link_profiles(true);
                parts.extend(running);
                (handle, Some(exports))
            }
            Err(reason) => (profile::off(&config.profile, &reason), None),
        };
        if let Some(prepared) = probing {
            let (watch, running) =
                prepared.start().context("failed to start the thread for TLS libraries")?;
            if let Some(kernel) = &mut pipeline.kernel {
                kernel.tls = Some(watch);
            }
            parts.push(running);
        }
        let url = web.url()?;
        announce(&pipeline, &url, &kept);
        let bell = pipeline.wait.bell();
        let (beat, hook_set) = (pipeline.beat.clone(), pipeline.span_pipeline.stats.hook_set);
        let call = bell.clone();
        let handle = Handle::new(commands, Arc::new(move || call.ring()));
        let sampled = selections.map(|selections| exports::Profiles { selections, wanted });
        let (passed, receiving) = receive.map_or((None, None), |(plan, inlets)| {
            let wanted = Arc::new(Wanted::default());
            wanted.by(&exporter);
            pipeline.span_pipeline.intake = Some(Intake::new(inlets.batches, inlets.counts));
            let (takes, call) = (Arc::clone(&wanted), bell.clone());
            let listeners = plan.start(Arc::new(move |kind| takes.has(kind)), Arc::new(move || call.ring()));
            (Some(Passing { requests: inlets.passed, wanted }), Some(listeners))
        });
        let (mut watching, mut view) = (None, objective::Handle::default());
        if !objectives.is_empty() {
            let (recorder, answers, running) = start_objectives(config, objectives, &web)?;
            pipeline.span_pipeline.objectives = Some(recorder);
            view = answers;
            watching = Some(running);
        }
        let export = Export { exporter, period: config.export.metric_interval };
        let sources = exports::Sources { profiles: sampled, passed, objectives: view.clone() };
        let exports = exports::start(export, replaced, handle.clone(), sources);
        let ready = Arc::new(AtomicBool::new(true));
        let state = web::State::new(handle, Arc::clone(&ready))
            .with_profiles(profiles)
            .configured(&config.web)
            .with_objectives(view.clone());
        let thread = std::thread::Builder::new()
            .name("pipeline".to_owned())
            .spawn(move || {
                privilege::keep_maps().expect("giving up needs no privilege");
                pipeline.run()
            })
            .context("failed to start the pipeline thread")?;
        // This thread only waits from now on; those of the runtime gave up everything when they started.
        privilege::give_up()?;
        privilege::verify(&kept)?;
        let running = Running {
            pipeline: thread,
            reloading: tokio::spawn(reloader.run(bell.clone())),
            bell,
            ready,
            stopping,
            trimming: tokio::spawn(heap::keep_small()),
            living: tokio::spawn(systemd::keep_alive(beat)),
            parts,
            naming,
            cluster,
            objectives: watching,
            view,
            exports,
            receiving,
            web: web.start(state),
        };
        systemd::ready(&match hook_set {
            "" => format!("counting what is sent; {url}/"),
            set => format!("watching by hook set {set}; {url}/"),
        });
        Ok(running)
    }
}

impl Web {
    async fn open(config: &config::Web) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("web.listen: failed to listen on `{}`", config.listen))?;
        let files = config.cert_file.clone().zip(config.key_file.clone());
        let files = files.map(|(cert, key)| Files { cert, key, client_ca: config.client_ca_file.clone() });
        let tls =
            files.map(Tls::read).transpose().map_err(|error| anyhow::anyhow!("web.cert_file: {error}"))?;
        Ok(Self { socket, tls })
    }

    /// Where it is reached: `http://127.0.0.1:9464`.
    fn url(&self) -> anyhow::Result<String> {
        let address = self.socket.local_addr().context("failed to read the listen address")?;
        Ok(format!("{}://{address}", if self.tls.is_some() { "https" } else { "http" }))
    }

    fn start(self, state: web::State) -> Listening {
        Listening::start(
            self.socket,
            self.tls,
            web::listen::BOUNDS,
            web::listen::Routes::new(web::router(state)),
        )
    }
}

impl Running {
    /// Takes what is still in the ring, hands everything over and waits for it.
    async fn finish(self) -> anyhow::Result<()> {
        self.trimming.abort();
        self.living.abort();
        self.ready.store(false, Ordering::Release);
        if let Some(receiving) = self.receiving {
            // From now on senders keep what they have.
            receiving.finish().await;
        }
        self.stopping.store(true, Ordering::Release);
        self.bell.ring();
        self.reloading.abort();
        // Once it has really ended, no further exporter comes.
        let _ = self.reloading.await;
        let pipeline = self.pipeline;
        let mut span_pipeline = spawn_blocking(move || pipeline.join())
            .await?
            .map_err(|_| anyhow::anyhow!("the pipeline thread panicked"))?;
        span_pipeline.hand_over();
        // A part ends when the last sender to it is dropped.
        drop(span_pipeline.profile.take());
        for part in self.parts {
            part.finish().await;
        }
        let view = spawn_blocking(move || self.view.view()).await?;
        if let Some(objectives) = self.objectives {
            objectives.finish().await;
        }
        // Questions under way are answered with the pipeline's last state, or refused.
        self.web.finish(LAST_ANSWERS).await;
        self.exports.finish(&mut span_pipeline, view).await;
        drop(span_pipeline);
        self.naming.finish().await;
        if let Some(cluster) = self.cluster {
            cluster.finish().await;
        }
        tracing::info!("stopped; kernel programs detached");
        Ok(())
    }
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
    web: &Web,
) -> anyhow::Result<(objective::record::Recorder, objective::Handle, objective::Running)> {
    let address = web.socket.local_addr().context("failed to read the listen address")?;
    let n = objectives.len();
    let begun = std::time::Instant::now();
    let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // What listens everywhere is reached by the machine's name.
    let host = if address.ip().is_unspecified() { instance.clone() } else { address.ip().to_string() };
    let url = match config.web.external_url.trim_end_matches('/') {
        "" => format!("{}://{host}:{}/", config.web.scheme(), address.port()),
        external => format!("{external}/"),
    };
    let started = objective::start(objective::Start { config: &config.slo, objectives, instance, url })
        .context("failed to start the objectives")?;
    tracing::info!(n, after = ?begun.elapsed(), "objectives watched; budgets on {}/api/v1/slos", web.url()?);
    Ok(started)
}

/// One look at what is watched and what is not; afterwards the log is quiet.
fn announce(pipeline: &Pipeline, url: &str, kept: &Kept) {
    match &pipeline.kernel {
        Some(kernel) => tracing::info!(
            processes = pipeline.span_pipeline.processes.table().watched(),
            tls = kernel.tls.is_some(),
            "watching; what can be seen and not read, as TLS of Java and NSS, \
             is counted in obi_uncovered_connections_total"
        ),
        None => tracing::info!("nothing is captured; requests are counted from the spans that are sent"),
    }
    if pipeline.span_pipeline.profile.is_some() {
        tracing::info!("stacks sampled on every CPU; flame graphs on {url}/profiles");
    }
    tracing::info!("capabilities kept: {kept}; no others can be had any more");
    tracing::info!("metrics on {url}/metrics, spans on {url}/api/v1/spans");
}
