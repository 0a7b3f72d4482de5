//! What a guest starts from: a shell, drivers, and the command to run.
//!
//! In: a kernel image, a command. Out: archives for the boot loader. Refuses to know what runs there.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::image::{Image, decompress};

const INIT: &str = include_str!("../../guest/init");
const COMMAND_RUNNER: &str = include_str!("../../guest/command-runner");
const ENTER_SYSTEM: &str = include_str!("../../guest/enter-system");

/// Drivers and shell for one kernel; the shell is that of `tree`, where the guest has one of its own.
///
/// # Errors
/// When a tool or driver is missing.
pub fn base(image: &Image, tree: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let root = tempfile::tempdir()?;
    let file = |name: &str| root.path().join(name);
    for folder in ["bin", "guest", "modules"] {
        fs::create_dir(file(folder))?;
    }
    fs::copy(busybox(tree.unwrap_or(Path::new("/")))?, file("bin/busybox"))?;
    fs::write(file("init"), INIT)?;
    fs::set_permissions(file("init"), fs::Permissions::from_mode(0o755))?;
    fs::write(file("guest/command-runner"), COMMAND_RUNNER)?;
    fs::write(file("guest/enter-system"), ENTER_SYSTEM)?;
    let mut order = String::new();
    for (index, driver) in image.drivers()?.iter().enumerate() {
        let name = format!("{index}.ko");
        decompress(driver, &file("modules").join(&name))?;
        order += &format!("{name}\n");
    }
    fs::write(file("modules/order"), order)?;
    pack(root.path())
}

/// The command alone; the boot loader puts it behind [`base`]. With `system`, a Debian tree on the host, the command is
/// a service of that tree's systemd, which finds `folder` where it is on the host.
///
/// # Errors
/// When packing fails.
pub fn command(script: &str, system: Option<&Path>, folder: &Path) -> anyhow::Result<Vec<u8>> {
    let root = tempfile::tempdir()?;
    fs::create_dir(root.path().join("guest"))?;
    fs::write(root.path().join("guest/command"), script)?;
    if let Some(system) = system {
        fs::write(root.path().join("guest/system"), system.display().to_string())?;
        fs::write(root.path().join("guest/folder"), folder.display().to_string())?;
    }
    pack(root.path())
}

/// An archive of all that is below `root`.
fn pack(root: &Path) -> anyhow::Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            writeln!(names, "{}", path.strip_prefix(root)?.display())?;
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    let list = tempfile::NamedTempFile::new()?;
    fs::write(list.path(), names)?;
    let archive = Command::new("cpio")
        .args(["--create", "--format=newc", "--quiet", "--owner=+0:+0"])
        .current_dir(root)
        .stdin(fs::File::open(list.path())?)
        .stderr(Stdio::inherit())
        .output()
        .context("run cpio")?;
    if !archive.status.success() {
        bail!("cpio failed on {}: {}", root.display(), archive.status);
    }
    Ok(archive.stdout)
}

/// A busybox that needs no libraries.
fn busybox(root: &Path) -> anyhow::Result<PathBuf> {
    let candidates = ["bin/busybox", "usr/bin/busybox"].map(|name| root.join(name));
    for candidate in &candidates {
        if fs::read(candidate).is_ok_and(|bytes| is_static(&bytes)) {
            return Ok(candidate.clone());
        }
    }
    let candidates = candidates.map(|candidate| candidate.display().to_string()).join(" or ");
    bail!("no static busybox at {candidates}: install busybox-static")
}

/// Whether an executable asks for no loader.
fn is_static(bytes: &[u8]) -> bool {
    let Ok(header) = object::elf::FileHeader64::<object::Endianness>::parse(bytes) else { return false };
    let Ok(endian) = header.endian() else { return false };
    let segments = header.program_headers(endian, bytes).unwrap_or_default();
    !segments.is_empty() && segments.iter().all(|segment| segment.p_type(endian) != object::elf::PT_INTERP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_is_noticed() {
        let own = fs::read("/proc/self/exe").unwrap();
        assert!(!is_static(&own), "a test program is linked dynamically");
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(&own[..20]));
    }

    #[test]
    fn an_archive_ends_where_the_next_may_begin() {
        let archive = command("exec true\n", None, Path::new("/")).unwrap();
        assert!(archive.starts_with(b"070701"));
        assert_eq!(archive.len() % 4, 0, "the kernel expects the next archive at a multiple of four");
        let text = String::from_utf8_lossy(&archive);
        assert!(text.contains("guest/command\0") && text.contains("exec true\n"), "{text}");
    }
}
