//! `obi check`: is this configuration valid?
//!
//! In: a file, and the environment as `obi run` would read it. Out: one line. Refuses to start anything.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::print;
use crate::config::Source;
use crate::objective::files;

/// Validate a configuration without running
///
/// Reads the file, the environment and the objectives' files as `obi run` does and says whether they are valid. Exit
/// codes: 0 valid; 2 not valid, with one line on standard error that names the file or variable, the key, the value and
/// what was expected.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  obi check --config /etc/obi.yaml")]
pub struct CheckArgs {
    /// The configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Validates a configuration.
///
/// # Errors
/// When it is not valid.
pub fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let source = Source { file: Some(args.config.clone()) };
    let config = source.load()?;
    files::load(&config.slo.files).with_context(|| source.place("slo.files"))?;
    print(&format!("{}: valid\n", args.config.display()))?;
    Ok(ExitCode::SUCCESS)
}
