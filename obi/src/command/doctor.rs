//! `obi doctor`: what this kernel and these capabilities allow.
//!
//! In: the running kernel, the configuration. Out: a report for people, or JSON. Loads what `obi run` would load, and
//! lets go of it at once.
#![forbid(unsafe_code)]

mod go_runtime;
mod interpreter;
mod process;
mod profile;
mod report;
mod spool;
mod tls;

use std::path::PathBuf;
use std::process::ExitCode;

use self::profile::Profiles;
use self::report::{Beside, Report};
use self::spool::Spool;
use self::tls::Tls;
use super::print;
use crate::capture::hook_set::Preemption;
use crate::capture::program::Settings;
use crate::capture::select;
use crate::capture::support::Support;
use crate::clock::tick_ns;
use crate::config::{self, Config};

/// Show what this kernel and these capabilities allow
///
/// Tries what the agent needs (capabilities, the host's pids, kernel type information, and for each of the four sets of
/// kernel hooks its places and its mechanism), then loads the set that `obi run` would use. Reports what works, what
/// does not and with which error, how to get what is missing, which set is chosen and why, and what it will not see.
/// Nothing is left behind. Exit codes: 0 a hook set can be used (with --pid: and the process is watched); 1 none can;
/// 2 wrong usage or configuration.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  obi doctor\n  obi doctor --json | jq .hook_set\n  obi doctor --pid $(pidof nginx)\n  \
    OBI_CAPTURE_HOOKS=kprobe obi doctor"
)]
pub struct DoctorArgs {
    /// Write JSON: `hook_set` (a name or null), `object`, `why`, `error`, `checks`, `sets`, `programs`, `capabilities`,
    /// `pid_namespace`, `not_seen`, `tls`, `waiting`, `profiles`, `spool`
    #[arg(long)]
    pub json: bool,
    /// Only this process: whether it is watched, its pod, what it is called and why, where its TLS is read
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// The configuration file (YAML) that `obi run` would get; `capture.hooks` and `capture.btf` matter here
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Tries everything and reports it.
///
/// # Errors
/// When the configuration is not valid or standard output cannot be written.
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let config = config::load(args.config.as_deref())?;
    let report = examine(&config);
    if let Some(pid) = args.pid {
        let about = process::examine(pid, &config, &report)?;
        print(&if args.json { about.json()? } else { about.text() })?;
        return Ok(if about.is_seen() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    print(&if args.json { report.json()? } else { report.text() })?;
    Ok(if report.hook_set.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(config: &Config) -> Report {
    let support = Support::probe(&config.capture.btf);
    let settings = Settings {
        self_tgid: std::process::id(),
        ring_bytes: config.capture.ring_bytes,
        head_limit: config.capture.head_limit,
        tick_ns: tick_ns(),
        statistics: false,
        tls: config.capture.tls,
        waiting: config.profile.waiting,
        tells_given: support.capabilities.can_read_processes(),
        follows_databases: true,
        preemption: Preemption::None,
    };
    let mut selection = select::load(&support, config.capture.hooks.forced(), &settings);
    let programs = selection.as_mut().ok().and_then(|selection| selection.loaded.take_user_programs());
    let tls = Tls::new(config.capture.tls, programs.as_ref());
    let profiles = Profiles::new(&config.profile, support.types.as_ref());
    let spool = Spool::new(&config.export.spool);
    Report::new(support, selection, Beside { tls, profiles, spool })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::support::Outcome;

    #[test]
    fn both_reports_tell_the_same() {
        let report = examine(&Config::default());
        let text = report.text();
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        match report.hook_set {
            Some(set) => {
                assert!(text.starts_with(&format!("hook set: {set} ")), "{text}");
                assert_eq!(json["hook_set"], set.name());
                assert!(json["error"].is_null() && text.contains(json["why"].as_str().unwrap()), "{text}");
            }
            None => {
                assert!(text.starts_with("hook set: none"), "{text}");
                assert!(
                    json["hook_set"].is_null() && text.contains(json["error"].as_str().unwrap()),
                    "{text}"
                );
            }
        }
        let written = json["checks"].as_array().unwrap().iter();
        let written = written
            .chain(json["sets"].as_array().unwrap().iter().flat_map(|set| set["checks"].as_array().unwrap()));
        let checks: Vec<_> =
            report.checks.iter().chain(report.sets.iter().flat_map(|set| &set.support.checks)).collect();
        assert_eq!(written.clone().count(), checks.len());
        for (check, written) in checks.iter().zip(written) {
            assert_eq!(written["name"], check.name);
            match &check.outcome {
                Outcome::Available => assert_eq!(written["status"], "available"),
                Outcome::Limited(reason) | Outcome::Missing(reason) => {
                    assert_eq!(written["error"], reason.error);
                    assert!(text.contains(&reason.error) && text.contains(&reason.remedy), "{text}");
                }
            }
        }
    }
}
