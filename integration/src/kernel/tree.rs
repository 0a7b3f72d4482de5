//! A Debian of another architecture: what its guests see instead of this machine's files.
//!
//! In: a release. Out: a folder with packages and all that they depend on, unpacked but not configured: no script of
//! theirs runs, since this machine cannot run them. Refuses to know what a guest does with it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::archive::{Apt, cache};
use super::release::Release;
use crate::seed::note;

/// What tests start or compile with there. Changed packages need another [`NAME`].
const PACKAGES: [&str; 16] = [
    "base-files",
    "base-passwd",
    "busybox-static",
    "bash",
    "coreutils",
    "util-linux",
    "procps",
    "bpftool",
    "gcc",
    "libc6-dev",
    "binutils",
    "nginx-light",
    "curl",
    "openssl",
    "libssl-dev",
    "python3",
];
const NAME: &str = "tree-2";
/// What the packages' scripts would make.
const LINKS: [(&str, &str); 3] = [
    ("usr/bin/cc", "gcc"),
    ("etc/passwd", "../usr/share/base-passwd/passwd.master"),
    ("etc/group", "../usr/share/base-passwd/group.master"),
];

/// The tree of a release's suite and architecture, made when it is not there.
///
/// # Errors
/// When a package cannot be had or unpacked.
pub fn fetch(release: &Release) -> anyhow::Result<PathBuf> {
    let cache = cache()?;
    let tree = cache.join(format!("{NAME}-{}-{}", release.suite, release.architecture.debian()));
    if tree.is_dir() {
        return Ok(tree);
    }
    note(&format!("making {}", tree.display()));
    let unfinished = tempfile::tempdir_in(&cache)?;
    let apt = Apt::new(release, &cache)?;
    apt.run("apt-get", &["update"], None)?;
    apt.unpack_with_dependencies(&PACKAGES, unfinished.path())?;
    complete(unfinished.path()).with_context(|| format!("complete {}", tree.display()))?;
    let unfinished = unfinished.keep();
    fs::rename(&unfinished, &tree).with_context(|| format!("keep {}", tree.display()))?;
    Ok(tree)
}

fn complete(tree: &Path) -> anyhow::Result<()> {
    for (name, target) in LINKS {
        let path = tree.join(name);
        symlink(target, &path).with_context(|| format!("make {}", path.display()))?;
    }
    fs::write(tree.join("etc/hosts"), "127.0.0.1 localhost guest\n::1 localhost\n")?;
    fs::write(tree.join("etc/resolv.conf"), "")?;
    Ok(())
}
