//! Files of processes, opened as those processes see them.
//!
//! In: a process, a path of its. Out: an open regular file, or why not. Paths belong to programs that may be hostile:
//! they are resolved below the process's own root, nothing but regular files is opened for reading, and never by
//! waiting for a pipe or device. Refuses to know what is in a file.
//!
//! A limit: a file system that is served by a program (FUSE) can make this thread wait. It is no other's thread.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};

use super::mapping::Mapping;

/// Most bytes read of `maps` or of the loader's cache.
const TEXT_BYTES: u64 = 4 * 1024 * 1024;
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// A process's directory; stays that process's, and fails once it has ended.
#[derive(Debug)]
pub(in crate::capture) struct Process {
    directory: OwnedFd,
}

impl Process {
    pub(in crate::capture) fn open(tgid: u32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: openat(CWD, format!("/proc/{tgid}"), flags, Mode::empty())? })
    }

    /// The text of `maps`.
    pub(in crate::capture) fn maps(&self) -> io::Result<Vec<u8>> {
        read(openat(&self.directory, "maps", READ_ONLY, Mode::empty())?)
    }

    /// The regular file behind one of the links below it (`exe`, `map_files/RANGE`), whatever its name means by now.
    pub(in crate::capture) fn linked(&self, link: &str) -> io::Result<File> {
        open_regular(&openat(&self.directory, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Its memory, to be read.
    pub(in crate::capture) fn memory(&self) -> io::Result<File> {
        Ok(File::from(openat(&self.directory, "mem", READ_ONLY, Mode::empty())?))
    }

    /// Name of its mount namespace, which no other has at the same time.
    pub(super) fn mounts(&self) -> io::Result<Vec<u8>> {
        Ok(readlinkat(&self.directory, "ns/mnt", Vec::new())?.into_bytes())
    }

    /// Its root directory.
    pub(in crate::capture) fn root(&self) -> io::Result<Root> {
        Ok(Root(openat(&self.directory, "root", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// The very file that is mapped, where we may (`CAP_CHECKPOINT_RESTORE`), which works for deleted ones too; else
    /// the one that has its path now, if it is the same.
    pub(super) fn mapped(&self, mapping: &Mapping) -> io::Result<File> {
        let link = format!("map_files/{}", mapping.range);
        let exact = openat(&self.directory, link, READ_ONLY, Mode::empty());
        let file = match exact {
            Ok(file) => File::from(file),
            Err(_) => self.root()?.open(&mapping.path)?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.ino() != mapping.identity.inode {
            let replaced = "the file was replaced while the process runs; restart the process";
            return Err(io::Error::new(io::ErrorKind::NotFound, replaced));
        }
        Ok(file)
    }
}

/// The root directory of a process.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

impl Root {
    /// Our own.
    pub(in crate::capture) fn own() -> io::Result<Self> {
        Self::at(Path::new("/"))
    }

    /// The one that this path leads to, as `/proc/PID/root`.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// A regular file below it, for reading.
    pub(crate) fn open(&self, path: impl rustix::path::Arg) -> io::Result<File> {
        self.resolve(path, OFlags::empty())
    }

    /// The same, and not what a link of this name leads to.
    pub(crate) fn open_itself(&self, path: impl rustix::path::Arg) -> io::Result<File> {
        self.resolve(path, OFlags::NOFOLLOW)
    }

    fn resolve(&self, path: impl rustix::path::Arg, flags: OFlags) -> io::Result<File> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
        open_regular(&openat2(&self.0, path, flags, Mode::empty(), resolve)?)
    }

    /// Up to some megabytes of a file.
    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        read(OwnedFd::from(self.open(path)?))
    }
}

/// Nothing but a regular file is opened for reading.
fn open_regular(named: &OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(fstat(named)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    reopen(named.as_fd())
}

/// Opens for reading what a descriptor only names.
fn reopen(named: BorrowedFd<'_>) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", named.as_raw_fd());
    Ok(File::from(openat(CWD, link, READ_ONLY, Mode::empty())?))
}

fn read(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(file).take(TEXT_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
