//! What would be probed if the agent ran now, and what would not.
//!
//! In: `/proc`. Out: [`Survey`] for `obi doctor`. Attaches nothing.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use serde::Serialize;

use super::blind::{self, Why};
use super::elf::OpenFile;
use super::file::{Plan, probe_points};
use super::mapping::{Identity, Mapping, mappings};
use super::place::Process;
use super::point::Returns;
use super::view::ProbedFile;

/// The files that running processes map, by whether TLS can be read in them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Survey {
    /// Files that would be probed: for TLS, and for the request that a program works for.
    pub probed: Vec<Used>,
    /// Libraries and programs whose TLS cannot be read.
    pub not_probed: Vec<NotProbed>,
}

/// A file that can be probed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Used {
    /// The file, and what goes into it.
    #[serde(flatten)]
    pub file: ProbedFile,
    /// Processes that map it.
    pub processes: usize,
}

/// A file that cannot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotProbed {
    /// Its path inside the root of a process that maps it.
    pub path: String,
    /// Why not.
    pub reason: String,
    /// Processes that map it.
    pub processes: usize,
}

/// Files that a survey names.
const FILES: usize = 256;

/// What is known of a mapped file.
enum Found {
    Probed(ProbedFile),
    NotProbed(String),
    Plain,
}

/// Looks at every process once.
#[must_use]
pub fn survey(returns: Returns) -> Survey {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    survey_of(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()), returns)
}

/// Looks at these processes.
#[must_use]
pub fn survey_of(processes: impl IntoIterator<Item = u32>, returns: Returns) -> Survey {
    let mut files: BTreeMap<(Identity, String), (Found, usize)> = BTreeMap::new();
    for tgid in processes {
        let Ok(process) = Process::open(tgid) else { continue };
        let mapped = mappings(&process.maps().unwrap_or_default());
        for mapping in &mapped {
            let key = (mapping.identity, mapping.path.clone());
            let look = Look { process: &process, mapping, returns };
            let (_, n) = files.entry(key).or_insert_with(|| (look.look(), 0));
            *n += 1;
        }
    }
    let mut survey = Survey::default();
    for ((_, path), (found, processes)) in files {
        match found {
            Found::Probed(file) if survey.probed.len() < FILES => {
                survey.probed.push(Used { file, processes })
            }
            Found::NotProbed(reason) if survey.not_probed.len() < FILES => {
                survey.not_probed.push(NotProbed { path, reason, processes });
            }
            _ => {}
        }
    }
    survey.probed.sort_by(|a, b| a.file.path.cmp(&b.file.path));
    survey.not_probed.sort_by(|a, b| a.path.cmp(&b.path));
    survey
}

struct Look<'a> {
    process: &'a Process,
    mapping: &'a Mapping,
    returns: Returns,
}

impl Look<'_> {
    fn look(&self) -> Found {
        let Self { process, mapping, returns } = *self;
        let opened = process.mapped(mapping).and_then(|file| {
            let metadata = file.metadata()?;
            Ok((OpenFile { file, length: metadata.len() }, metadata.ino()))
        });
        let plan = opened.as_ref().ok().and_then(|(file, _)| probe_points(file, returns).ok());
        let Plan { points, not_probed } = plan.unwrap_or_default();
        if let (Ok((_, inode)), false) = (&opened, points.is_empty()) {
            return Found::Probed(ProbedFile::new(mapping.path.clone(), *inode, &points));
        }
        let by_name = || blind::by_library(std::slice::from_ref(mapping)).map(|Why { reason, .. }| reason);
        not_probed.or_else(by_name).map_or(Found::Plain, Found::NotProbed)
    }
}
