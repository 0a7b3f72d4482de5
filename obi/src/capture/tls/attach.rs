//! Probe points into the kernel.
//!
//! In: an open file and its points. Out: [`Probes`], whose end detaches. One link per program and kind of point where
//! the kernel has `uprobe.multi`, else a performance event per point, of which there is a bounded number.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use thiserror::Error;

use super::point::{ProbePoint, Returns};
use super::program::Program;
use crate::capture::bpf::attach::Attachment;
use crate::capture::bpf::trial::{self, Trial};
use crate::capture::bpf::uprobe::{self, ProbeSite, Target};
use crate::capture::program::UserPrograms;

/// Performance events of all files together: each is a descriptor, and takes a tenth of a second to end.
const EVENTS: usize = 512;
/// Links that are ended at the same time. The kernel waits a while for each, and those waits overlap.
const THREADS: usize = 32;

/// Attaches the programs.
#[derive(Debug)]
pub struct Attacher {
    programs: UserPrograms,
    returns: Returns,
    /// The probe of the trial, until there is time to end it.
    trial: Option<Attachment>,
    events: Arc<AtomicUsize>,
}

/// A file's attached programs. Dropping them detaches, which takes a while; see [`Probes::detach`].
#[derive(Debug)]
pub struct Probes {
    attached: Vec<Attachment>,
    events: Option<Arc<AtomicUsize>>,
}

/// Why a file's points have no programs.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The kernel has taken none of the programs.
    #[error("no kernel programs for it: {0}")]
    NoPrograms(String),
    /// There are too many events.
    #[error("{EVENTS} probes are attached already, and this kernel needs a descriptor for each")]
    TooMany,
    /// The kernel refused.
    #[error("failed to attach `{program}`: {source}")]
    Refused {
        /// Its name.
        program: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl Attacher {
    /// Attaches these programs. Tries first whether return probes are harmless here; where that cannot be found out,
    /// none are used.
    #[must_use]
    pub fn new(programs: UserPrograms) -> Self {
        let Trial { harmless, probe } = trial::return_probe(programs.is_multi()).unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to try a return probe");
            Trial { harmless: false, probe: None }
        });
        let returns = if harmless { Returns::Allowed } else { Returns::Forbidden };
        Self { programs, returns, trial: probe, events: Arc::default() }
    }

    /// Whether return probes may be used.
    #[must_use]
    pub fn returns(&self) -> Returns {
        self.returns
    }

    /// Ends what was only for a trial, which takes a while.
    pub fn end_trial(&mut self) {
        self.trial = None;
    }

    /// The programs.
    #[must_use]
    pub fn programs(&self) -> &UserPrograms {
        &self.programs
    }

    /// Attaches to all points of a file, or to none.
    ///
    /// # Errors
    /// When there are no programs for them, or the kernel refuses.
    pub fn attach(&self, file: BorrowedFd<'_>, points: &[ProbePoint]) -> Result<Probes, AttachError> {
        let events = (!self.programs.is_multi()).then(|| Arc::clone(&self.events));
        let mut probes = Probes { attached: Vec::new(), events };
        for program in Program::ALL {
            let Some(loaded) = self.programs.get(program) else { continue };
            let place = if self.programs.is_merged() { program.place().unwrap_or(0) } else { 0 };
            for at_return in [true, false] {
                let places: Vec<ProbeSite> = points
                    .iter()
                    .filter(|point| point.program == program && point.at_return == at_return)
                    .map(|point| ProbeSite { offset: point.offset, cookie: point.cookie | place })
                    .collect();
                let target = Target { file, at_return, process: None };
                probes.add(loaded, target, &places).map_err(|error| error.of(program))?;
            }
        }
        if probes.attached.is_empty() {
            let reason = self.programs.skipped().first().map_or("", |(_, reason)| reason);
            return Err(AttachError::NoPrograms(reason.to_owned()));
        }
        Ok(probes)
    }
}

impl Probes {
    fn add(
        &mut self,
        program: BorrowedFd<'_>,
        target: Target<'_>,
        places: &[ProbeSite],
    ) -> Result<(), Failure> {
        let Some(events) = &self.events else {
            if !places.is_empty() {
                self.attached.push(uprobe::multi(program, target, places).map_err(Failure::Kernel)?);
            }
            return Ok(());
        };
        for place in places {
            if events.fetch_add(1, Ordering::Relaxed) >= EVENTS {
                events.fetch_sub(1, Ordering::Relaxed);
                return Err(Failure::TooMany);
            }
            match uprobe::single(program, target, *place) {
                Ok(event) => self.attached.push(event),
                Err(error) => {
                    events.fetch_sub(1, Ordering::Relaxed);
                    return Err(Failure::Kernel(error));
                }
            }
        }
        Ok(())
    }

    /// Detaches in the background; nobody waits for it.
    pub fn detach(mut self) {
        let attached = std::mem::take(&mut self.attached);
        let events = self.events.take();
        let spawned = thread::Builder::new().name("detach".to_owned()).spawn(move || {
            let n = attached.len();
            end(attached);
            if let Some(events) = events {
                events.fetch_sub(n, Ordering::Relaxed);
            }
        });
        if let Err(error) = spawned {
            tracing::debug!(%error, "probes were detached by the thread that found it was time");
        }
    }

    /// Takes the links out, to end them together with others.
    pub(super) fn into_attached(mut self) -> Vec<Attachment> {
        self.events = None;
        std::mem::take(&mut self.attached)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        if let Some(events) = self.events.take() {
            events.fetch_sub(self.attached.len(), Ordering::Relaxed);
        }
    }
}

/// Ends all of them, many at a time; returns when that is done.
pub(super) fn end(mut attached: Vec<Attachment>) {
    while !attached.is_empty() {
        let rest = attached.split_off(attached.len().min(THREADS));
        thread::scope(|scope| {
            for attachment in attached.drain(..) {
                // Where no thread can be had, the attempt itself drops it.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(attachment));
            }
        });
        attached = rest;
    }
}

enum Failure {
    TooMany,
    Kernel(std::io::Error),
}

impl Failure {
    fn of(self, program: Program) -> AttachError {
        match self {
            Self::TooMany => AttachError::TooMany,
            Self::Kernel(source) => AttachError::Refused { program: program.name(), source },
        }
    }
}

/// Whether the first of these points shows a breakpoint already in a new mapping of the file: then the same inode is
/// probed under another name (layers of containers share files, and the kernel puts its breakpoints into what is
/// below).
pub(super) fn is_probed(file: &std::fs::File, points: &[ProbePoint]) -> bool {
    let Some(point) = points.first() else { return false };
    let mut original = [0];
    let read = std::os::unix::fs::FileExt::read_exact_at(file, &mut original, point.offset);
    let mapped = uprobe::mapped_byte(file.as_fd(), point.offset);
    matches!((read, mapped), (Ok(()), Ok(mapped)) if mapped != original[0])
}
