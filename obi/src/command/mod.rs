//! The subcommands of `obi`: parsed arguments in, exit code out.
//!
//! Exit codes: 0 success, 1 failure at run time, 2 usage or bad configuration. Errors are one line on standard error.

pub mod arguments;
pub mod check;
pub mod demo;
pub mod doctor;
pub mod profile;
pub mod run;
pub mod slo;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use self::profile::UsageError;
use crate::config::ConfigError;
use crate::objective::files::FilesError;

/// Exit code of wrong usage and of a bad configuration.
pub const EXIT_USAGE: u8 = 2;

/// A log filter that cannot be read.
#[derive(Debug, Error)]
#[error("environment {variable}: `{text}` is not a log filter, expected such as info or obi=debug,warn")]
pub struct FilterError {
    variable: &'static str,
    text: String,
}

/// Logs to standard error; `OBI_LOG`, else `RUST_LOG`, says what (default `info`).
///
/// # Errors
/// When the variable is set to something that is no filter.
pub fn start_logging() -> Result<(), FilterError> {
    let set = ["OBI_LOG", "RUST_LOG"].into_iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = set.map_or_else(|| Ok(EnvFilter::new("info")), |(variable, text)| filter(variable, text))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}

fn filter(variable: &'static str, text: String) -> Result<EnvFilter, FilterError> {
    EnvFilter::try_new(&text).map_err(|_| FilterError { variable, text })
}

/// Says on one line why a command failed, and returns its exit code.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("obi: {}", one_line(&format!("{error:#}")));
    ExitCode::from(exit_code(error))
}

/// Says on one line what is wrong with the arguments; help and version are printed whole.
pub fn refuse(error: &clap::Error, program: &clap::Command) -> ExitCode {
    let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help {
        // A reader that has gone away is no failure.
        let _ = error.print();
    } else {
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or(&text);
        let what = one_line(what.strip_prefix("error: ").unwrap_or(what));
        let words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
        eprintln!("obi: {what}; see `{} --help`", command_of(program, words));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
}

/// The command that arguments begin with: `obi slo status`.
fn command_of(program: &clap::Command, words: impl Iterator<Item = String>) -> String {
    let (mut command, mut path) = (program, program.get_name().to_owned());
    for word in words {
        let Some(inner) = command.find_subcommand(&word) else { break };
        path = format!("{path} {word}");
        command = inner;
    }
    path
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let usage = error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<FilterError>()
            || cause.is::<FilesError>()
            || cause.is::<UsageError>()
    });
    if usage { EXIT_USAGE } else { 1 }
}

/// Writes to standard output; a reader that has gone away is no failure.
fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn exit_codes() {
        fn check(error: anyhow::Error, expected: u8) {
            assert_eq!(exit_code(&error), expected, "{error:#}");
        }
        let configuration =
            || crate::config::load(Some(std::path::Path::new("/nonexistent"))).map(drop).unwrap_err();
        check(configuration().into(), 2);
        check(Err::<(), _>(configuration()).context("failed to start").unwrap_err(), 2);
        check(filter("OBI_LOG", "obi=loud".to_owned()).unwrap_err().into(), 2);
        check(std::io::Error::other("port taken").into(), 1);
    }

    #[test]
    fn usage_errors_lead_to_the_help_of_their_command() {
        let slo = clap::Command::new("slo").subcommand(clap::Command::new("status"));
        let program = clap::Command::new("obi").subcommand(clap::Command::new("profile")).subcommand(slo);
        let check = |words: &[&str], expected: &str| {
            assert_eq!(command_of(&program, words.iter().map(|word| (*word).to_owned())), expected);
        };
        check(&["profile", "--pid", "x"], "obi profile");
        check(&["slo", "status", "--address", "nope"], "obi slo status");
        check(&["slo", "stat"], "obi slo");
        check(&["--nope", "profile"], "obi");
        check(&[], "obi");
    }

    #[test]
    fn a_wrong_filter_is_named() {
        let error = filter("OBI_LOG", "obi=loud".to_owned()).unwrap_err().to_string();
        assert!(
            error.starts_with("environment OBI_LOG: `obi=loud` is not a log filter, expected "),
            "{error}"
        );
        assert!(filter("OBI_LOG", "obi=debug,warn".to_owned()).is_ok());
    }
}
