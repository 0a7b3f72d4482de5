//! Numbers of tracepoints, from the kernel's tracing file system; files of its debug file system.
//!
//! In: a tracepoint's name, a path. Out: its number, a text. Where the file system is mounted nowhere, a private mount
//! that no other process sees and that ends with its descriptor serves; it needs `CAP_SYS_ADMIN`.
#![forbid(unsafe_code)]

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where it is usually mounted.
pub const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The tracing file system.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
}

impl Tracefs {
    /// Opens it where it is mounted, or mounts it for us alone.
    ///
    /// # Errors
    /// When it is not mounted and cannot be: the text says both.
    pub fn open() -> io::Result<Self> {
        for place in USUAL {
            // Its mount point exists even where it is not mounted.
            if let Ok(root) =
                openat(CWD, place, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
                && openat(&root, "events", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
            {
                return Ok(Self { root });
            }
        }
        match private("tracefs") {
            Ok(root) => Ok(Self { root }),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!(
                    "tracefs is not at `{}` or `{}`, and to mount it privately failed: {error}",
                    USUAL[0], USUAL[1]
                ),
            )),
        }
    }

    /// The number of a tracepoint of category `syscalls`.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn syscall(&self, name: &str) -> io::Result<u64> {
        self.number("syscalls", name)
    }

    /// The number of a tracepoint of category `raw_syscalls`.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn raw_syscall(&self, name: &str) -> io::Result<u64> {
        self.number("raw_syscalls", name)
    }

    fn number(&self, category: &str, name: &str) -> io::Result<u64> {
        let path = format!("events/{category}/{name}/id");
        let refuse = |error: io::Error| {
            io::Error::new(error.kind(), format!("failed to read `{path}` of tracefs: {error}"))
        };
        let text = read(&self.root, &path).map_err(refuse)?;
        text.trim().parse().map_err(|_| refuse(io::Error::other(format!("`{}` is no number", text.trim()))))
    }
}

/// A short file of the kernel's debug file system.
///
/// # Errors
/// When the file system cannot be had, or the kernel, locked down, does not let it be read.
pub fn debugfs_file(path: &str) -> io::Result<String> {
    const USUAL: &str = "/sys/kernel/debug";
    let usual = openat(CWD, USUAL, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty());
    match usual.map_err(io::Error::from).and_then(|root| read(&root, path)) {
        Ok(text) => Ok(text),
        Err(_) => read(&private("debugfs")?, path),
    }
}

/// The first bytes of a file.
fn read(root: &OwnedFd, path: &str) -> io::Result<String> {
    let file = openat(root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(file).take(64).read_to_string(&mut text)?;
    Ok(text)
}

fn private(kind: &str) -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
}
