//! Looks at files and lists for threads that must not wait: a thread of its own.
//!
//! In: [`Want`]s. Out: [`Answer`]s, and backings with their files. A file system that does not answer makes this thread
//! wait and no other. Queues are bounded; what does not fit is refused and counted by the one who asks.
#![forbid(unsafe_code)]

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::backing::Backing;
use super::file::ExecutableFile;
use super::file_cache::{FileCache, Placed};
use super::open::{self, Unavailable};
use super::want::{Opening, Want};
use crate::capture::tls::place::Process;

/// What came of a want that its asker must know.
#[derive(Debug)]
pub enum Answer {
    /// What a process maps: the text of its list, and the time when reading it began. Empty for threads of the kernel.
    Listed(u32, Vec<u8>, u64),
    /// A process has gone, some time before this.
    Gone(u32, u64),
    /// We may not read what a process maps: what the side-band has reported stands.
    Hidden(u32),
    /// A file is known now that was not.
    Opened(Arc<Backing>, Arc<ExecutableFile>),
    /// A file's name means another file now.
    Replaced(Arc<Backing>),
    /// A file has no name any more.
    Deleted(Arc<Backing>),
}

/// How often files could not be opened, by [`Unavailable`].
#[derive(Debug, Default)]
pub struct Failures([AtomicU64; Unavailable::ALL.len()]);

impl Failures {
    /// How often for this reason.
    #[must_use]
    pub fn of(&self, reason: Unavailable) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    fn count(&self, reason: Unavailable) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The looking itself, without a thread.
#[derive(Debug)]
pub struct Looker {
    file_cache: FileCache,
    failures: Arc<Failures>,
}

impl Looker {
    /// Holds so many files at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { file_cache: FileCache::new(most), failures: Arc::default() }
    }

    /// How often what failed.
    #[must_use]
    pub fn failures(&self) -> Arc<Failures> {
        Arc::clone(&self.failures)
    }

    /// Looks.
    pub fn look(&mut self, want: Want) -> Option<Answer> {
        match want {
            Want::List(tgid) => {
                let began = monotonic();
                let maps = Process::open(tgid).and_then(|process| process.maps());
                Some(match maps {
                    Ok(text) => Answer::Listed(tgid, text, began),
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {
                        Answer::Gone(tgid, began)
                    }
                    Err(_) => Answer::Hidden(tgid),
                })
            }
            Want::Open(opening) => self.open(&opening),
            Want::Confirm(opening) => self.confirm(opening),
        }
    }

    fn open(&mut self, opening: &Opening) -> Option<Answer> {
        let backing = &opening.backing;
        let now = monotonic();
        let placed = open::open(opening).and_then(|file| {
            self.file_cache.place(&backing.path, file).map_err(|_: io::Error| Unavailable::Refused)
        });
        let reason = match placed {
            Ok(Placed::Known(file) | Placed::New(file)) => {
                backing.confirm(now);
                backing.set_file(Some(Arc::clone(&file)));
                return Some(Answer::Opened(Arc::clone(backing), file));
            }
            Ok(Placed::Full) => Unavailable::Full,
            Err(reason) => reason,
        };
        tracing::trace!(path = %backing.path, tgid = opening.tgid, %reason, "a mapped file was not opened");
        self.failures.count(reason);
        backing.confirm(now);
        backing.set_file(None);
        None
    }

    /// Whether the name still leads to the same file.
    fn confirm(&mut self, opening: Opening) -> Option<Answer> {
        let (now, backing) = (monotonic(), opening.backing);
        let opening = Opening { backing: Arc::clone(&backing), ..opening };
        let Ok(file) = open::open(&opening) else {
            // Its process has gone, mostly: the next one shows it.
            backing.confirm(backing.confirmed());
            return None;
        };
        let is_deleted = file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        let found = match self.file_cache.place(&backing.path, file) {
            Ok(Placed::Known(found) | Placed::New(found)) => found,
            Ok(Placed::Full) | Err(_) => return Some(Answer::Replaced(backing)),
        };
        if backing.file().is_none_or(|known| !Arc::ptr_eq(&known, &found)) {
            return Some(Answer::Replaced(backing));
        }
        backing.confirm(now);
        is_deleted.then_some(Answer::Deleted(backing))
    }
}

/// Wants that wait: a machine with many processes asks for all of them at the start. Therefore a queue that takes
/// memory for what waits; the standard library's takes it for all that might, 1 MB for both.
const WANTS: usize = 16_384;
const ANSWERS: usize = 4096;

/// The thread. Ends when it is dropped, without waiting for it: a file system may keep it.
#[derive(Debug)]
pub struct Reader {
    wants: Sender<Want>,
    answers: Receiver<Answer>,
    _thread: JoinHandle<()>,
}

impl Reader {
    /// Starts it, with the capabilities that the calling thread has now.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(mut looker: Looker) -> io::Result<Self> {
        let (wants, mut to_do) = channel::<Want>(WANTS);
        let (done, answers) = channel(ANSWERS);
        let work = move || {
            while let Some(want) = to_do.blocking_recv() {
                if let Some(answer) = looker.look(want)
                    && done.blocking_send(answer).is_err()
                {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("mapping".into()).spawn(work)?;
        Ok(Self { wants, answers, _thread: thread })
    }

    /// Asks. False when too much is asked already.
    pub fn ask(&self, want: Want) -> bool {
        self.wants.try_send(want).is_ok()
    }

    /// Answers there are.
    pub fn answers(&mut self) -> impl Iterator<Item = Answer> {
        std::iter::from_fn(|| self.answers.try_recv().ok())
    }
}

/// `CLOCK_MONOTONIC`, nanoseconds.
pub(super) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use caps::CapSet;

    fn look(tgid: u32) -> Answer {
        // In a thread of its own, since there is no way back.
        let work = move || {
            for set in [CapSet::Effective, CapSet::Permitted] {
                caps::clear(None, set).unwrap();
            }
            Looker::new(1).look(Want::List(tgid)).unwrap()
        };
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn what_may_not_be_read_is_not_taken_for_nothing() {
        let own = std::process::id();
        assert!(matches!(look(own), Answer::Listed(tgid, text, _) if tgid == own && !text.is_empty()));
        // The first process holds more capabilities than none.
        assert!(matches!(look(1), Answer::Hidden(1)));
        assert!(matches!(look(u32::MAX / 2), Answer::Gone(..)));
    }
}
