//! Who maps what when the agent starts, while it still may look at everything.
//!
//! In: `/proc`. Out: [`Survey`]: the side-band, opened before anything is read so that nothing is missed between, and
//! the processes with their files. Files without a name that processes map are opened here: it needs more than is kept.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use super::file::ExecutableFile;
use super::process::Processes;
use super::reader::{Answer, Looker};
use super::rings::Rings;
use super::want::Want;

/// What was found.
#[derive(Debug)]
pub struct Survey {
    pub(super) rings: Rings,
    pub(super) processes: Processes,
    pub(super) looker: Looker,
    pub(super) files: Vec<Arc<ExecutableFile>>,
}

/// Files that are held open at most.
const FILES: usize = 4096;
/// Descriptors that the rest of the agent needs.
const OTHER_DESCRIPTORS: u64 = 1024;
/// Processes that are not reached in this time are looked at when they are sampled.
const TIME: Duration = Duration::from_millis(800);

impl Survey {
    /// Opens the side-band, which needs `CAP_PERFMON`, and looks at every process.
    ///
    /// # Errors
    /// When the kernel refuses the side-band.
    pub fn open() -> io::Result<Self> {
        let rings = Rings::open()?;
        let looker = Looker::new(room_for_files());
        let mut survey = Self { rings, processes: Processes::default(), looker, files: Vec::new() };
        let began = Instant::now();
        let tgids = std::fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        for tgid in tgids {
            if began.elapsed() > TIME {
                tracing::debug!(tgid, "not every process was looked at before the start");
                break;
            }
            survey.look(Want::List(tgid));
            for want in survey.processes.take_wants() {
                survey.look(want);
            }
        }
        Ok(survey)
    }

    fn look(&mut self, want: Want) {
        match self.looker.look(want) {
            Some(Answer::Listed(tgid, text, began)) => self.processes.listed(tgid, &text, began),
            Some(Answer::Opened(_, file)) => self.files.push(file),
            _ => {}
        }
    }
}

/// As many as descriptors allow; as many descriptors as we may have.
fn room_for_files() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = FILES as u64 + OTHER_DESCRIPTORS;
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        limit.current = Some(raised.max(limit.current.unwrap_or(0)));
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays");
        }
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    // A low limit is shared with sockets and kernel programs.
    usize::try_from(now.saturating_sub(OTHER_DESCRIPTORS).max(now / 4)).unwrap_or(FILES).min(FILES)
}

/// Whether a process goes on although its first thread has ended.
pub(super) fn runs(tgid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{tgid}/task")) else { return false };
    let own = tgid.to_string();
    threads.flatten().any(|thread| thread.file_name().to_str() != Some(&own))
}
