//! `obi slo evaluate`: budgets of a whole fleet, from any PromQL backend.
//!
//! In: OpenSLO files and an address. Out: a table, or JSON. Refuses to let the backend compute: it is asked for raw
//! samples, and the agent's own arithmetic does the rest.

mod backend;
mod view;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use reqwest::Url;
use slo::evaluate::{Evaluation, Query, Series, with_roles};
use slo::{Objective, Time};

use self::backend::Backend;
use self::view::FleetView;
use crate::command::print;
use crate::objective::files;

/// Compute budgets and burn rates of a whole fleet
///
/// Asks any backend with the HTTP API of Prometheus (Prometheus, Mimir, Thanos, VictoriaMetrics) for the raw samples of
/// `slo_events_total`, six hours at a time, and counts like the agents do: births and restarts are exact, time in which
/// no agent was seen is a gap and said as coverage. Exit codes: 0 shown; 1 the backend does not answer or refuses; 2 a
/// file is wrong.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi slo evaluate --prometheus http://prometheus:9090 slo.yaml\n  \
    obi slo evaluate --prometheus https://mimir/prometheus --header 'X-Scope-OrgID: shop' --json slo.yaml")]
pub struct EvaluateArgs {
    /// OpenSLO files (v1, v1alpha, v2alpha), or globs of them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,

    /// The backend; `/api/v1/query` is added
    #[arg(long, value_name = "URL")]
    pub prometheus: Url,

    /// Sent with every query, for example `Authorization: Bearer …`
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<String>,

    /// As of when, seconds since the Unix epoch, instead of now
    #[arg(long, value_name = "SECONDS")]
    pub at: Option<i64>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Asks, computes and prints.
///
/// # Errors
/// When a file is wrong, or the backend does not answer.
pub fn evaluate(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let reading = files::load(&args.files)?;
    let now = args.at.map_or_else(now, Time::from_seconds);
    let backend = Backend::new(&args.prometheus, &args.header)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut views = Vec::new();
    let mut refused = None;
    for objective in reading.objectives {
        match Evaluation::new(objective, now) {
            Ok(evaluation) => views.push(runtime.block_on(one(evaluation, &backend))?),
            Err(finding) => {
                eprintln!("obi: {finding}");
                refused.get_or_insert(finding);
            }
        }
    }
    if let (true, Some(finding)) = (views.is_empty(), refused) {
        bail!("no objective can be evaluated: {finding}");
    }
    for warning in backend.warnings() {
        eprintln!("obi: {} warns: {warning}", args.prometheus);
    }
    if args.json {
        let slos = serde_json::json!({ "slos": views });
        print(&format!("{slos:#}\n"))?;
    } else {
        print(&view::table(&views))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pieces of one objective, oldest first.
async fn one(mut evaluation: Evaluation, backend: &Backend) -> anyhow::Result<FleetView> {
    for end in evaluation.pieces() {
        let mut counters = Vec::new();
        for (role, query) in evaluation.queries(end) {
            counters.extend(with_roles(role, ask(backend, evaluation.objective(), &query).await?));
        }
        let starts = match evaluation.starts(&counters, end) {
            Some(query) => ask(backend, evaluation.objective(), &query).await?,
            None => Vec::new(),
        };
        evaluation.add(counters, starts);
    }
    Ok(FleetView::new(evaluation.objective(), &evaluation.report()))
}

async fn ask(backend: &Backend, objective: &Objective, query: &Query) -> anyhow::Result<Vec<Series>> {
    backend.ask(query).await.with_context(|| format!("failed to evaluate {}", objective.name))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Time::from_nanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
