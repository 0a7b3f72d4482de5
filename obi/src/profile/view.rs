//! Profiling about itself: what was sampled, what was lost and why, what it costs.
//!
//! In: counts from the threads that do it. Out: plain values. Refuses to know formats.

use serde::Serialize;

/// Running totals, and sizes of now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct View {
    /// Looks at each CPU per second.
    pub frequency: u32,
    /// Samples that were taken and arrived.
    pub samples: u64,
    /// Looks that found nothing to sample, by reason.
    pub skipped: Vec<(&'static str, u64)>,
    /// Samples that were lost, by reason.
    pub lost: Vec<(&'static str, u64)>,
    /// Stacks whose walk ended early, by reason.
    pub truncated: Vec<(&'static str, u64)>,
    /// Frames of all samples that were asked for, by how well they are named.
    pub frames: Vec<(&'static str, u64)>,
    /// Samples linked to their span, and those whose exchange turned out not to cover them.
    pub links: Vec<(&'static str, u64)>,
    /// Other things that went wrong, by what it was.
    pub failures: Vec<(&'static str, u64)>,
    /// Memory in use, bytes, by what it is for.
    pub memory: Vec<(&'static str, u64)>,
    /// Kernel memory of its maps, bytes.
    pub map_bytes: u64,
    /// Files with code that are known.
    pub files: u64,
    /// Of those: with tables in the kernel.
    pub tables: u64,
    /// Samples held now.
    pub held: u64,
}
