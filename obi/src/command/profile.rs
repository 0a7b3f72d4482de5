//! `obi profile`: records what a process or a service does, into a file.
//!
//! In: arguments; the running agent, or none. Out: a flame graph, pprof or OTLP. The running agent is asked; without
//! one, this command samples by itself, which needs its privileges.
#![forbid(unsafe_code)]

mod growth;
mod output;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use thiserror::Error;

use self::output::{Kind, read};
use super::slo::agent::{AgentAddress, Reached, Refusal, ask_bytes, reach};
use crate::agent::profile::alone;
use crate::cause::context::parse_id;
use crate::config;
use crate::export::flame::{Frames, Look, View};
use crate::export::{flame, folded, otlp, pprof};
use crate::profile::Selection;
use crate::profile::choose::Filter;
use crate::profile::sample_type::{ROWS, SampleKind};

/// Record what a process or a service does
///
/// Asks the running agent, which samples every CPU all the time; where none runs, samples by itself (as root, without
/// routes and spans). The ending of FILE says what is written: .svg (flame graph), .pb.gz (pprof), .otlp (OTLP
/// profiles, one message). Exit codes: 0 recorded; 1 failed or no samples, with one line that says why; 2 wrong usage
/// or configuration.
#[derive(Debug, clap::Args)]
#[group(id = "whose", required = true, multiple = true, args = ["pid", "service", "span"])]
#[command(after_long_help = "Examples:\n  obi profile --service shop --seconds 30 --output shop.svg\n  \
    obi profile --service shop --seconds 30 --output before.pb.gz\n  \
    obi profile --service shop --seconds 30 --diff before.pb.gz --output change.svg\n  \
    obi profile --service shop --seconds 60 --slow --output slow.svg\n  \
    obi profile --span 00f067aa0ba902b7 --output request.svg\n  \
    obi profile --service shop --type heap --output memory.svg\n  \
    obi profile --pid 4711 --seconds 10 --output process.otlp")]
pub struct ProfileArgs {
    /// Record this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Record all processes of this service
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    pub service: Option<String>,
    /// How long; not of a span, which has ended, nor of heap and goroutines, which are of one moment; of alloc, what
    /// was allocated meanwhile
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: Option<u64>,
    /// Where to; ends with .svg, .pb.gz, .otlp or .folded
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Only requests of this route
    #[arg(long, value_name = "ROUTE")]
    pub route: Option<String>,
    /// Only this request: its span id, 16 hexadecimal digits
    #[arg(long, value_name = "ID")]
    pub span: Option<String>,
    /// What is measured
    #[arg(long = "type", value_name = "TYPE", default_value = ROWS[0].name, value_parser = ROWS.map(|row| row.name))]
    pub kind: String,
    /// Which frames an .svg has: without or with those that an interpreter or a virtual machine has between and below
    /// functions of the program
    #[arg(long, value_name = "WHICH", default_value = Frames::NAMES[0], value_parser = Frames::NAMES)]
    pub frames: String,
    /// What stands on what in an .svg: functions on their callers (flame), the same with the root on top (icicle), or
    /// functions by what they take themselves, with their callers below (callers)
    #[arg(long, value_name = "VIEW", default_value = View::NAMES[0], value_parser = View::NAMES)]
    pub view: String,
    /// A recording (.pb.gz or .otlp) to compare with: a differential flame graph
    #[arg(long, value_name = "BASE", conflicts_with = "slow")]
    pub diff: Option<PathBuf>,
    /// The slowest 5 % of the requests of each route, compared with the others when written as .svg
    #[arg(long)]
    pub slow: bool,
    /// Where the agent is asked.
    #[command(flatten)]
    pub place: AgentAddress,
}

