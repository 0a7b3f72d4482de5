//! Profiling about itself: what was sampled, what was lost and why, what it costs.
//!
//! In: counts from the threads that do it. Out: plain values. Refuses to know formats.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::Runtime;

/// Running totals, and sizes of now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct View {
    /// Looks at each CPU per second.
    pub frequency: u32,
    /// What is sampled: each type, with `on` or why it is not.
    #[serde(serialize_with = "words")]
    pub types: Vec<(&'static str, Arc<str>)>,
    /// Waits of this length and longer ones are all sampled, shorter ones as often as they are long, ns; 0: none is.
    #[serde(rename = "wait_threshold_nanoseconds")]
    pub wait_threshold: u64,
    /// Samples that were taken and arrived.
    pub samples: u64,
    /// Looks that found nothing to sample, by reason.
    #[serde(serialize_with = "map")]
    pub skipped: Vec<(&'static str, u64)>,
    /// Samples that were lost, by reason.
    #[serde(serialize_with = "map")]
    pub lost: Vec<(&'static str, u64)>,
    /// Stacks whose walk ended early, by reason.
    #[serde(serialize_with = "map")]
    pub truncated: Vec<(&'static str, u64)>,
    /// Frames of all samples that were asked for, by how well they are named.
    #[serde(serialize_with = "map")]
    pub frames: Vec<(&'static str, u64)>,
    /// Samples linked to their span, and those whose exchange turned out not to cover them.
    #[serde(serialize_with = "map")]
    pub links: Vec<(&'static str, u64)>,
    /// Other things that went wrong, by what it was.
    #[serde(serialize_with = "map")]
    pub failures: Vec<(&'static str, u64)>,
    /// Memory in use, bytes, by what it is for.
    #[serde(serialize_with = "map")]
    pub memory: Vec<(&'static str, u64)>,
    /// Kernel memory of its maps, bytes.
    pub map_bytes: u64,
    /// Files with code that are known.
    pub files: u64,
    /// Of those: with tables in the kernel.
    pub tables: u64,
    /// Samples held now.
    pub held: u64,
    /// Interpreters in processes that were sampled.
    pub interpreters: Vec<Interpreter>,
}

/// An interpreter in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interpreter {
    /// The process.
    pub pid: u32,
    /// Which one.
    pub runtime: Runtime,
    /// Its version; empty if not known.
    pub version: String,
    /// Why its functions are not seen; `None`: they are.
    pub off: Option<String>,
}

fn words<S: Serializer>(words: &[(&'static str, Arc<str>)], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(words.iter().map(|(name, word)| (*name, &**word)))
}

fn map<S: Serializer>(counts: &[(&'static str, u64)], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(counts.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_an_object_by_reason() {
        let view = View { lost: vec![("ring_full", 3)], ..View::default() };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["lost"]["ring_full"], &json["memory"]), (&3.into(), &serde_json::json!({})));
    }
}
