//! `obi run`: everything before and after the agent.
//!
//! In: arguments and environment. Out: a checked configuration, a probed kernel and a shutdown on signals for the
//! agent; its result as exit code. Refuses to know the stages: the agent is handed in.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::capture::support::{Outcome, Support};
use crate::config::{Config, Source};
use crate::privilege;
use crate::shutdown::Shutdown;

/// Run the agent
///
/// Watches every process on the machine that listens or connects, and serves metrics and page on 127.0.0.1:9464, until
/// SIGTERM or SIGINT; then everything is flushed and nothing stays in the kernel. SIGHUP reads the configuration again:
/// discovery and routes follow at once, a file that is not valid is refused and the old one stays. Every key of the
/// configuration can be given as OBI_SECTION_KEY too. Logs go to standard error; OBI_LOG (or RUST_LOG) filters them.
/// Exit codes: 0 ended by a signal; 1 failed, with one line that says why; 2 wrong usage or configuration.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi run\n  obi run --config /etc/obi.yaml\n  \
    OBI_WEB_LISTEN=0.0.0.0:9464 OBI_DISCOVER_INCLUDE='[{service: shop-*}]' obi run")]
pub struct RunArgs {
    /// The configuration file (YAML); without one everything has its default
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Threads of the async runtime; it serves scrapes and exports, the events have a thread of their own.
const RUNTIME_THREADS: usize = 2;

/// Checks the configuration, probes the kernel (where something is to be captured) and runs the agent until it ends.
///
/// # Errors
/// When the configuration is not valid, no hook set can be used here, or the agent fails.
pub fn run<A, F>(args: &RunArgs, agent: A) -> anyhow::Result<ExitCode>
where
    A: FnOnce(Config, Source, Option<Support>, Shutdown) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    let source = Source { file: args.config.clone() };
    let config = source.load()?;
    let support = config.capture.enabled.then(|| probe(&config)).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        // They answer questions; what loads and reads is done by other threads.
        .on_thread_start(|| privilege::give_up().expect("giving up needs no privilege"))
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("failed to install signal handlers")?;
        agent(config, source, support, shutdown).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What the kernel allows, where that is enough.
fn probe(config: &Config) -> anyhow::Result<Support> {
    let support = Support::probe(&config.capture.btf);
    match config.capture.hooks.forced() {
        Some(_) => support.require_common()?,
        None => support.require()?,
    }
    report_limits(&support, config);
    Ok(support)
}

/// Says at the start what will not be seen or done.
fn report_limits(support: &Support, config: &Config) {
    for check in &support.checks {
        let wanted = check.name != "CAP_SYS_ADMIN" || config.capture.statistics;
        if let Outcome::Limited(reason) = &check.outcome
            && wanted
        {
            tracing::warn!("{}: {}; {}", check.name, reason.error, reason.remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;
    use crate::capture::kernel_types::KERNEL_BTF;

    #[test]
    fn a_bad_configuration_never_reaches_the_agent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "web: {listen: nowhere}").unwrap();
        let reached = Cell::new(false);
        let args = RunArgs { config: Some(file.path().to_owned()) };
        let error = run(&args, async |_, _, _, _| {
            reached.set(true);
            Ok(())
        })
        .unwrap_err();
        assert!(format!("{error:#}").contains("web.listen: `nowhere`"), "{error:#}");
        assert!(!reached.get());
    }

    #[test]
    fn without_capture_the_kernel_is_not_asked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "{capture: {enabled: false}, receive: {otlp: {grpc: '127.0.0.1:4317'}}}";
        std::fs::write(file.path(), text).unwrap();
        let args = RunArgs { config: Some(file.path().to_owned()) };
        let result = run(&args, async |_, _, support, _| anyhow::bail!("asked: {}", support.is_some()));
        assert_eq!(format!("{:#}", result.unwrap_err()), "asked: false");
    }

    #[test]
    fn the_agent_gets_configuration_and_support_or_a_reason_is_given() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "web: {spans: 7}").unwrap();
        let seen = Cell::new(0);
        let result =
            run(&RunArgs { config: Some(file.path().to_owned()) }, async |config, _, support, shutdown| {
                seen.set(config.web.spans);
                assert!(support.is_some_and(|support| support.require().is_ok()) && !shutdown.requested());
                anyhow::bail!("port taken")
            });
        let error = format!("{:#}", result.unwrap_err());
        if Support::probe(Path::new(KERNEL_BTF)).require().is_ok() {
            assert_eq!((seen.get(), error.as_str()), (7, "port taken"));
        } else {
            assert_eq!(seen.get(), 0);
            assert!(error.starts_with("no hook set can be used: "), "{error}");
        }
    }
}
