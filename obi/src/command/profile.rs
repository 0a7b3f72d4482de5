//! `obi profile`: records what a process or a service does, into a file.
//!
//! In: arguments; the running agent, or none. Out: a flame graph, pprof or OTLP. Whoever has an agent is asked; without
//! one, this command samples by itself, which needs its privileges.
#![forbid(unsafe_code)]

mod output;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use thiserror::Error;

use self::output::{Kind, read};
use super::slo::agent::{Place, address, ask_bytes};
use crate::agent::profile::alone;
use crate::config;
use crate::export::{flame, otlp, pprof};
use crate::profile::Selection;
use crate::profile::choose::Filter;

/// Record what a process or a service does
///
/// Asks the running agent, which samples every CPU all the time; where none runs, samples by itself (as root, without
/// routes and spans). The ending of FILE says what is written: .svg (flame graph), .pb.gz (pprof), .otlp (OTLP profiles,
/// one message). Exit codes: 0 recorded; 1 failed, with one line that says why; 2 wrong usage or configuration.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi profile --service shop --seconds 30 --output shop.svg\n  \
    obi profile --service shop --seconds 30 --output before.pb.gz\n  \
    obi profile --service shop --seconds 30 --diff before.pb.gz --output change.svg\n  \
    obi profile --service shop --seconds 60 --slow --output slow.svg\n  \
    obi profile --span 00f067aa0ba902b7 --output request.svg\n  \
    obi profile --pid 4711 --seconds 10 --output process.otlp")]
pub struct ProfileArgs {
    /// Record this process
    #[arg(long, value_name = "N", required_unless_present_any = ["service", "span"])]
    pub pid: Option<u32>,
    /// Record all processes of this service
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    pub service: Option<String>,
    /// How long; a span that has ended is not waited for
    #[arg(long, value_name = "N", required_unless_present = "span", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: Option<u64>,
    /// Where to; ends with .svg, .pb.gz or .otlp
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Only requests of this route
    #[arg(long, value_name = "ROUTE")]
    pub route: Option<String>,
    /// Only this request: its span id, 16 hexadecimal digits
    #[arg(long, value_name = "ID")]
    pub span: Option<String>,
    /// A recording (.pb.gz or .otlp) to compare with: a differential flame graph
    #[arg(long, value_name = "BASE", conflicts_with = "slow")]
    pub diff: Option<PathBuf>,
    /// The slowest 5 % of the requests of each route, compared with the others when written as .svg
    #[arg(long)]
    pub slow: bool,
    /// Where the agent is asked.
    #[command(flatten)]
    pub place: Place,
}

/// Wrong usage that the arguments alone do not show.
#[derive(Debug, Error)]
pub enum UsageError {
    /// The ending of the output says nothing.
    #[error("--output {0}: expected a file that ends with .svg, .pb.gz or .otlp")]
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
}

/// Samples of the last moments are on their way.
const SETTLE: Duration = Duration::from_millis(700);

/// Records and writes.
///
/// # Errors
/// When arguments make no sense, the agent refuses, this kernel does not let us sample, or the file cannot be written.
pub fn profile(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let shown = args.output.display().to_string();
    let kind = Kind::of(&args.output).ok_or_else(|| UsageError::Output(shown.clone()))?;
    if args.diff.is_some() && kind != Kind::Svg {
        return Err(UsageError::NoPicture(shown).into());
    }
    if let Some(span) =
        args.span.as_ref().filter(|span| span.len() != 16 || !span.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(UsageError::Span(span.clone()).into());
    }
    let base = args.diff.as_deref().map(read).transpose()?;
    let bytes = match record(args, kind, base.as_ref())? {
        Recorded::Written(bytes) => bytes,
        Recorded::Selection(selection) => write(kind, &title(args), &selection, base.as_ref()),
    };
    std::fs::write(&args.output, &bytes).with_context(|| format!("failed to write `{shown}`"))?;
    eprintln!("wrote {shown} ({} bytes)", bytes.len());
    Ok(ExitCode::SUCCESS)
}

enum Recorded {
    /// The agent has written it.
    Written(Vec<u8>),
    /// It is to be written.
    Selection(Selection),
}

fn record(args: &ProfileArgs, kind: Kind, base: Option<&Selection>) -> anyhow::Result<Recorded> {
    let address = address(&args.place)?;
    let duration = Duration::from_secs(args.seconds.unwrap_or(0));
    if std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_err() {
        for (flag, is_given) in
            [("--route", args.route.is_some()), ("--span", args.span.is_some()), ("--slow", args.slow)]
        {
            if is_given {
                anyhow::bail!("{flag} needs the agent, and none answers at {address}");
            }
        }
        eprintln!("no agent answers at {address}: sampling here");
        let config = config::load(args.place.config.as_deref())?;
        let filter = Filter { pid: args.pid, service: args.service.clone(), ..Filter::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut shown = Progress::new(duration);
        let selection = runtime
            .block_on(alone::record(&config, filter, duration, |passed| shown.show(passed)))
            .context("cannot sample here (it needs the privileges of `obi run`; see `obi doctor`)")?;
        return Ok(Recorded::Selection(selection));
    }
    let started = SystemTime::now();
    let mut shown = Progress::new(duration);
    while let Ok(passed) = started.elapsed()
        && passed < duration
    {
        shown.show(passed);
        std::thread::sleep(Duration::from_millis(100).min(duration - passed));
    }
    if !duration.is_zero() {
        std::thread::sleep(SETTLE);
    }
    let compares = args.slow && kind == Kind::Svg;
    let format = if base.is_some() { "pprof" } else { kind.format() };
    let path = if compares { "/api/v1/profiles/compare" } else { "/api/v1/profiles" };
    let mut parameters: Vec<(&str, String)> = Vec::new();
    if !compares {
        parameters.push(("format", format.to_owned()));
    }
    let given = [("service", &args.service), ("route", &args.route), ("span", &args.span)];
    parameters.extend(given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    parameters.extend(args.pid.map(|pid| ("pid", pid.to_string())));
    parameters.extend(args.slow.then(|| ("slow", "true".to_owned())));
    if !duration.is_zero() {
        let since = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        parameters.push(("from", format!("{:.3}", since.as_secs_f64())));
        parameters.push(("to", format!("{:.3}", (since + duration).as_secs_f64())));
    }
    let borrowed: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let bytes = ask_bytes(address, path, &borrowed)?;
    Ok(match base {
        Some(_) => Recorded::Selection(pprof::decode(&bytes).context("the agent's answer is no profile")?),
        None => Recorded::Written(bytes),
    })
}

fn write(kind: Kind, title: &str, selection: &Selection, base: Option<&Selection>) -> Vec<u8> {
    match (kind, base) {
        (Kind::Svg, Some(base)) => {
            flame::difference(title, ("before", base), ("now", selection)).into_bytes()
        }
        (Kind::Svg, None) => flame::graph(title, selection).into_bytes(),
        (Kind::Pprof, _) => pprof::encode(selection),
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
    told: Option<u64>,
}

impl Progress {
    fn new(whole: Duration) -> Self {
        Self { whole, told: None }
    }

    fn show(&mut self, passed: Duration) {
        let seconds = passed.as_secs();
        let is_first = self.told.is_none();
        if self.told == Some(seconds) || self.whole.is_zero() {
            return;
        }
        self.told = Some(seconds);
        let mut out = std::io::stderr();
        // Nobody need see it.
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
