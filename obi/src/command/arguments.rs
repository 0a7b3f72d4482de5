//! The arguments of `obi`: what its help says, and what manual pages and completions are made of.
//!
//! In: nothing. Out: [`Arguments`]. Refuses to know what the subcommands do.

use clap::{Parser, Subcommand};

use super::{check, demo, doctor, profile, run, slo};

/// Zero-code auto-instrumentation: spans and RED metrics of unmodified programs, by eBPF
///
/// One agent per Linux machine. It watches the HTTP/1, HTTP/2 and gRPC exchanges of every process, in clear and over
/// TLS, and turns each into one span and one count: request rate, errors and durations by service, route and status,
/// for Prometheus and OTLP, with exemplars. It samples stacks, and computes error budgets and burn rates. Applications
/// need no change and no restart.
#[derive(Debug, Parser)]
#[command(name = "obi", version, after_long_help = AFTER_HELP)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  obi run                             watch everything, metrics on http://127.0.0.1:9464/metrics
  obi demo                            a small workload of our own, and what the agent sees of it
  obi doctor                          can it run here, and what will it see?
  obi check --config /etc/obi.yaml    is this configuration valid?
  obi profile --service shop --seconds 30 --output shop.svg    a flame graph
  obi slo status                      error budgets and burn rates of the running agent

Exit codes:
  0  success
  1  failure at run time
  2  wrong usage or configuration
Errors are one line on standard error.";

/// A subcommand; each says itself what it does.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "a comment here would be the help instead of the subcommand's own")]
pub enum Command {
    Run(run::RunArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Check(check::CheckArgs),
    Profile(profile::ProfileArgs),
    Slo(slo::SloArgs),
    DemoService(demo::DemoServiceArgs),
}
