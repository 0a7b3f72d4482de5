//! `obi slo rules`: rules for a fleet of agents.
//!
//! In: OpenSLO files. Out: a rule file for Prometheus, Mimir or Thanos, and tests of it for promtool. Refuses to know
//! the agent.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use slo::duration::{Short, parse_threshold};
use slo::openslo::Finding;
use slo::rules::{self, Timing};

use crate::command::print;
use crate::objective::files;

/// Name of the rules beside their tests.
const RULES: &str = "rules.yaml";
/// Name of the tests.
const TESTS: &str = "rules_test.yaml";

/// Print Prometheus recording and alerting rules
///
/// The rules add up `slo_events_total` of all agents, never ratios, and are exact when counters are born, restart or
/// rest. They need nothing newer than Prometheus 2.42, and run in Mimir and Thanos, too. A rolling period needs a
/// retention that is as long. Exit codes: 0 printed; 2 a file is wrong; what cannot be made into rules is said on
/// standard error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi slo rules slo.yaml > /etc/prometheus/rules/slo.yaml\n  \
    obi slo rules --output rules/ '/etc/obi/slo/*.yaml' && promtool test rules rules/rules_test.yaml")]
pub struct RulesArgs {
    /// OpenSLO files (v1, v1alpha, v2alpha), or globs of them
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,

    /// Write rules.yaml and rules_test.yaml (for `promtool test rules`) into this directory instead
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Time between evaluations
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = interval)]
    pub interval: Duration,

    /// How far rules stay behind the present, so that scrapes and remote writes have arrived
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = delay)]
    pub settle: Duration,
}

/// Prints or writes.
///
/// # Errors
/// When a file is wrong, no rule can be made, or the directory cannot be written.
pub fn rules(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let reading = files::load(&args.files)?;
    let timing = Timing { step: args.interval, settle: args.settle };
    let generated = rules::generate(&reading.objectives, timing);
    for finding in &generated.findings {
        eprintln!("obi: {finding}");
    }
    if generated.file.groups.is_empty() {
        bail!(
            "no rules for any of {} objectives{}",
            reading.objectives.len(),
            why(generated.findings.first())
        );
    }
    let text = format!("{}{}", head(timing), generated.file.to_yaml());
    let Some(folder) = &args.output else {
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    write(&folder.join(RULES), &text)?;
    write(&folder.join(TESTS), &rules::tests(&reading.objectives, timing, RULES))?;
    Ok(ExitCode::SUCCESS)
}

fn head(timing: Timing) -> String {
    format!(
        "# Made by `obi slo rules`: do not edit, edit the OpenSLO files.\n\
         # Counts of all agents are added up every {}, {} behind the present. Check: promtool check rules.\n",
        Short(timing.step),
        Short(timing.settle)
    )
}

fn why(finding: Option<&Finding>) -> String {
    finding.map_or_else(String::new, |finding| format!(": {finding}"))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

fn interval(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_secs(1), Duration::from_mins(1))
}

fn delay(text: &str) -> Result<Duration, String> {
    between(text, Duration::ZERO, Duration::from_mins(2))
}

/// Whole seconds, which every server can evaluate at.
fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let fits = |duration: &Duration| (least..=most).contains(duration) && duration.subsec_nanos() == 0;
    parse_threshold(text).filter(fits).ok_or_else(|| {
        format!("expected whole seconds from {} to {}, such as 15s", Short(least), Short(most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_whole_seconds() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(interval(text).ok(), expected.map(Duration::from_secs), "{text}");
        };
        check("30s", Some(30));
        check("1m", Some(60));
        check("0s", None);
        check("1500ms", None);
        check("2m", None);
        check("soon", None);
        assert_eq!(delay("0s"), Ok(Duration::ZERO));
    }
}
