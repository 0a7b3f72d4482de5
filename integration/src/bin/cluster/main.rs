//! Names of pods against a real API server: `cluster --api-server FILE --helm FILE`; one table on stdout, exit status 1
//! when something is not as it should be.
//!
//! In: a built agent, etcd, kube-apiserver, helm, runc, busybox. Out: whether every span has its pod's name from a
//! container's first request on, while pods come and go at the API server and as containers, while the API server is
//! away, and beside ten thousand pods of other nodes. The control groups, namespaces and host names of containers are
//! those of pods; the kubelet is what this program does in its place. To be run in a network and mount namespace of its
//! own.

mod api;
mod calls;
mod control;
mod node;
mod oracle;
mod pod;
mod report;
mod scene;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::report::Report;
use crate::scene::Scene;

/// What runs and how long.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Plan {
    /// The API server's program
    #[arg(long)]
    api_server: PathBuf,
    /// Helm
    #[arg(long)]
    helm: PathBuf,
    /// A Collector with the processor of Kubernetes attributes (`integration/collector-kubernetes`)
    #[arg(long)]
    collector: PathBuf,
    /// Our chart
    #[arg(long, default_value = "deploy/helm/obi")]
    chart: PathBuf,
    /// Seconds of ten pods a second at the API server and two containers a second
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Seconds without an API server
    #[arg(long, default_value_t = 60)]
    outage: u64,
    /// Pods of other nodes, a multiple of 100; each is behind a service
    #[arg(long, default_value_t = 10_000)]
    pods: u32,
}

fn main() -> anyhow::Result<ExitCode> {
    let plan = Plan::parse();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another library of ciphers is installed");
    }
    let mut report = Report::default();
    let mut scene = Scene::begin(plan).context("begin")?;
    scene.rights(&mut report).context("rights of the agent's account")?;
    scene.churn(&mut report).context("pods that come and go")?;
    scene.oracle(&mut report).context("beside a Collector")?;
    scene.outage(&mut report).context("without an API server")?;
    scene.crowd(&mut report).context("pods of other nodes")?;
    scene.end(&mut report).context("end")?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