/// Wrong usage that the arguments alone do not show.
#[derive(Debug, Error)]
pub enum UsageError {
    /// The ending of the output says nothing.
    #[error("--output {0}: expected a file that ends with .svg, .pb.gz, .otlp or .folded")]
    Output(String),
    /// Only pictures compare.
    #[error("--diff writes a differential flame graph: --output {0} does not end with .svg")]
    NoPicture(String),
    /// The recording cannot be used.
    #[error("--diff {path}: {reason}")]
    Base {
        /// Where it is.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// No span id.
    #[error("--span {0}: expected 16 hexadecimal digits")]
    Span(String),
    /// Nothing says how long.
    #[error("--seconds is missing: how long to record, such as --seconds 30")]
    Seconds,
    /// Of a time or of requests.
    #[error("{flag} does not go with --type {kind}, which shows one moment of whole processes")]
    Moment {
        /// The flag.
        flag: &'static str,
        /// The type.
        kind: String,
    },
}

/// Samples of the last moments are on their way.
const SETTLE: Duration = Duration::from_millis(700);

/// Records and writes.
///
/// # Errors
/// When arguments make no sense, the agent refuses, this kernel does not let us sample, there is nothing to write, or
/// the file cannot be written.
pub fn profile(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let shown = args.output.display().to_string();
    let kind = Kind::of(&args.output).ok_or_else(|| UsageError::Output(shown.clone()))?;
    if args.diff.is_some() && kind != Kind::Svg {
        return Err(UsageError::NoPicture(shown).into());
    }
    if let Some(span) = args.span.as_ref().filter(|span| parse_id::<8>(span).is_none()) {
        return Err(UsageError::Span(span.clone()).into());
    }
    is_of_its_type(args)?;
    let base = args.diff.as_deref().map(read).transpose()?;
    // Said now, and not when everything has been recorded.
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        anyhow::bail!("failed to write `{shown}`: there is no such folder");
    }
    let recorded = record(args, kind)?;
    if recorded.selection.samples.is_empty() {
        return Err(nothing(args, &recorded));
    }
    let bytes = match &recorded.rest {
        Some(rest) => {
            let sides = (("of the others", rest), ("of slow ones", &recorded.selection));
            flame::difference(&title(args), sides.0, sides.1, look(args)).into_bytes()
        }
        None => write(kind, args, &recorded.selection, base.as_ref()),
    };
    std::fs::write(&args.output, &bytes).with_context(|| format!("failed to write `{shown}`"))?;
    let sides =
        [("", Some(&recorded.selection)), ("to compare with: ", recorded.rest.as_ref().or(base.as_ref()))];
    for (which, selection) in sides {
        if let Some(warning) = selection.and_then(|selection| flame::Total::of(selection).warning()) {
            eprintln!("warning: {which}{warning}");
        }
    }
    let n = recorded.selection.samples.len();
    eprintln!("wrote {shown} ({n} samples, {} bytes)", bytes.len());
    Ok(ExitCode::SUCCESS)
}

/// Refuses flags that do not go with the type.
fn is_of_its_type(args: &ProfileArgs) -> Result<(), UsageError> {
    let given = [
        ("--route", args.route.is_some()),
        ("--span", args.span.is_some()),
        ("--slow", args.slow),
        ("--seconds", args.seconds.is_some()),
    ];
    let first = given.into_iter().find(|(_, is_given)| *is_given);
    match first {
        // What was allocated between two moments is their difference.
        Some(("--seconds", _)) if kind(args) == SampleKind::Alloc => Ok(()),
        Some((flag, _)) if kind(args).is_of_moment() => {
            Err(UsageError::Moment { flag, kind: args.kind.clone() })
        }
        _ if args.seconds.is_none() && args.span.is_none() && !kind(args).is_of_moment() => {
            Err(UsageError::Seconds)
        }
        _ => Ok(()),
    }
}

/// What is to be recorded; the arguments' parser knows the names.
fn kind(args: &ProfileArgs) -> SampleKind {
    SampleKind::of_name(&args.kind).unwrap_or_default()
}

/// What there is to write.
struct Recorded {
    selection: Selection,
    /// What slow requests are compared with.
    rest: Option<Selection>,
    /// Where there are none: of what there are samples, the most first; empty if that is not known.
    instead: Vec<String>,
}

fn record(args: &ProfileArgs, kind: Kind) -> anyhow::Result<Recorded> {
    let agent = reach(&args.place)?;
    if let Some(pid) = args.pid.filter(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
        anyhow::bail!("--pid {pid}: there is no such process");
    }
    let duration = Duration::from_secs(args.seconds.unwrap_or(0));
    let is_there = std::net::TcpStream::connect_timeout(&agent.address, Duration::from_secs(2)).is_ok();
    if is_there {
        from_agent(args, kind, &agent, duration)
    } else {
        sample_here(args, agent.address, duration)
    }
}

