//! This machine's files, or those of another tree, as a guest sees them: all of them, read-only.
//!
//! In: the tree, folders of this machine that must be visible. Out: a socket that the virtual machine connects to. The
//! server lives in a mount namespace of its own in which the files really are read-only. Refuses to know what reads
//! them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::process::{Program, run};

const READY: Duration = Duration::from_secs(20);
const SERVERS: [&str; 4] =
    ["/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/bin/virtiofsd", "/usr/lib/qemu/virtiofsd"];

/// Mounts the tree `$1` read-only at `$2`, then each of the mounts up to `--` in it, and becomes the server.
/// The tmpfs keeps the server's pid files out of `/run`.
const IN_NAMESPACE: &str = r#"
set -e
tree=$1; root=$2; shift 2
mount --bind "$tree" "$root"
mount -o remount,bind,ro "$root"
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
    shift
done
shift
mkdir -p /run/virtiofsd
mount -t tmpfs none /run/virtiofsd
exec "$@"
"#;

/// A running file server. Dropping it ends it.
#[derive(Debug)]
pub struct Share {
    /// Where the virtual machine connects.
    pub socket: PathBuf,
    _server: Program,
}

impl Share {
    /// Serves the root of this machine, and the mounts that `visible` paths are on; or `tree`, which gets folders for
    /// the `visible` ones to appear in.
    ///
    /// # Errors
    /// When there is no virtiofsd or it does not start.
    pub fn start(folder: &Path, tree: Option<&Path>, visible: &[PathBuf]) -> anyhow::Result<Self> {
        let server = SERVERS.iter().find(|path| Path::new(path).is_file());
        let server = server.with_context(|| format!("no virtiofsd at {}", SERVERS.join(", ")))?;
        let root = folder.join("root");
        let socket = folder.join("root.socket");
        std::fs::create_dir(&root)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
        let mounts = match tree {
            None => mounts_of(visible)?,
            Some(tree) => mounts_in(tree, visible)?,
        };
        command.args(["sh", "-c", IN_NAMESPACE, "sh"]).arg(tree.unwrap_or(Path::new("/"))).arg(&root);
        command.args(mounts).arg("--");
        command.arg(server).args(arguments(is_rust(server)?, &socket, &root));
        let server = Program::spawn("virtiofsd", command)?;
        let deadline = Instant::now() + READY;
        while !socket.exists() {
            if !server.is_running()? || Instant::now() > deadline {
                bail!("virtiofsd did not start: {}", server.stderr()?);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { socket, _server: server })
    }
}

/// The server of QEMU before 8.0 and its successor take different arguments.
fn is_rust(server: &str) -> anyhow::Result<bool> {
    let mut command = Command::new(server);
    command.arg("--help");
    let lines = run(server, command, READY)?;
    Ok(lines.iter().any(|line| line.contains("--shared-dir")))
}

fn arguments(is_rust: bool, socket: &Path, root: &Path) -> Vec<String> {
    let (socket, root) = (socket.display(), root.display());
    if is_rust {
        let options = ["--sandbox=namespace", "--cache=always", "--no-announce-submounts"];
        [format!("--socket-path={socket}"), format!("--shared-dir={root}")]
            .into_iter()
            .chain(options.map(str::to_owned))
            .collect()
    } else {
        let options = [format!("source={root}"), "sandbox=namespace".to_owned(), "cache=always".to_owned()];
        [format!("--socket-path={socket}")]
            .into_iter()
            .chain(options.into_iter().flat_map(|option| ["-o".to_owned(), option]))
            .collect()
    }
}

/// The mounts other than the root that `paths` are on, outer ones first.
fn mounts_of(paths: &[PathBuf]) -> anyhow::Result<BTreeSet<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    Ok(paths.iter().filter_map(|path| mount_of(&table, path)).collect())
}

/// The folders `visible` themselves, outer ones first, each with a place in `tree` to be mounted at.
fn mounts_in(tree: &Path, visible: &[PathBuf]) -> anyhow::Result<BTreeSet<PathBuf>> {
    for folder in visible {
        let place = tree.join(folder.strip_prefix("/").unwrap_or(folder));
        std::fs::create_dir_all(&place).with_context(|| format!("make {}", place.display()))?;
    }
    let is_inside =
        |folder: &&PathBuf| visible.iter().any(|outer| outer != *folder && folder.starts_with(outer));
    Ok(visible.iter().filter(|folder| !is_inside(folder)).cloned().collect())
}

fn mount_of(table: &str, path: &Path) -> Option<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    let on = points.filter(|point| path.starts_with(point));
    let innermost = on.max_by_key(|point| point.components().count())?;
    (innermost != Path::new("/")).then(|| innermost.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_its_innermost_mount() {
        let table = "/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/vdb /home ext4 rw 0 0\n\
                     /dev/vdc /home/build ext4 rw 0 0\n";
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(mount_of(table, Path::new(path)), expected.map(PathBuf::from), "{path}");
        };
        check("/usr/bin", None);
        check("/home", Some("/home"));
        check("/home/me/obi", Some("/home"));
        check("/home/build/obi", Some("/home/build"));
        check("/homes/build", None);
    }

    #[test]
    fn both_servers_get_their_arguments() {
        let check = |is_rust: bool, expected: &str| {
            assert_eq!(arguments(is_rust, Path::new("/s"), Path::new("/r")).join(" "), expected);
        };
        check(
            true,
            "--socket-path=/s --shared-dir=/r --sandbox=namespace --cache=always --no-announce-submounts",
        );
        check(false, "--socket-path=/s -o source=/r -o sandbox=namespace -o cache=always");
    }
}
