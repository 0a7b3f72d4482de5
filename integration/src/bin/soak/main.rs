//! A soak of the whole agent: `soak [--minutes N] [--warm-up N] [--times N]`; one table on stdout, exit status 1 when
//! something grows.
//!
//! In: a built agent, nginx, curl. Out: the slope of the lower edge of its memory, kernel maps and descriptors, with
//! standard errors, and whether every request was seen or counted as lost. What of the memory is the page's history
//! has a row of its own; its bound is so low that it is full within the warm-up, as by default after two hours. Samples
//! are held so briefly that all of them have been replaced once by then, as by default after half an hour. The load is
//! small and steady, with processes that come and go, as on a machine without an operator. A line a minute goes to
//! stderr.

mod load;
mod slope;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::seed::note;
use integration::server::nginx::{Files, files};
use serde_json::json;

use crate::load::Load;
use crate::slope::{Line, lower_edge};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS_PER_MINUTE: usize = 12;
const MEGABYTE: f64 = 1e6;
/// Slopes must be known this well, MB a minute.
const WANTED_ERROR: f64 = 0.03;
/// The same, descriptors a minute.
const DESCRIPTORS_ERROR: f64 = 0.1;
/// Bound of the page's history, bytes: it fills in some eight minutes, with defaults in two hours. From then on an old
/// slot goes for each new one.
const HISTORY_BYTES: u32 = 8192;
/// How long samples are held. Memory has its lasting size once what was held when the store was full has given way to
/// newer samples of other sizes: after twice this time.
const RETENTION: &str = "5m";
/// Kernel maps of capture at any time, MB.
const CAPTURE_MAPS: f64 = 25.0;

/// How long.
#[derive(Debug, Clone, Copy)]
struct Plan {
    minutes: usize,
    /// Of those: not counted, since stores fill.
    warm_up: usize,
    /// So many times the load: what grows with it is found sooner.
    times: usize,
}

/// One look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    resident: f64,
    /// Without what is of files: the program, and memory that is shared with the kernel.
    anonymous: f64,
    /// What the page's history has of it.
    history: f64,
    maps: f64,
    capture: f64,
    profile: f64,
    /// What the kernel says of all maps that the agent holds open.
    counted: f64,
    descriptors: f64,
}

fn main() -> anyhow::Result<ExitCode> {
    let plan = arguments(std::env::args().skip(1))?;
    let server = files(Files::Sendfile)?;
    // Other nginx and curl on this machine are others' business.
    let folder = tempfile::tempdir().context("make a folder for curl")?;
    let client = format!("curl-{:08x}", fastrand::u32(..));
    let curl = folder.path().join(&client);
    std::fs::copy("/usr/bin/curl", &curl).context("copy /usr/bin/curl")?;
    let watched = ["*/".to_owned() + &server.service, "*/".to_owned() + &client];
    let watched = json!(watched.map(|executable| json!({"executable": executable})));
    let config = Config::plain()
        .set("discover", "include", watched)
        .set("web", "history_bytes", HISTORY_BYTES.to_string())
        .set("profile", "retention", RETENTION);
    let agent = Agent::start(config)?;
    let load = Load::start(&server, &curl, u32::try_from(plan.times)?)?;
    let begun = Instant::now();
    let mut seen = Vec::new();
    for minute in 1..=plan.minutes {
        while seen.len() < minute * LOOKS_PER_MINUTE {
            let next = begun + LOOK * u32::try_from(seen.len() + 1)?;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            seen.push(look(&agent)?);
        }
        let Seen { resident, anonymous, history, maps, descriptors, .. } = seen[seen.len() - 1];
        note(&format!(
            "minute {minute} of {}: RSS {resident:.3} MB, anonymous {anonymous:.3} MB, history {history:.4} MB, \
             kernel maps {maps:.1} MB, {descriptors} descriptors",
            plan.minutes
        ));
    }
    let sent = load.stop()?;
    let mut is_well = report(&seen[plan.warm_up * LOOKS_PER_MINUTE..], &seen);
    for (side, service, n) in [("server", &*server.service, sent.all), ("client", &client, sent.by_processes)]
    {
        let (seen, lost) = counted(&agent, side, service, n)?;
        let is_whole = (seen + lost - n as f64).abs() < 0.5;
        is_well &= is_whole;
        let said = if is_whole { "yes" } else { "NO" };
        println!("| {side} requests | {n} sent, {seen} seen, {lost} lost | | sent = seen + lost: {said} |");
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Plan> {
    let mut plan = Plan { minutes: 60, warm_up: 20, times: 1 };
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        let number = value.parse().with_context(|| format!("{name} {value} is not a number"))?;
        match name.as_str() {
            "--minutes" => plan.minutes = number,
            "--warm-up" => plan.warm_up = number,
            "--times" => plan.times = number,
            _ => bail!("unknown argument {name}: usage: soak [--minutes N] [--warm-up N] [--times N]"),
        }
    }
    if plan.minutes < plan.warm_up + 3 {
        bail!("--minutes {} leaves fewer than 3 minutes behind --warm-up {}", plan.minutes, plan.warm_up);
    }
    Ok(plan)
}

fn look(agent: &Agent) -> anyhow::Result<Seen> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let memory = |name: &str| -> anyhow::Result<f64> {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        let kilobytes: f64 = value.with_context(|| format!("a process has {name}"))?.parse()?;
        Ok(kilobytes * 1024.0 / MEGABYTE)
    };
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count();
    let metrics = agent.metrics()?;
    let maps = |labels: &[(&str, &str)]| metrics.sum("obi_bpf_map_bytes", labels) / MEGABYTE;
    Ok(Seen {
        resident: memory("VmRSS:")?,
        anonymous: memory("RssAnon:")?,
        history: metrics.sum("obi_history_bytes", &[]) / MEGABYTE,
        maps: maps(&[]),
        capture: maps(&[("subsystem", "capture")]),
        profile: maps(&[("subsystem", "profile")]),
        counted: agent.kernel_map_bytes()? as f64 / MEGABYTE,
        descriptors: descriptors as f64,
    })
}