fn sample_here(args: &ProfileArgs, address: SocketAddr, duration: Duration) -> anyhow::Result<Recorded> {
    let needing = [("--route", args.route.is_some()), ("--span", args.span.is_some()), ("--slow", args.slow)];
    if let Some((flag, _)) = needing.into_iter().find(|(_, is_given)| *is_given) {
        anyhow::bail!("{flag} needs the agent, and none answers at {address}");
    }
    if kind(args).is_made_of(SampleKind::OffCpu) {
        anyhow::bail!("--type {} needs the agent, and none answers at {address}", args.kind);
    }
    if kind(args).is_of_moment() && args.seconds.is_some() {
        anyhow::bail!("--type {} with --seconds needs the agent, and none answers at {address}", args.kind);
    }
    if let Some(service) = &args.service {
        let running: Vec<String> = alone::services()?.into_iter().collect();
        if !running.contains(service) {
            anyhow::bail!("--service {service}: no program of this name runs{}", among(&running));
        }
    }
    eprintln!("no agent answers at {address}: sampling here");
    let config = config::load(args.place.config.as_deref())?;
    let filter =
        Filter { kind: kind(args), pid: args.pid, service: args.service.clone(), ..Filter::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut shown = Progress::new(duration);
    let selection = runtime
        .block_on(alone::record(&config, filter, duration, |passed| shown.show(passed)))
        .context("cannot sample here (it needs the privileges of `obi run`; see `obi doctor`)")?;
    Ok(Recorded { selection, rest: None, instead: Vec::new() })
}

fn from_agent(
    args: &ProfileArgs,
    kind: Kind,
    agent: &Reached,
    duration: Duration,
) -> anyhow::Result<Recorded> {
    let is_moment = self::kind(args).is_of_moment();
    if let Some(service) = args.service.as_ref().filter(|_| !duration.is_zero() && !is_moment) {
        is_known(agent, args, service)?;
    }
    // All that is written can be made of pprof, which keeps everything.
    let ask = |times: &[Parameter], more: &[Parameter]| {
        let mut parameters = times.to_vec();
        parameters.extend_from_slice(more);
        let borrowed: Vec<_> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
        patiently(|| ask_bytes(agent, "/api/v1/profiles", &borrowed))
    };
    let wanted = |times: &[Parameter], slow: Option<bool>| {
        let texts = [("service", &args.service), ("route", &args.route), ("span", &args.span)];
        let mut parameters = vec![("type", args.kind.clone()), ("format", Kind::Pprof.format().to_owned())];
        parameters.extend(texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        parameters.extend(args.pid.map(|pid| ("pid", pid.to_string())));
        parameters.extend(slow.map(|slow| ("slow", slow.to_string())));
        pprof::decode(&ask(times, &parameters)?).context("the agent's answer is no profile")
    };
    let before = (is_moment && !duration.is_zero()).then(|| wanted(&[], None)).transpose()?;
    let waited = wait(duration);
    let times = if is_moment { Vec::new() } else { waited };
    let mut selection = wanted(&times, args.slow.then_some(true))?;
    if let Some(before) = before {
        selection = growth::since(&before, selection);
    }
    let rest = (args.slow && kind == Kind::Svg).then(|| wanted(&times, Some(false))).transpose()?;
    let mut instead = Vec::new();
    if selection.samples.is_empty() && !is_moment {
        let summary = ask(&times, &[("type", args.kind.clone()), ("format", "json".to_owned())])?;
        let summary = serde_json::from_slice(&summary)?;
        instead = self::instead(args.service.as_deref(), args.route.as_deref(), &summary);
    }
    Ok(Recorded { selection, rest, instead })
}

/// Of a question: name and value.
type Parameter = (&'static str, String);

/// What can be asked for instead, by a summary of everything: routes of the service, or services if it has none.
fn instead(service: Option<&str>, route: Option<&str>, summary: &serde_json::Value) -> Vec<String> {
    let listed = |list: &str, field: &str, service: Option<&str>| -> Vec<String> {
        let rows = summary[list].as_array().into_iter().flatten();
        let rows = rows.filter(|row| service.is_none_or(|name| row["service"] == name));
        rows.filter_map(|row| row[field].as_str()).map(str::to_owned).collect()
    };
    let routes = match (service, route) {
        (Some(_), Some(_)) => listed("routes", "route", service),
        _ => Vec::new(),
    };
    if routes.is_empty() { listed("services", "service", None) } else { routes }
}

/// Refuses a service of which the agent has neither seen requests nor, in the last minute, samples: a wrong name is
/// said now, and not when everything has been recorded.
fn is_known(agent: &Reached, args: &ProfileArgs, service: &str) -> anyhow::Result<()> {
    let mut known = Vec::new();
    let of_kind = [("type", args.kind.as_str()), ("format", "json")];
    for (path, parameters, field) in
        [("/api/v1/profiles", of_kind.as_slice(), "service"), ("/api/v1/status", &[], "name")]
    {
        let answer: serde_json::Value =
            serde_json::from_slice(&patiently(|| ask_bytes(agent, path, parameters))?)?;
        let listed = answer["services"].as_array().into_iter().flatten();
        known.extend(listed.filter_map(|service| service[field].as_str()).map(str::to_owned));
    }
    if known.iter().any(|name| name == service) {
        return Ok(());
    }
    known.sort_unstable();
    known.dedup();
    anyhow::bail!(
        "--service {service}: no service of this name has used a CPU in the last minute or answered requests{}",
        among(&known)
    )
}

/// Names some of the services or routes that there are; nothing if there are none.
fn among(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED { ", …" } else { "" };
    format!("; there are {shown}{more}")
}

/// How often the agent is asked for what has been recorded.
const ASKED: usize = 4;

/// Asks again while names are being looked up: what has been recorded is worth waiting for.
fn patiently(mut ask: impl FnMut() -> anyhow::Result<Vec<u8>>) -> anyhow::Result<Vec<u8>> {
    for _ in 1..ASKED {
        match ask() {
            Err(error) if error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.is_busy) => {
                eprintln!("the agent is still looking names up: asking again");
            }
            done => return done,
        }
    }
    ask()
}

/// Lets the time pass, and says from when to when that was; nothing for a time of zero.
fn wait(duration: Duration) -> Vec<Parameter> {
    if duration.is_zero() {
        return Vec::new();
    }
    let (since, began) = (SystemTime::now(), Instant::now());
    let mut shown = Progress::new(duration);
    while let Some(left) = duration.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        shown.show(began.elapsed());
        std::thread::sleep(Duration::from_millis(100).min(left));
    }
    shown.show(duration);
    std::thread::sleep(SETTLE);
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
    vec![("from", seconds(since)), ("to", seconds(since + duration))]
}

/// Services or routes that are named when there is nothing of the one that was asked for.
const NAMED: usize = 8;

/// There are no samples: why that may be.
fn nothing(args: &ProfileArgs, recorded: &Recorded) -> anyhow::Error {
    let requests = if args.slow { "slow requests of " } else { "" };
    let mut text = format!("no samples of {requests}{}: ", title(args));
    let quantity = kind(args).row().quantity;
    text.push_str(&match (args.pid, args.slow || args.route.is_some()) {
        (_, true) => format!("no {quantity} of such requests, or none has ended"),
        (Some(_), _) => format!("there is no such process, or no {quantity} of it"),
        (None, _) => format!("no {quantity} of such a service"),
    });
    text.push_str(&among(&recorded.instead));
    if recorded.selection.lost > 0 {
        text.push_str(&format!("; {} samples were lost", recorded.selection.lost));
    }
    anyhow::anyhow!(text)
}

/// How a picture looks; the arguments' parser knows the names.
fn look(args: &ProfileArgs) -> Look {
    Look {
        frames: Frames::of_name(&args.frames).unwrap_or_default(),
        view: View::of_name(&args.view).unwrap_or_default(),
    }
}

fn write(kind: Kind, args: &ProfileArgs, selection: &Selection, base: Option<&Selection>) -> Vec<u8> {
    match (kind, base) {
        (Kind::Svg, Some(base)) => {
            flame::difference(&title(args), ("before", base), ("now", selection), look(args)).into_bytes()
        }
        (Kind::Svg, None) => flame::graph(&title(args), selection, look(args)).into_bytes(),
        (Kind::Pprof, _) => pprof::encode(selection),
        (Kind::Folded, _) => folded::encode(selection).into_bytes(),
        (Kind::Otlp, _) => otlp::profile::encode_within(selection, usize::MAX)
            .into_iter()
            .flat_map(|request| request.bytes)
            .collect(),
    }
}

fn title(args: &ProfileArgs) -> String {
    let whose = match (&args.service, args.pid, &args.span) {
        (Some(service), _, _) => service.clone(),
        (None, Some(pid), _) => format!("process {pid}"),
        (None, None, span) => format!("span {}", span.as_deref().unwrap_or_default()),
    };
    let route = args.route.as_ref().map(|route| format!(", {route}")).unwrap_or_default();
    let seconds = args.seconds.map(|seconds| format!(", {seconds} s")).unwrap_or_default();
    match &args.diff {
        Some(base) => format!("{whose}{route}{seconds}, compared with {}", base.display()),
        None => format!("{whose}{route}{seconds}"),
    }
}

/// How far it has come, on standard error.
struct Progress {
    whole: Duration,
    reported: Option<u64>,
}

impl Progress {
    fn new(whole: Duration) -> Self {
        Self { whole, reported: None }
    }

    fn show(&mut self, passed: Duration) {
        let seconds = passed.as_secs();
        let is_first = self.reported.is_none();
        if self.reported == Some(seconds) || self.whole.is_zero() {
            return;
        }
        self.reported = Some(seconds);
        let mut out = std::io::stderr();
        // A failed write is ignored: it is only progress.
        let _ = if out.is_terminal() {
            let end = if passed >= self.whole { "\n" } else { "" };
            write!(out, "\rrecording: {seconds} s of {} s{end}", self.whole.as_secs())
        } else if is_first {
            writeln!(out, "recording for {} s", self.whole.as_secs())
        } else {
            Ok(())
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;

    use serde_json::json;

    use super::*;
    use crate::profile::ask::AskError;
    use crate::web;

    #[test]
    fn routes_or_services_that_there_are_are_named() {
        let summary = json!({
            "services": [{"service": "shop"}, {"service": "cart"}],
            "routes": [
                {"service": "shop", "route": "/pay"},
                {"service": "cart", "route": "/add"},
                {"service": "shop", "route": "/"},
            ],
        });
        let check = |service, route, expected: &[&str]| {
            assert_eq!(instead(service, route, &summary), expected, "{service:?} {route:?}");
        };
        check(Some("shop"), Some("/pya"), &["/pay", "/"]);
        check(Some("sohp"), Some("/pay"), &["shop", "cart"]);
        check(Some("sohp"), None, &["shop", "cart"]);
        check(None, None, &["shop", "cart"]);
        assert_eq!(instead(None, None, &json!({})), [""; 0]);
    }

    /// An agent that needs several questions, and one that has nothing.
    #[test]
    fn who_looks_names_up_is_asked_again_and_nobody_else() {
        let check = |refusals: usize, error: AskError, expected: Option<usize>| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let answer = move || {
                let nth = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let answer = match nth < refusals {
                    true => web::Error::from(error.clone()).into_response(),
                    false => (StatusCode::OK, "profile").into_response(),
                };
                std::future::ready(answer)
            };
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, axum::Router::new().route("/x", axum::routing::get(answer))).await
            });
            let place = AgentAddress { config: None, address: Some(address) };
            let agent = reach(&place).unwrap();
            let answered = patiently(|| ask_bytes(&agent, "/x", &[]));
            assert_eq!(answered.is_ok(), expected.is_some(), "{answered:?}");
            let asked = asked.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(asked, expected.unwrap_or(if refusals >= ASKED { ASKED } else { 1 }));
        };
        check(0, AskError::Unanswered, Some(1));
        check(2, AskError::Unanswered, Some(3));
        check(9, AskError::Unanswered, None);
        check(1, AskError::Off("profile.enabled is false".into()), None);
    }
}
