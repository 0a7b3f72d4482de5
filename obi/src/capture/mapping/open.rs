//! Opens the files that processes map: the very one that is mapped, or none.
//!
//! In: an [`Opening`]. Out: an open file, or why not. A path alone says little: it is looked up as the process sees it,
//! and the file must be the one that the kernel named. Where the process has gone, its parent's view is tried, and
//! ours. May wait for the file system. Refuses to know what is in a file.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstatfs, major, memfd_create, minor};
use thiserror::Error;

use super::backing::{Backing, Kind};
use super::want::Opening;
use crate::capture::tls::place::{Process, Root};

/// Why a file could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// Its process has ended, and nobody else has the file under this path.
    #[error("the process has gone")]
    Gone,
    /// It has no name any more, or another file has it.
    #[error("the file was deleted or replaced")]
    Replaced,
    /// We may not, or it is no file that can be read.
    #[error("the file cannot be read")]
    Refused,
    /// Too many are open.
    #[error("too many files are open")]
    Full,
}

impl Unavailable {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gone, Self::Replaced, Self::Refused, Self::Full];

    /// As a label of a metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gone => "process_gone",
            Self::Replaced => "file_replaced",
            Self::Refused => "file_unreadable",
            Self::Full => "files_full",
        }
    }
}

/// Whose view of the file system is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// The one that the path is of.
    Own,
    /// A view in which the same path may be another file.
    Other,
}

/// What the kernel appends to the path of a file without a name.
const DELETED: &str = " (deleted)";
/// `OVERLAYFS_SUPER_MAGIC`: numbers of inodes are not those of the files below.
const OVERLAY: u64 = 0x794c_7630;
/// The kernel's code in a process is a few pages.
const VDSO_BYTES: u64 = 1024 * 1024;

/// Opens what is mapped.
///
/// # Errors
/// When it cannot be found for certain.
pub fn open(opening: &Opening) -> Result<File, Unavailable> {
    let backing = &opening.backing;
    let process = Process::open(opening.tgid);
    if backing.kind == Kind::Vdso {
        let process = process.map_err(|_| Unavailable::Gone)?;
        return vdso(&process, opening.range).map_err(|_| Unavailable::Refused);
    }
    let mut error = Unavailable::Gone;
    if let Ok(process) = &process {
        match of_process(process, opening) {
            Ok(file) => return Ok(file),
            Err(found) => error = found,
        }
        // A process without a root has ended and waits for its parent.
        if process.root().is_ok() {
            return Err(error);
        }
    }
    let parent = || Process::open(opening.parent)?.root();
    for root in [parent(), Root::own()].into_iter().flatten() {
        if let Ok(file) = named(&root, backing, View::Other) {
            return Ok(file);
        }
    }
    Err(if error == Unavailable::Full { error } else { Unavailable::Gone })
}

fn of_process(process: &Process, opening: &Opening) -> Result<File, Unavailable> {
    let backing = &opening.backing;
    let root = process.root().map_err(|error| reason(&error))?;
    let named = named(&root, backing, View::Own);
    let Err(error) = named else { return named };
    // They lead to the file itself, whatever has become of its name. The second needs more than is kept after start.
    let (start, end) = opening.range;
    for link in ["exe".to_owned(), format!("map_files/{start:x}-{end:x}")] {
        match process.linked(&link) {
            Ok(file) if is_it(&file, backing, View::Own) => return Ok(file),
            _ => {}
        }
    }
    Err(error)
}

fn named(root: &Root, backing: &Backing, view: View) -> Result<File, Unavailable> {
    if backing.path.ends_with(DELETED) {
        return Err(Unavailable::Replaced);
    }
    let file = root.open(&*backing.path).map_err(|error| reason(&error))?;
    if is_it(&file, backing, view) { Ok(file) } else { Err(Unavailable::Replaced) }
}

/// Whether an open file is the one that the kernel named. Some file systems show other numbers of device (btrfs) or
/// inode (overlay) to programs than the kernel uses.
fn is_it(file: &File, backing: &Backing, view: View) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let same_inode = metadata.ino() == backing.inode;
    let same_device = (major(metadata.dev()), minor(metadata.dev())) == backing.device;
    let is_overlay = || fstatfs(file).is_ok_and(|fs| fs.f_type.cast_unsigned() == OVERLAY);
    match view {
        View::Own => same_inode || is_overlay() && !backing.path.ends_with(DELETED),
        View::Other => same_inode && (same_device || is_overlay()),
    }
}

fn reason(error: &io::Error) -> Unavailable {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Unavailable::Full,
        Some(libc::ENOENT) => Unavailable::Replaced,
        Some(libc::ESRCH) => Unavailable::Gone,
        _ => Unavailable::Refused,
    }
}

/// A copy of the kernel's code in a process, as a file that nobody can change.
fn vdso(process: &Process, (start, end): (u64, u64)) -> io::Result<File> {
    let length = end.saturating_sub(start).min(VDSO_BYTES);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    process.memory()?.read_exact_at(&mut bytes, start)?;
    let mut file = File::from(memfd_create("vdso", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&bytes)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