/// Spans of a service on one side and what was lost, once nothing more comes or all have come.
fn counted(agent: &Agent, side: &str, service: &str, sent: u64) -> anyhow::Result<(f64, f64)> {
    let of = |metrics: &Exposition| {
        let side = [("service_name", service), ("side", side)];
        (metrics.sum("obi_spans_total", &side), metrics.sum("obi_lost_total", &side))
    };
    let metrics = agent.metrics_until(Duration::from_secs(30), |metrics| {
        let (seen, lost) = of(metrics);
        seen + lost >= sent as f64
    })?;
    Ok(of(&metrics))
}

/// Prints the table. True when nothing grows and the slopes are known well enough.
fn report(counted: &[Seen], all: &[Seen]) -> bool {
    println!("| what | lower edge, per minute | first and last minute | bar |");
    println!("|---|---|---|---|");
    let mut is_flat = true;
    let mut row = |name: &str, unit: &str, wanted_error: Option<f64>, value: fn(&Seen) -> f64| {
        let values: Vec<f64> = counted.iter().map(value).collect();
        let edge = lower_edge(&values, LOOKS_PER_MINUTE);
        let Some(line) = Line::through(&edge) else { return };
        let bar = wanted_error.map_or(String::new(), |wanted_error| {
            let is_well = !line.grows() && line.error <= wanted_error;
            is_flat &= is_well;
            let said = if is_well { "yes" } else { "NO" };
            format!("no growth beyond two errors, error ≤ {wanted_error}: {said}")
        });
        println!(
            "| {name} | {:+.4} ± {:.4} {unit} | {:.3}, {:.3} {unit} | {bar} |",
            line.slope,
            line.error,
            edge.first().copied().unwrap_or_default(),
            edge.last().copied().unwrap_or_default(),
        );
    };
    row("RSS", "MB", Some(WANTED_ERROR), |seen| seen.resident);
    row("of it anonymous", "MB", Some(WANTED_ERROR), |seen| seen.anonymous);
    row("of it the page's history", "MB", None, |seen| seen.history);
    row("kernel maps", "MB", Some(WANTED_ERROR), |seen| seen.maps);
    row("of these capture", "MB", Some(WANTED_ERROR), |seen| seen.capture);
    row("of these profiles", "MB", Some(WANTED_ERROR), |seen| seen.profile);
    row("maps held open, by the kernel", "MB", Some(WANTED_ERROR), |seen| seen.counted);
    row("descriptors", "", Some(DESCRIPTORS_ERROR), |seen| seen.descriptors);
    let most = all.iter().map(|seen| seen.capture).fold(0.0, f64::max);
    let said = if most <= CAPTURE_MAPS { "yes" } else { "NO" };
    println!("| capture maps, at most | {most:.1} MB | | ≤ {CAPTURE_MAPS} MB at all times: {said} |");
    is_flat && most <= CAPTURE_MAPS
}
