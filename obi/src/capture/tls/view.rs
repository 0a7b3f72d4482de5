//! What the agent says of TLS: what is probed, what is not, who is not covered.
//!
//! In: what was found. Out: values for `/api/v1/status` and `obi doctor`. Plain data.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use serde::Serialize;

use super::point::{Cost, ProbePoint};
use super::program::Program;

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct View {
    /// Probes go by `uprobe.multi`; else each is a performance event.
    pub multi: bool,
    /// Return probes are used; on some kernels they would end sandboxed programs.
    pub return_probes: bool,
    /// Files that are probed: for TLS, and for the request that a program works for.
    pub probed: Vec<ProbedFile>,
    /// Files with TLS functions that are not.
    pub refused: Vec<Refused>,
    /// Processes with TLS connections that are not read.
    pub uncovered: Vec<Uncovered>,
}

/// A probed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbedFile {
    /// Path inside the root of the process that it was found with.
    pub path: String,
    /// Its inode.
    pub inode: u64,
    /// The kernel programs in it.
    pub programs: BTreeSet<Program>,
    /// The dearest of its probes.
    pub cost: Cost,
}

impl ProbedFile {
    /// Of these points.
    #[must_use]
    pub fn new(path: String, inode: u64, points: &[ProbePoint]) -> Self {
        let programs = points.iter().map(|point| point.program).collect();
        let cost = points.iter().map(|point| point.cost).max().unwrap_or(Cost::Emulated);
        Self { path, inode, programs, cost }
    }

    /// Whether TLS is read in it; else the programs in it only find out which request its threads work for.
    #[must_use]
    pub fn reads_tls(&self) -> bool {
        self.programs.iter().any(|program| program.moves_bytes())
    }
}

/// A file that is not probed although it has TLS functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Path inside the root of the process that it was found with.
    pub path: String,
    /// Why not.
    pub reason: String,
}

/// A process whose TLS connections are not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncovered {
    /// Process id.
    pub pid: u32,
    /// Path of its executable.
    pub executable: String,
    /// The TLS library; empty when unknown.
    pub library: String,
    /// Why it is not probed.
    pub reason: String,
    /// How many connections.
    pub connections: u64,
}
