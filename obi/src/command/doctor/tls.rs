//! What `doctor` reports of TLS.
//!
//! In: the programs that the kernel took, and the running processes. Out: which files would be probed at which cost,
//! which not and why.

use std::fmt::Write as _;

use serde::Serialize;

use crate::capture::bpf::trial;
use crate::capture::program::UserPrograms;
use crate::capture::tls::point::{Cost, Returns};
use crate::capture::tls::survey::{Survey, survey};

/// Everything about TLS.
#[derive(Debug, Serialize)]
pub(super) struct Tls {
    /// How probes are attached; `None`: they are not.
    mode: Option<&'static str>,
    /// Why not.
    pub(super) error: Option<String>,
    /// Return probes are used; on some kernels they would end sandboxed programs.
    pub(super) return_probes: bool,
    /// Programs that the kernel did not take.
    skipped: Vec<Skipped>,
    #[serde(flatten)]
    survey: Survey,
}

#[derive(Debug, Serialize)]
struct Skipped {
    program: &'static str,
    reason: String,
}

impl Tls {
    pub(super) fn new(wanted: bool, programs: Option<&UserPrograms>) -> Self {
        let skipped = |programs: &UserPrograms| {
            let skipped = programs.skipped().iter();
            skipped.map(|(program, reason)| Skipped { program, reason: reason.clone() }).collect()
        };
        let skipped: Vec<Skipped> = programs.map(skipped).unwrap_or_default();
        let (mode, error) = match programs.map(|programs| (programs.is_multi(), programs.loaded().next())) {
            _ if !wanted => (None, Some("capture.tls is false".to_owned())),
            None => (None, Some("no hook set can be used".to_owned())),
            Some((_, None)) => (None, skipped.first().map(|skipped| skipped.reason.clone())),
            Some((true, _)) => (Some("one link for many probes (uprobe.multi)"), None),
            Some((false, _)) => (Some("a performance event for each probe, 512 at most"), None),
        };
        let tried =
            |programs: &UserPrograms| trial::return_probe(programs.is_multi()).is_ok_and(|it| it.harmless);
        let return_probes = mode.and(programs).is_none_or(tried);
        let returns = if return_probes { Returns::Allowed } else { Returns::Forbidden };
        Self { mode, error, return_probes, skipped, survey: survey(returns) }
    }

    pub(super) fn write(&self, text: &mut String) {
        let _ = match (self.mode, &self.error) {
            (Some(mode), _) => writeln!(text, "\nTLS: read at the programs' libraries, {mode}"),
            (None, error) => {
                writeln!(text, "\nTLS: not read, {}", error.as_deref().unwrap_or("no reason known"))
            }
        };
        if self.mode.is_some() && !self.return_probes {
            text.push_str(
                "  limited  return probes would end sandboxed programs on this kernel (its seccomp asks about its own \
                 system call): functions that need one are not read; use 6.14 or newer\n",
            );
        }
        for used in self.survey.probed.iter().filter(|used| used.file.reads_tls()) {
            let cost = match used.file.cost {
                Cost::Emulated => "cheap",
                Cost::SingleStepped => "DEAR",
            };
            let n_programs = used.file.programs.len();
            let (path, n) = (&used.file.path, used.processes);
            let _ = writeln!(text, "{cost:>9}  {path}: {n_programs} programs, in {n} processes now");
        }
        for not in &self.survey.not_probed {
            let _ = writeln!(
                text,
                "{:>9}  {}: {}; in {} processes now",
                "not read", not.path, not.reason, not.processes
            );
        }
    }
}
