//! Numbers of tracepoints, from the kernel's tracing file system.
//!
//! In: a tracepoint's name. Out: its number. Where the file system is mounted nowhere, a private mount that no other
//! process sees and that ends with its descriptor serves; it needs `CAP_SYS_ADMIN`.
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
        match private() {
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
        let path = format!("events/syscalls/{name}/id");
        let refuse = |error: io::Error| {
            io::Error::new(error.kind(), format!("failed to read `{path}` of tracefs: {error}"))
        };
        let file = openat(&self.root, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| refuse(error.into()))?;
        let mut text = String::new();
        std::fs::File::from(file).take(64).read_to_string(&mut text).map_err(refuse)?;
        text.trim().parse().map_err(|_| refuse(io::Error::other(format!("`{}` is no number", text.trim()))))
    }
}

fn private() -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&filesystem)?;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)
}
