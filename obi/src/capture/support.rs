//! What this kernel and these capabilities allow, found out by trying.
//!
//! In: the running kernel. Out: [`Support`]: what each hook set needs, what is missing, what it would not see. Versions
//! are never compared: a backport or a locked-down machine makes them lie. Refuses to change anything: what it creates
//! goes at once. Refuses to choose: [`super::select`] does.

pub mod blind_spot;
mod capability;
mod locked_memory;
mod mechanism;
mod namespace;
mod preemption;
mod requirement;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use self::blind_spot::{BlindSpot, blind_spots};
pub use self::capability::Capabilities;
pub use self::namespace::PidNamespace;
use super::hook_set::{HookSet, Preemption};
use super::kernel_types::KernelTypes;

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was tried, in a few words.
    pub name: String,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a check went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "status")]
pub enum Outcome {
    /// It works.
    Available,
    /// It does not, and it is needed.
    Missing(Reason),
    /// It does not, and something less important will not be seen or done.
    Limited(Reason),
}

/// Why something does not work, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What was tried with which result.
    pub error: String,
    /// What follows, or how to get it.
    pub remedy: String,
}

/// What was found out.
#[derive(Debug)]
pub struct Support {
    /// What every set needs, in the order tried.
    pub checks: Vec<Check>,
    /// What each set needs, the cheapest first; all of them, unless type information is missing.
    pub sets: Vec<SetSupport>,
    /// Effective capabilities.
    pub capabilities: Capabilities,
    /// Which pids we see.
    pub pid_namespace: PidNamespace,
    /// For the loader, which drops it; `None` when it could not be read.
    pub types: Option<KernelTypes>,
}

/// What was found out about one hook set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetSupport {
    /// Which.
    pub set: HookSet,
    /// What it needs beyond what every set needs.
    pub checks: Vec<Check>,
    /// What it does not see here.
    pub not_seen: Vec<BlindSpot>,
    /// What becomes of its usual programs: where it has others for this, these are used.
    #[serde(skip)]
    pub preemption: Preemption,
}

/// Why the agent cannot run here: the first thing that is missing, on one line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no hook set can be used: {name}: {error}; {remedy} (`obi doctor` tells more)")]
pub struct Unsupported {
    name: String,
    error: String,
    remedy: String,
}

impl Support {
    /// Tries everything once; takes some tens of milliseconds. `btf` is the file of type information.
    #[must_use]
    pub fn probe(btf: &Path) -> Self {
        let capabilities = Capabilities::effective();
        let pid_namespace = PidNamespace::probe();
        let types = KernelTypes::read(Some(btf));
        let mut checks = capabilities.checks();
        checks.push(pid_namespace.check());
        if capabilities.can_load() {
            checks.push(locked_memory::check());
        }
        checks.extend(requirement::checks(types.as_ref(), capabilities));
        let types = types.ok();
        let probe = |types: &KernelTypes| {
            let preempts = preemption::preempts(types);
            let of = |set| if preempts { preemption::of(set, types) } else { Preemption::None };
            HookSet::ALL.map(|set| SetSupport::probe(set, types, of(set))).to_vec()
        };
        let sets = types.as_ref().map(probe).unwrap_or_default();
        Self { checks, sets, capabilities, pid_namespace, types }
    }

    /// What every set needs is there.
    ///
    /// # Errors
    /// Otherwise; the text names the first thing that is missing and how to get it.
    pub fn require_common(&self) -> Result<(), Unsupported> {
        first_missing(&self.checks).map_or(Ok(()), Err)
    }

    /// What every set needs is there, and what at least one needs.
    ///
    /// # Errors
    /// Otherwise; the text names the first thing that is missing and how to get it.
    pub fn require(&self) -> Result<(), Unsupported> {
        self.require_common()?;
        if self.sets.iter().any(SetSupport::is_usable) {
            return Ok(());
        }
        // The last set asks for the least; `doctor` shows all.
        self.sets.iter().rev().find_map(|set| first_missing(&set.checks)).map_or(Ok(()), Err)
    }
}

fn first_missing(checks: &[Check]) -> Option<Unsupported> {
    let (name, Reason { error, remedy }) = checks.iter().find_map(Check::missing_reason)?;
    Some(Unsupported { name, error, remedy })
}

impl SetSupport {
    fn probe(set: HookSet, types: &KernelTypes, preemption: Preemption) -> Self {
        let checks = mechanism::checks(set, types, preemption);
        Self { set, checks, not_seen: blind_spots(set, types, preemption), preemption }
    }

    /// Nothing that it needs is missing.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.missing().is_none()
    }

    /// The first thing that is missing, and with which error.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let (name, reason) = self.checks.iter().find_map(Check::missing_reason)?;
        Some(format!("{name}: {}", reason.error))
    }
}

impl Check {
    fn available(name: impl Into<String>) -> Self {
        Self::new(name, Outcome::Available)
    }

    fn missing_reason(&self) -> Option<(String, Reason)> {
        match &self.outcome {
            Outcome::Missing(reason) => Some((self.name.clone(), reason.clone())),
            _ => None,
        }
    }

    fn new(name: impl Into<String>, outcome: Outcome) -> Self {
        Self { name: name.into(), outcome }
    }

    fn missing(name: impl Into<String>, error: impl fmt::Display, remedy: &str) -> Self {
        Self::new(name, Outcome::Missing(Reason { error: error.to_string(), remedy: remedy.to_owned() }))
    }

    fn limited(name: impl Into<String>, error: impl fmt::Display, remedy: &str) -> Self {
        Self::new(name, Outcome::Limited(Reason { error: error.to_string(), remedy: remedy.to_owned() }))
    }
}

#[cfg(test)]
mod tests;
