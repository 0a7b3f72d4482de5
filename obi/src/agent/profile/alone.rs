//! Sampling without an agent, for as long as the caller waits: `obi profile` where none runs.
//!
//! In: which samples, for how long. Out: a [`Selection`], after which nothing is left in the kernel. Knows no requests:
//! samples by route or span need the agent.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{Report, Started, Tell, open};
use crate::capture::discover::{ExecArguments, Processes};
use crate::capture::kernel_types::KernelTypes;
use crate::capture::program::SharedMaps;
use crate::clock::{Clock, monotonic_ns};
use crate::config::{self, Config};
use crate::profile::choose::Filter;
use crate::profile::{Origin, SampleKind, Selection};
use crate::span::service::{self, Host, Services};

/// How often processes are named.
const ROUND: Duration = Duration::from_millis(50);
/// Samples are on their way for so long at most.
const SETTLE: Duration = Duration::from_millis(1_200);

/// Samples for a while; `filter`'s times are set here. `progress` gets the time that has passed.
///
/// # Errors
/// When this kernel, or what it allows us, is not enough.
pub async fn record(
    config: &Config,
    filter: Filter,
    duration: Duration,
    mut progress: impl FnMut(Duration),
) -> anyhow::Result<Selection> {
    let types = KernelTypes::read(Some(&config.capture.btf)).context("failed to read the kernel's types")?;
    let shared = SharedMaps::of_nobody().context("failed to make kernel maps")?;
    let page_faults = filter.kind == SampleKind::PageFaults;
    let profile = config::Profile { page_faults, off_cpu: false, ..config.profile.clone() };
    let prepared = open(&profile, false, &shared, &types)?;
    let mut processes = processes()?;
    let Started { mut tell, handle, running, exports } = prepared.start(Arc::new(AtomicBool::new(false)))?;
    drop(exports);
    let clock = Clock::now();
    let start = monotonic_ns();
    let began = Instant::now();
    while began.elapsed() < duration + SETTLE {
        name(&mut tell, &mut processes);
        progress(began.elapsed().min(duration));
        tokio::time::sleep(ROUND).await;
    }
    let end = start + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2);
    let mut asked = pin!(handle.ask(Filter { start: clock.unix(start), end: clock.unix(end), ..filter }));
    // What is read when it is asked for needs names of processes, too.
    let selection = loop {
        tokio::select! {
            selection = &mut asked => break selection,
            () = tokio::time::sleep(ROUND) => name(&mut tell, &mut processes),
        }
    };
    drop(tell);
    for part in running {
        part.finish().await;
    }
    Ok(selection?)
}

/// Says who the processes are that the sampler asks for.
fn name(tell: &mut Tell, processes: &mut Processes<Services>) {
    while let Some(report) = tell.report() {
        if let Report::Who(pid) = report {
            tell.called(pid, origin(processes, pid));
        }
    }
}

/// Names of all services that run.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn services() -> anyhow::Result<BTreeSet<String>> {
    let mut processes = processes()?;
    let running = processes.table().watched_processes();
    let services =
        running.into_iter().filter_map(|pid| processes.lookup(pid)).map(|it| it.service.name.clone());
    Ok(services.collect())
}

/// All that run.
fn processes() -> anyhow::Result<Processes<Services>> {
    let services = Services::new(Host::read());
    let mut processes = Processes::new(Default::default(), std::process::id(), services, Default::default());
    processes.scan().context("failed to list `/proc`")?;
    Ok(processes)
}

fn origin(processes: &mut Processes<Services>, pid: u32) -> Origin {
    if processes.lookup(pid).is_none() {
        processes.exec(pid, service::UNKNOWN.as_bytes(), &ExecArguments::default());
    }
    let instance = processes.instance(pid).unwrap_or_default();
    let (service, path) =
        processes.lookup(pid).map(|process| (process.service, process.executable)).unwrap_or_default();
    let executable = path.rsplit('/').next().unwrap_or_default().into();
    Origin { pid, service, instance, executable }
}
