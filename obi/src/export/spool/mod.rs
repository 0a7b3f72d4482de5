//! The spool: requests that could not be delivered yet, on the disk.
//!
//! In: requests of lanes. Out: the same in order, also after a crash, a kill or a power cut; at least once each.
//! Refuses to know destinations and protocols.
//!
//! ```text
//! <directory>/lock                         who has it: one agent
//! <directory>/<key>/destination            for people: name and signal
//! <directory>/<key>/<sequence>.seg         records; the lowest number is read first
//! ```
//!
//! - The files are the only truth: what is in memory is counted from them at the start. A record that has been delivered
//!   is marked by an overwrite of one byte, a file whose records are done is unlinked: removal needs no space.
//! - A damaged record costs that record: each has a checksum, and so has each header, by which the next one is found.
//! - Each start begins a new file, so that nothing is ever appended to what a crash has left.
//! - All shelves share one bound: the shelf that has most gives its oldest file first.
//! - Nothing here stops a start: a folder that cannot be used is an error that the agent says and goes on without.

mod counts;
mod record;
mod segment;
mod shelf;
mod steady;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation, access, flock, statvfs};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

pub use self::counts::{Counts, Gone, Held};
pub use self::record::{Encoding, read_all, record_of};
pub use self::shelf::Kept;
use self::shelf::{Shelf, create_folder};
use self::steady::{SteadyClock, TooOld};

/// Longest segment.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Part of the file system that stays free: a twentieth.
const FREE_PART: u64 = 20;

/// Why there is no spool.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// Its folder cannot be made or used.
    #[error("failed to use `{}`: {reason}", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Another agent has it.
    #[error("`{}` is in use by another agent", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

/// Where and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// The folder.
    pub directory: PathBuf,
    /// Bytes of all files together.
    pub bytes: u64,
    /// How old a request may become.
    pub max_age: Duration,
}

/// All shelves. Its methods wait for the disk: they are for threads that may.
#[derive(Debug)]
pub struct Spool {
    bounds: Mutex<Bounds>,
    clock: SteadyClock,
    /// Held for as long as the spool is in use.
    _lock: File,
    shelves: Mutex<Vec<Named>>,
}

#[derive(Debug)]
struct Named {
    key: String,
    about: About,
    shelf: Shelf,
}

/// For people: whose requests these are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// Name of the destination.
    pub destination: String,
    /// Name of the signal.
    pub signal: String,
}

/// How long a lock is waited for: a former agent may be about to end, and a process that is being started holds the
/// files of its parent for a moment.
const LOCKED: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Takes the lock.
fn take(file: &File) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < LOCKED => thread::sleep(BETWEEN_TRIES),
            taken => return taken,
        }
    }
}

impl Spool {
    /// Opens the spool with what earlier runs have left.
    ///
    /// # Errors
    /// When the folder cannot be used, or another agent uses it.
    pub fn open(bounds: Bounds) -> Result<Arc<Self>, SpoolError> {
        Self::open_by(bounds, SteadyClock::now_by_the_system())
    }

    fn open_by(bounds: Bounds, clock: SteadyClock) -> Result<Arc<Self>, SpoolError> {
        let path = &bounds.directory;
        let failed = |path: &Path, reason: io::Error| SpoolError::Folder { path: path.to_owned(), reason };
        create_folder(path).map_err(|reason| failed(path, reason))?;
        let lock = path.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
        let file = file.map_err(|reason| failed(&lock, reason))?;
        match take(&file) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SpoolError::InUse { path: path.clone() }),
            Err(errno) => return Err(failed(&lock, errno.into())),
        }
        let entries = fs::read_dir(path).map_err(|reason| failed(path, reason))?;
        let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        let shelves: Vec<Named> = folders.filter_map(Named::open).collect();
        let (bounds, shelves) = (Mutex::new(bounds), Mutex::new(shelves));
        Ok(Arc::new(Self { bounds, clock, _lock: file, shelves }))
    }

    /// Goes on with other bounds, if the folder stays the same.
    pub fn rebound(&self, bounds: &Bounds) -> bool {
        let mut own = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = own.directory == bounds.directory;
        if is_same {
            own.clone_from(bounds);
        }
        is_same
    }

    fn bounds(&self) -> Bounds {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The shelf of `key`, which distinguishes the destination from all others: where it goes, in which language.
    #[must_use]
    pub fn shelf(self: &Arc<Self>, key: &str, about: &About) -> Slot {
        let key: String =
            Sha256::digest(key.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let mut shelves = self.shelves();
        let at = shelves.iter().position(|named| named.key == key).unwrap_or_else(|| {
            let shelf = Shelf::open(self.bounds().directory.join(&key), Arc::default());
            shelves.push(Named { key, about: about.clone(), shelf });
            shelves.len() - 1
        });
        let named = &mut shelves[at];
        named.about = about.clone();
        named.introduce();
        Slot { spool: Arc::clone(self), at, counts: Arc::clone(&named.shelf.counts) }
    }

    /// Everything that is there, also of those who are no destinations any more.
    #[must_use]
    pub fn all(&self) -> Vec<(About, Arc<Counts>)> {
        let shelves = self.shelves();
        shelves.iter().map(|named| (named.about.clone(), Arc::clone(&named.shelf.counts))).collect()
    }

    fn shelves(&self) -> MutexGuard<'_, Vec<Named>> {
        // After a panic, files and counts may differ by a request.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn too_old(&self) -> TooOld {
        self.clock.too_old(self.bounds().max_age)
    }

    fn expire(&self) {
        let too_old = self.too_old();
        self.shelves().iter_mut().for_each(|named| named.shelf.expire(too_old));
    }

    fn append(&self, at: usize, kept: &Kept) {
        self.expire();
        let bounds = self.bounds();
        let mut shelves = self.shelves();
        let need = kept.body.len() as u64 + kept.query.len() as u64 + record::HEADER_BYTES as u64;
        let fits = |shelves: &[Named]| {
            shelves.iter().map(|named| named.shelf.bytes()).sum::<u64>() + need <= bounds.bytes
        };
        while !(fits(&shelves) && has_room(&bounds.directory, need)) {
            if !make_room(&mut shelves) {
                break;
            }
        }
        let segment_bytes = SEGMENT_BYTES.min(bounds.bytes / 8);
        let counts = Arc::clone(&shelves[at].shelf.counts);
        if !fits(&shelves) || !has_room(&bounds.directory, need) {
            return counts.lose(Gone::Full, kept.items);
        }
        while let Err(error) = shelves[at].shelf.append(kept, segment_bytes) {
            let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if is_full && make_room(&mut shelves) {
                continue;
            }
            tracing::warn!(%error, items = kept.items, "not written to the spool, lost");
            return counts.lose(if is_full { Gone::Full } else { Gone::Unwritable }, kept.items);
        }
    }
}

