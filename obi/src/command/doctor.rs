//! `obi doctor`: what this kernel and these capabilities allow.
//!
//! In: the running kernel. Out: a report for people, or JSON. Refuses to change anything.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;

use super::print;
use crate::capture::support::{Outcome, Support};

/// Show what this kernel and these capabilities allow
///
/// Tries what the agent needs (kernel type information, tracepoints, ring buffer, loading a program, capabilities, the
/// host's pids) and reports what works, what does not and with which error, what follows, and how to get what is
/// missing. Nothing is left behind. Exit codes: 0 a hook set can be used; 1 none can.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi doctor\n  obi doctor --json | jq .hook_set")]
pub struct DoctorArgs {
    /// Write JSON: `hook_set` (a name or null), `checks`, `capabilities`, `pid_namespace`, `not_seen`
    #[arg(long)]
    pub json: bool,
}

/// Tries everything and reports it.
///
/// # Errors
/// When standard output cannot be written.
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let support = Support::probe();
    print(&if args.json { json_report(&support)? } else { text_report(&support) })?;
    Ok(if support.hook_set.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What this version does not see on any kernel, and where it shows.
const NOT_SEEN: [(&str, &str); 3] = [
    ("TLS", "encrypted at the socket; counted as obi_uncovered_connections_total{reason=\"tls\"}"),
    ("HTTP/2 and gRPC", "counted as obi_uncovered_connections_total{reason=\"http2\"}"),
    (
        "receives by io_uring",
        "their buffers are not visible from the socket tracepoints; counted in obi_lost_total",
    ),
];

fn text_report(support: &Support) -> String {
    let mut text = match support.hook_set {
        Some(set) => format!("hook set: {set}\n\n"),
        None => "hook set: none, the agent cannot run here\n\n".to_owned(),
    };
    for check in &support.checks {
        let (word, reason) = match &check.outcome {
            Outcome::Available => ("ok", None),
            Outcome::Limited(reason) => ("limited", Some(reason)),
            Outcome::Missing(reason) => ("MISSING", Some(reason)),
        };
        let _ = writeln!(text, "{word:>9}  {}", check.name);
        if let Some(reason) = reason {
            let _ = writeln!(text, "{:>9}  {}\n{:>9}  -> {}", "", reason.error, "", reason.remedy);
        }
    }
    text.push_str("\nnot seen by this version on any kernel:\n");
    for (what, why) in NOT_SEEN {
        let _ = writeln!(text, "{:>9}  {what}: {why}", "");
    }
    text
}

fn json_report(support: &Support) -> serde_json::Result<String> {
    let mut report = serde_json::to_value(support)?;
    report["not_seen"] = NOT_SEEN.iter().map(|(what, why)| json!({ "what": what, "why": why })).collect();
    Ok(format!("{report:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_reports_tell_the_same() {
        let support = Support::probe();
        let text = text_report(&support);
        let json: serde_json::Value = serde_json::from_str(&json_report(&support).unwrap()).unwrap();
        match support.hook_set {
            Some(set) => {
                assert!(text.starts_with(&format!("hook set: {set}\n")), "{text}");
                assert_eq!(json["hook_set"], set.to_string());
            }
            None => {
                assert!(text.starts_with("hook set: none"), "{text}");
                assert!(json["hook_set"].is_null());
            }
        }
        let checks = json["checks"].as_array().unwrap();
        assert_eq!(checks.len(), support.checks.len());
        for (check, written) in support.checks.iter().zip(checks) {
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
