//! `obi slo lint`: what is wrong in OpenSLO files, and what hardly works as meant.
//!
//! In: files. Out: one line per finding. Refuses to know the agent.

use std::process::ExitCode;

use slo::openslo::Severity;

use crate::command::{EXIT_USAGE, print};
use crate::objective::files;

/// Check OpenSLO files
///
/// Reads all files together, as the agent does, and prints one line per finding: file, line, key, what is there and
/// what to write instead. An SLO whose Service object is absent is accepted. Exit codes: 0 nothing is wrong, there may
/// be warnings; 2 something is, or a file cannot be read.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi slo lint slo.yaml\n  obi slo lint '/etc/obi/slo/*.yaml'")]
pub struct LintArgs {
    /// OpenSLO files (v1, v1alpha, v2alpha), or globs of them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
}

/// Prints the findings.
///
/// # Errors
/// When a file cannot be read.
pub fn lint(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let reading = files::read(&args.files)?;
    let mut text = String::new();
    for finding in &reading.findings {
        text.push_str(&format!("{finding}\n"));
    }
    let count = |severity| reading.findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let n = reading.objectives.len();
    text.push_str(&format!("{n} objectives, {errors} errors, {warnings} warnings\n"));
    print(&text)?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) })
}