/// Whether the file system of a folder can do without so many bytes. What is not known does not stop anything.
fn has_room(directory: &Path, need: u64) -> bool {
    statvfs(directory).map_or(true, |system| {
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let kept_free = system.f_blocks.saturating_mul(system.f_frsize) / FREE_PART;
        free >= kept_free.saturating_add(need)
    })
}

/// Whether a spool could be opened: bytes that its file system has free. Changes nothing: a folder that is not there
/// yet is judged by the one that it would be made in.
///
/// # Errors
/// When the folder cannot be used.
pub fn probe(directory: &Path) -> Result<u64, SpoolError> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let failed = |reason: io::Error| SpoolError::Folder { path: existing.to_owned(), reason };
    if !existing.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK | Access::READ_OK;
    access(existing, wanted).map_err(|errno| failed(errno.into()))?;
    let system = statvfs(existing).map_err(|errno| failed(errno.into()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Removes the oldest file of the shelf that has most.
fn make_room(shelves: &mut [Named]) -> bool {
    let largest = shelves.iter_mut().max_by_key(|named| named.shelf.bytes());
    largest.is_some_and(|named| named.shelf.remove_first(Gone::Full))
}

impl Named {
    /// A folder of an earlier run; `None` when it is none of ours.
    fn open(folder: PathBuf) -> Option<Self> {
        let key = folder.file_name()?.to_str()?.to_owned();
        if key.len() != 16 || !key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let text = fs::read_to_string(folder.join("destination")).unwrap_or_default();
        let mut lines = text.lines().map(str::to_owned);
        let about = About {
            destination: lines.next().unwrap_or_else(|| key.clone()),
            signal: lines.next().unwrap_or_default(),
        };
        Some(Self { key, about, shelf: Shelf::open(folder, Arc::default()) })
    }

    /// Writes down whose folder it is; nothing depends on it.
    fn introduce(&self) {
        let folder = &self.shelf.folder;
        let text = format!("{}\n{}\n", self.about.destination, self.about.signal);
        let written = create_folder(folder).and_then(|()| fs::write(folder.join("destination"), text));
        if let Err(error) = written {
            tracing::warn!(%error, folder = %folder.display(), "a folder of the spool cannot be written to");
        }
    }
}

/// One shelf in the hands of a lane. Its methods wait for the disk.
#[derive(Debug, Clone)]
pub struct Slot {
    spool: Arc<Spool>,
    at: usize,
    /// What is there.
    pub counts: Arc<Counts>,
}

impl Slot {
    /// What time it is for the spool, seconds since the Unix epoch: by the system's clock when it was opened, and what
    /// has passed since.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.spool.clock.seconds()
    }

    /// Keeps a request; what finds no room, or pushes others out, is counted.
    pub fn append(&self, kept: &Kept) {
        self.spool.append(self.at, kept);
    }

    /// The oldest request; it stays until [`Self::done`]. `None` as well while one is taken.
    #[must_use]
    pub fn take(&self) -> Option<Kept> {
        let too_old = self.spool.too_old();
        self.spool.shelves()[self.at].shelf.take(too_old)
    }

    /// The request that was taken has been settled.
    pub fn done(&self) {
        self.spool.shelves()[self.at].shelf.done();
    }

    /// The request that was taken is none.
    pub fn spoil(&self) {
        self.spool.shelves()[self.at].shelf.spoil();
    }

    /// The request that was taken comes again.
    pub fn put_back(&self) {
        self.spool.shelves()[self.at].shelf.put_back();
    }

    /// Removes what is too old, of others as well.
    pub fn expire(&self) {
        self.spool.expire();
    }

    /// Everything is on the disk, as far as the disk reports.
    pub fn close(&self) {
        self.spool.shelves()[self.at].shelf.close();
    }
}

#[cfg(test)]
mod tests;
