//! Which hook set captures: the cheapest of those that see the most.
//!
//! In: [`Support`], the user's wish, a way to load a set. Out: what was loaded, why, and what became of the others.
//! When a set that should work is refused in earnest, the next one is tried.
#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use super::hook_set::{HookSet, Preemption};
use super::program::{Programs, Settings};
use super::support::blind_spot::BlindSpot;
use super::support::{SetSupport, Support, Unsupported};

/// A set that was loaded.
#[derive(Debug)]
pub struct Selection<P> {
    /// Which.
    pub set: HookSet,
    /// What loading it gave.
    pub loaded: P,
    /// Why this one, in a sentence.
    pub why: String,
    /// What it does not see.
    pub not_seen: Vec<BlindSpot>,
    /// What became of each set, the cheapest first.
    pub verdicts: Vec<Verdict>,
}

/// What became of one set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which.
    pub set: HookSet,
    /// What.
    pub state: State,
    /// Why it is not used; empty for the one that is.
    pub reason: String,
}

/// What became of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It captures.
    Used,
    /// It could; another is better or was wished for.
    Spare,
    /// This kernel lacks what it needs.
    Unsupported,
    /// It should work; the kernel refused it in earnest.
    Refused,
}

impl State {
    /// In metrics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Spare => "spare",
            Self::Unsupported => "unsupported",
            Self::Refused => "refused",
        }
    }
}

/// Why no set captures.
#[derive(Debug, Error)]
pub enum SelectError {
    /// What is needed is not there.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The one that the user insists on was refused.
    #[error("capture.hooks: `{set}` cannot be used: {reason}")]
    Forced {
        /// Which.
        set: HookSet,
        /// What was tried and what the kernel said.
        reason: String,
    },
    /// Every one that should work was refused.
    #[error("no hook set could be loaded: {}", list(.0))]
    Refused(Vec<Verdict>),
}

impl SelectError {
    /// The sets that should have worked and were refused.
    #[must_use]
    pub fn refused(&self) -> Vec<Verdict> {
        match self {
            Self::Unsupported(_) => Vec::new(),
            Self::Forced { set, reason } => {
                vec![Verdict { set: *set, state: State::Refused, reason: reason.clone() }]
            }
            Self::Refused(refused) => refused.clone(),
        }
    }
}

fn list(verdicts: &[Verdict]) -> String {
    verdicts.iter().map(|verdict| verdict.reason.as_str()).collect::<Vec<_>>().join("; ")
}

/// Loads the programs of the set that `forced` names, else of the best one that can be loaded.
///
/// # Errors
/// When none can be; the text says what was tried and what the kernel said.
pub fn load(
    support: &Support,
    forced: Option<HookSet>,
    settings: &Settings,
) -> Result<Selection<Programs>, SelectError> {
    select(support, forced, |set| match &support.types {
        Some(types) => {
            let found = support.sets.iter().find(|it| it.set == set);
            let preemption = found.map_or(Preemption::None, |it| it.preemption);
            let settings = Settings { preemption, ..*settings };
            Programs::load(set, &settings, types).map_err(|error| error.to_string())
        }
        None => Err("there is no kernel type information".to_owned()),
    })
}

/// As [`load`], with any way to load a set.
///
/// # Errors
/// When none can be; the text says what was tried and what the kernel said.
pub fn select<P, E: fmt::Display>(
    support: &Support,
    forced: Option<HookSet>,
    mut load: impl FnMut(HookSet) -> Result<P, E>,
) -> Result<Selection<P>, SelectError> {
    support.require_common()?;
    if let Some(set) = forced {
        let refuse = |error: E| SelectError::Forced { set, reason: error.to_string() };
        let loaded = load(set).map_err(refuse)?;
        return Ok(Selection {
            set,
            loaded,
            why: "capture.hooks asks for it".to_owned(),
            not_seen: not_seen(&support.sets, set),
            verdicts: verdicts(&support.sets, set, &[], |_| format!("capture.hooks asks for {set}")),
        });
    }
    support.require()?;
    let mut refused = Vec::new();
    for candidate in order(&support.sets) {
        let set = candidate.set;
        match load(set) {
            Ok(loaded) => {
                return Ok(Selection {
                    set,
                    loaded,
                    why: why(candidate, &refused),
                    not_seen: candidate.not_seen.clone(),
                    verdicts: verdicts(&support.sets, set, &refused, worse),
                });
            }
            Err(error) => refused.push(Verdict { set, state: State::Refused, reason: error.to_string() }),
        }
    }
    Err(SelectError::Refused(refused))
}

/// Those that can be used, the best first: least lost of every program, then fewest blind spots that hide some
/// programs, then the cheapest. What hides single connections does not decide: every set has some of those, and the
/// dearest the fewest.
fn order(sets: &[SetSupport]) -> Vec<&SetSupport> {
    let mut usable: Vec<_> = sets.iter().filter(|set| set.is_usable()).collect();
    usable.sort_by_key(|set| (lost_to_preemption(set), deciding(set).count(), set.set));
    usable
}

/// How much of every program a set loses where the kernel preempts it, as a rank: `socket` has programs that do what
/// those which were skipped have not done (measured on 7.2: a tenth of what `fentry` loses).
fn lost_to_preemption(set: &SetSupport) -> u8 {
    match (set.not_seen.contains(&BlindSpot::Preemption), set.set) {
        (false, _) => 0,
        (true, HookSet::Socket) => 1,
        (true, _) => 2,
    }
}

fn deciding(set: &SetSupport) -> impl Iterator<Item = BlindSpot> {
    set.not_seen.iter().copied().filter(|blind_spot| blind_spot.decides())
}

fn why(set: &SetSupport, refused: &[Verdict]) -> String {
    let hidden: Vec<_> = deciding(set).map(BlindSpot::what).collect();
    let mut why = if hidden.is_empty() {
        "the cheapest that sees every program".to_owned()
    } else {
        format!("none here sees every program; this one misses the least ({})", hidden.join(", "))
    };
    if !refused.is_empty() {
        let names: Vec<_> = refused.iter().map(|verdict| verdict.set.name()).collect();
        why.push_str(&format!("; {} failed to load", names.join(", ")));
    }
    why
}

fn not_seen(sets: &[SetSupport], set: HookSet) -> Vec<BlindSpot> {
    sets.iter().find(|support| support.set == set).map(|support| support.not_seen.clone()).unwrap_or_default()
}

/// Why a set that could be used is not the best.
fn worse(set: &SetSupport) -> String {
    let hidden: Vec<_> = deciding(set).map(BlindSpot::what).collect();
    if hidden.is_empty() { "costs more".to_owned() } else { format!("does not see {}", hidden.join(", ")) }
}

fn verdicts(
    sets: &[SetSupport],
    used: HookSet,
    refused: &[Verdict],
    spare: impl Fn(&SetSupport) -> String,
) -> Vec<Verdict> {
    let verdict = |support: &SetSupport| {
        let set = support.set;
        let (state, reason) = match support.missing() {
            _ if set == used => (State::Used, String::new()),
            Some(missing) => (State::Unsupported, missing),
            None => (State::Spare, spare(support)),
        };
        Verdict { set, state, reason }
    };
    let refused = |set| refused.iter().find(|verdict: &&Verdict| verdict.set == set).cloned();
    sets.iter().map(|support| refused(support.set).unwrap_or_else(|| verdict(support))).collect()
}

#[cfg(test)]
mod tests;
