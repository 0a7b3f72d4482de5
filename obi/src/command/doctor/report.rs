//! What `doctor` found, as text and as JSON.
//!
//! In: what was tried and what was loaded. Out: the same facts in two forms.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;

use super::profile::Profiles;
use super::spool::Spool;
use super::tls::Tls;
use crate::capture::hook_set::HookSet;
use crate::capture::program::{Programs, flavour_name};
use crate::capture::select::{SelectError, Selection, State, Verdict};
use crate::capture::support::{Capabilities, Check, Outcome, PidNamespace, SetSupport, Support};

/// Everything that was found out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The set that `obi run` will use.
    pub(super) hook_set: Option<HookSet>,
    /// Which of its objects the kernel took: `modern` or `portable`.
    pub(super) object: Option<&'static str>,
    /// Why this set.
    why: Option<String>,
    /// Why none.
    error: Option<String>,
    /// What every set needs.
    pub(super) checks: Vec<Check>,
    /// Each set, the cheapest first.
    pub(super) sets: Vec<Set>,
    /// The programs of the set in use.
    programs: Vec<Program>,
    capabilities: Capabilities,
    pid_namespace: PidNamespace,
    /// Where TLS would be read, and where not.
    pub(super) tls: Tls,
    /// Whether it would be booked where the time of server spans goes.
    waiting: Waiting,
    /// Whether stacks would be sampled.
    pub(super) profiles: Profiles,
    /// Whether what destinations do not take could wait on the disk.
    spool: Spool,
}

/// What is found out beside the hook set.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) tls: Tls,
    pub(super) profiles: Profiles,
    pub(super) spool: Spool,
}

/// Where the time of server spans goes.
#[derive(Debug, Serialize)]
struct Waiting {
    booked: bool,
    /// Why not; empty where it is.
    reason: String,
}

/// One hook set.
#[derive(Debug, Serialize)]
pub(super) struct Set {
    #[serde(flatten)]
    pub(super) support: SetSupport,
    state: State,
    reason: String,
}

/// One kernel program that was loaded and attached.
#[derive(Debug, Serialize)]
struct Program {
    name: &'static str,
    /// Instructions that the verifier looked at (5.16).
    verified_instructions: Option<u32>,
    /// The kernel reports how often it skipped a run.
    tells_misses: bool,
}

/// What this version does not see on any kernel, and where it shows.
const NOT_SEEN: [(&str, &str); 1] = [(
    "TLS of other libraries",
    "NSS, s2n-tls, Java, Erlang, rustls without symbols; \
     counted as obi_uncovered_connections_total{reason=\"tls\"}",
)];

impl Report {
    pub(super) fn new(
        support: Support,
        selection: Result<Selection<Programs>, SelectError>,
        Beside { tls, profiles, spool }: Beside,
    ) -> Self {
        let Support { checks, sets, capabilities, pid_namespace, .. } = support;
        let verdicts = match &selection {
            Ok(selection) => selection.verdicts.clone(),
            Err(error) => error.refused(),
        };
        let sets = sets.into_iter().map(|set| Set::new(set, &verdicts)).collect();
        let (used, error) = match selection {
            Ok(selection) => (Some(selection), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let waiting = match used.as_ref().map(|used| used.loaded.keeps_accounts()) {
            Some(Ok(())) => Waiting { booked: true, reason: String::new() },
            Some(Err(reason)) => Waiting { booked: false, reason },
            None => Waiting { booked: false, reason: "no hook set can be used".to_owned() },
        };
        let programs = used.as_ref().map(|used| programs(&used.loaded)).unwrap_or_default();
        Self {
            hook_set: used.as_ref().map(|used| used.set),
            object: used.as_ref().map(|used| flavour_name(used.loaded.flavour())),
            why: used.map(|used| used.why),
            error,
            checks,
            sets,
            programs,
            capabilities,
            pid_namespace,
            tls,
            waiting,
            profiles,
            spool,
        }
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        let mut report = serde_json::to_value(self)?;
        let reported = |what: &str, why: &str| json!({ "what": what, "why": why });
        report["not_seen"] = NOT_SEEN.iter().map(|(what, why)| reported(what, why)).collect();
        for (set, written) in self.sets.iter().zip(report["sets"].as_array_mut().into_iter().flatten()) {
            let blind_spots = set.support.not_seen.iter();
            written["not_seen"] = blind_spots.map(|spot| reported(spot.what(), spot.consequence())).collect();
        }
        Ok(format!("{report:#}\n"))
    }

    pub(super) fn text(&self) -> String {
        let mut text = match (self.hook_set, self.object, &self.why, &self.error) {
            (Some(set), Some(object), Some(why), _) => {
                format!("hook set: {set} ({object} object)\n  because: {why}\n")
            }
            (_, _, _, error) => {
                let error = error.as_deref().unwrap_or("nothing could be tried");
                format!("hook set: none, the agent cannot run here\n  because: {error}\n")
            }
        };
        text.push_str("\nneeded by every hook set:\n");
        write_checks(&mut text, &self.checks);
        for set in &self.sets {
            set.write(&mut text);
        }
        self.tls.write(&mut text);
        let Waiting { booked, reason } = &self.waiting;
        let _ = match booked {
            true => {
                writeln!(text, "\nwhere the time of server spans goes: booked, by hooks in the scheduler")
            }
            false => writeln!(text, "\nwhere the time of server spans goes: not booked\n  because: {reason}"),
        };
        self.profiles.write(&mut text);
        self.spool.write(&mut text);
        text.push_str("\nnot seen by this version on any kernel:\n");
        for (what, why) in NOT_SEEN {
            let _ = writeln!(text, "{:>9}  {what}: {why}", "");
        }
        text
    }
}

impl Set {
    fn new(support: SetSupport, verdicts: &[Verdict]) -> Self {
        let verdict = verdicts.iter().find(|verdict| verdict.set == support.set);
        let (state, reason) = match (verdict, support.missing()) {
            (Some(verdict), _) => (verdict.state, verdict.reason.clone()),
            (None, Some(missing)) => (State::Unsupported, missing),
            (None, None) => (State::Unsupported, "something that every hook set needs is missing".to_owned()),
        };
        Self { support, state, reason }
    }

    fn write(&self, text: &mut String) {
        let _ = write!(text, "\nhook set {}: {}", self.support.set, self.state.name());
        if !self.reason.is_empty() {
            let _ = write!(text, ", {}", self.reason);
        }
        text.push('\n');
        write_checks(text, &self.support.checks);
        for spot in &self.support.not_seen {
            let _ = writeln!(text, "{:>9}  {}: {}", "not seen", spot.what(), spot.consequence());
        }
    }
}

fn write_checks(text: &mut String, checks: &[Check]) {
    for check in checks {
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
}

fn programs(programs: &Programs) -> Vec<Program> {
    let program = |measured: crate::capture::program::Measured| Program {
        name: measured.name,
        verified_instructions: measured.info.verified_instructions,
        tells_misses: measured.misses.is_some(),
    };
    programs.measure().into_iter().map(program).collect()
}
