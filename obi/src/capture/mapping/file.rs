//! A file with code, as it was when a process mapped it.
//!
//! In: an open file. Out: [`ExecutableFile`]: what it is known by, its layout, and a descriptor through which it can be
//! read although its process has exited, or its name has gone or means another file by now. The descriptor keeps the
//! file and the file system that it is on; its owner lets it go when no process maps the file any more.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::image::{BuildIds, Image, Segment};
use super::kernel::Span;
use crate::capture::guest::{Build, Unfit};
use crate::capture::tls::elf::{ElfError, OpenFile, SharedFile};

/// A file as `stat` distinguishes it from others, also after its inode was used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Identity {
    /// File system.
    pub device: u64,
    /// Inode on it.
    pub inode: u64,
    /// Bytes.
    pub length: u64,
    /// Of its content: seconds and nanoseconds since the Unix epoch.
    pub modified: (i64, i64),
}

impl Identity {
    /// Of an open file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

/// A file with code; also the kernel's own code in processes (`[vdso]`), copied into one.
#[derive(Debug)]
pub struct ExecutableFile {
    /// Number of it; never used for another file in this run. Names may be kept by it.
    pub id: u64,
    /// As `stat` had it when it was opened.
    pub identity: Identity,
    /// Where the process that it was opened for had it, inside that process's root; `[vdso]`. Only for people: files
    /// are opened through [`handle`](Self::handle).
    pub path: Arc<str>,
    /// Which build it is.
    pub build_ids: BuildIds,
    /// `e_machine`; 0 when it is no ELF file.
    pub machine: u16,
    /// Its layout.
    image: Image,
    descriptor: ArcSwapOption<File>,
    sampled: AtomicU64,
    served: AtomicU64,
    tables: ArcSwapOption<Vec<Span>>,
    asked: AtomicU64,
    interpreter: ArcSwapOption<Result<Build, Unfit>>,
}

impl ExecutableFile {
    /// Reads the file's headers. What is no ELF file (a script's interpreter data, a Java archive) has no segments.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn new(id: u64, path: Arc<str>, file: File) -> io::Result<Self> {
        let identity = Identity::of(&file)?;
        let open = OpenFile { file, length: identity.length };
        let image = match Image::read(&open) {
            Ok(image) => image,
            Err(ElfError::Unreadable(error)) => return Err(error),
            Err(ElfError::Foreign | ElfError::Malformed(_)) => Image::foreign(&open)?,
        };
        Ok(Self {
            id,
            identity,
            path,
            build_ids: image.build_ids.clone(),
            machine: image.machine,
            image,
            descriptor: ArcSwapOption::from_pointee(open.file),
            sampled: AtomicU64::new(0),
            served: AtomicU64::new(0),
            tables: ArcSwapOption::empty(),
            asked: AtomicU64::new(0),
            interpreter: ArcSwapOption::empty(),
        })
    }

    /// The open file, unless it has been let go. Reads must say their offset (`read_at`): the descriptor is shared.
    /// What keeps it keeps the file's file system busy.
    #[must_use]
    pub fn handle(&self) -> Option<Arc<File>> {
        self.descriptor.load_full()
    }

    /// The same, to be read as a file.
    #[must_use]
    pub fn source(&self) -> Option<SharedFile> {
        Some(SharedFile { file: self.handle()?, length: self.identity.length })
    }

    /// A path that opens this very file as long as `handle` is held.
    #[must_use]
    pub fn link(handle: &File) -> String {
        format!("/proc/self/fd/{}", handle.as_raw_fd())
    }

    /// What is loaded of it.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.image.segments
    }

    /// The address, in the file's own layout (`p_vaddr`), of a byte at `offset` that is mapped to be executed.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.image.address(offset)
    }

    /// When it was last sampled, `CLOCK_MONOTONIC` nanoseconds; 0: never.
    #[must_use]
    pub fn sampled(&self) -> u64 {
        self.sampled.load(Ordering::Relaxed)
    }

    /// When it was last sampled while its thread served a request, `CLOCK_MONOTONIC` nanoseconds; 0: never.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The tables that the kernel side has of it, by address; empty where nothing can be said of how it unwinds.
    #[must_use]
    pub fn tables(&self) -> Option<Arc<Vec<Span>>> {
        self.tables.load_full()
    }

    pub(super) fn set_tables(&self, tables: Option<Vec<Span>>) {
        self.tables.store(tables.map(Arc::new));
    }

    /// The interpreter in it, or why that is not followed; `None`: there is none, or nobody has looked yet.
    #[must_use]
    pub fn interpreter(&self) -> Option<Arc<Result<Build, Unfit>>> {
        self.interpreter.load_full()
    }

    pub(super) fn set_interpreter(&self, interpreter: Option<Result<Build, Unfit>>) {
        self.interpreter.store(interpreter.map(Arc::new));
    }

    /// Whether its tables should be asked for now: not if that was done less than `after` nanoseconds ago.
    pub(super) fn is_due(&self, now: u64, after: u64) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let due = asked == 0 || now.saturating_sub(asked) >= after;
        if due {
            self.asked.store(now.max(1), Ordering::Relaxed);
        }
        due
    }

    /// A sample has shown it, of a thread that serves a request or not.
    pub(super) fn touch(&self, now: u64, serves: bool) {
        self.sampled.fetch_max(now, Ordering::Relaxed);
        if serves {
            self.served.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Has the same file open again, unless it is.
    pub(super) fn hold(&self, file: File) {
        if self.descriptor.load().is_none() {
            self.descriptor.store(Some(Arc::new(file)));
        }
    }

    /// Gives the descriptor away.
    pub(super) fn take(&self) -> Option<File> {
        Arc::into_inner(self.descriptor.swap(None)?)
    }

    /// Closes the descriptor, once nobody uses it any more. What is known of the file stays.
    pub(super) fn let_go(&self) {
        self.descriptor.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_executable_tells_where_we_are() {
        let file = ExecutableFile::new(1, "x".into(), File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(file.build_ids.htlhash.len(), 32);
        assert_eq!(file.identity, Identity::of(&file.handle().unwrap()).unwrap());
        assert!(file.segments().iter().any(|segment| segment.is_code));
        let handle = file.handle().unwrap();
        assert_eq!(std::fs::metadata(ExecutableFile::link(&handle)).unwrap().ino(), file.identity.inode);
        file.let_go();
        assert!(file.handle().is_none());
        file.touch(7, false);
        file.touch(5, true);
        assert_eq!((file.sampled(), file.served()), (7, 5));
    }

    #[test]
    fn what_is_no_program_has_a_hash_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jar");
        std::fs::write(&path, "PK").unwrap();
        let file = ExecutableFile::new(1, "jar".into(), File::open(path).unwrap()).unwrap();
        assert_eq!((file.machine, file.segments().len(), file.address(0)), (0, 0, None));
        assert_eq!(file.build_ids.htlhash.len(), 32);
        assert!(!file.build_ids.is_telling());
    }
}
