//! What `/proc` says about one process.
//!
//! In: a pid. Out: [`Facts`], or nothing when the process is gone. All reads go through one descriptor of the
//! process's directory, which never turns into another process when the pid is used again. Reads are bounded, and what
//! is memory of the process has a deadline (`memory`). Refuses to know what a service is.

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};

use super::container::{self, Container};
use super::memory::{Memory, MemoryReader};
use super::proc_text::{self, Variables};

/// What is known of a process, before it has a name. Holds no secret of its environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Process that made this one.
    pub parent: u32,
    /// Start, in clock ticks since boot: with the pid, the identity of the process.
    pub start: u64,
    /// Path of the executable inside the process's root; the kernel's short name when it cannot be read.
    pub executable: String,
    /// Working directory; empty when unreadable.
    pub directory: String,
    /// Arguments, the program's own name first; at most 4 KiB, long ones cut.
    pub command: Vec<String>,
    /// `OTEL_SERVICE_NAME`.
    pub otel_service_name: String,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub otel_resource_attributes: String,
    /// Runs inside Kubernetes.
    pub kubernetes: bool,
    /// `HOSTNAME` inside Kubernetes: the pod's name, unless the pod uses the node's network.
    pub host_name: String,
    /// Namespace of the pod's service account; empty when unknown.
    pub pod_namespace: String,
    /// Path of the control group; empty for the root.
    pub cgroup: String,
    /// The container it runs in.
    pub container: Container,
    /// Arguments and environment could not be read in time.
    pub is_memory_late: bool,
}

impl Facts {
    /// The same, with what the memory of the process says.
    pub(super) fn with_memory(self, command: Vec<String>, variables: Variables) -> Self {
        Self {
            command,
            otel_service_name: variables.service_name,
            otel_resource_attributes: variables.resource_attributes,
            kubernetes: variables.kubernetes
                || self.kubernetes
                || self.container.pod.is_some()
                || self.cgroup.contains("kubepods"),
            host_name: variables.host_name,
            ..self
        }
    }
}

/// Reads processes; keeps its buffer from one to the next.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    memory: MemoryReader,
}

/// Most bytes read of one file.
pub(super) const READ_BYTES: usize = 64 * 1024;

impl Reader {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; READ_BYTES], memory: MemoryReader::new() }
    }

    /// Everything about a process. `None`: it is gone, has ended, or is a thread of the kernel.
    pub(super) fn facts(&mut self, tgid: u32) -> Option<Facts> {
        let process = open_process(tgid)?;
        let process = process.as_fd();
        let stat =
            proc_text::stat(self.read_once(process, "stat")?.0).filter(|stat| !stat.kernel && !stat.ended)?;
        let groups = self.read_once(process, "cgroup");
        let (cgroup, container) = groups
            .map(|(bytes, _)| (proc_text::cgroup(bytes), container::container(bytes)))
            .unwrap_or_default();
        let memory = self.memory.read(process);
        let is_memory_late = memory.is_none();
        let Memory { command, variables } = memory.unwrap_or_default();
        let mut facts = Facts {
            parent: stat.parent,
            start: stat.start,
            executable: link(process, "exe").map_or(stat.comm, |path| proc_text::executable(&path)),
            directory: link(process, "cwd").map(|path| proc_text::executable(&path)).unwrap_or_default(),
            cgroup,
            container,
            is_memory_late,
            ..Facts::default()
        }
        .with_memory(command, variables);
        if facts.kubernetes {
            facts.pod_namespace = self.pod_namespace(process);
        }
        Some(facts)
    }

    /// Start of the process that has this pid now, and its executable if that is readable; `None` when none has.
    pub(super) fn identity(&mut self, tgid: u32) -> Option<(u64, Option<String>)> {
        let process = open_process(tgid)?;
        let stat = proc_text::stat(self.read_once(process.as_fd(), "stat")?.0)?;
        let executable = link(process.as_fd(), "exe").map(|path| proc_text::executable(&path));
        (!stat.kernel && !stat.ended).then_some((stat.start, executable))
    }

    /// The bytes of a file, and whether they are all of it.
    pub(super) fn read(&mut self, process: BorrowedFd<'_>, name: &str) -> Option<(&[u8], bool)> {
        let file = openat(process, name, READ_ONLY, Mode::empty()).ok()?;
        self.fill(file)
    }

    /// The same of a file that comes whole, as far as there is room. Tables come page by page.
    fn read_once(&mut self, process: BorrowedFd<'_>, name: &str) -> Option<(&[u8], bool)> {
        read_once(process, name, &mut self.buffer)
    }

    fn fill(&mut self, file: OwnedFd) -> Option<(&[u8], bool)> {
        let mut file = std::fs::File::from(file);
        let mut filled = 0;
        while filled < self.buffer.len() {
            match file.read(&mut self.buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) if filled > 0 => break,
                Err(_) => return None,
            }
        }
        Some((&self.buffer[..filled], filled < self.buffer.len()))
    }

    /// The namespace that Kubernetes mounts into every pod with a service account.
    fn pod_namespace(&mut self, process: BorrowedFd<'_>) -> String {
        let Ok(root) = openat(process, "root", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            return String::new();
        };
        NAMESPACE_FILES.iter().find_map(|path| self.namespace_file(root.as_fd(), path)).unwrap_or_default()
    }

    /// The file belongs to the pod, which may be hostile: the look-up stays below its root and touches only what is
    /// in memory already (a mounted directory always is), so that it cannot wait for a file system of the pod's own;
    /// and only tmpfs, where secrets are mounted, is read.
    fn namespace_file(&mut self, root: BorrowedFd<'_>, path: &str) -> Option<String> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(root, path, READ_ONLY, Mode::empty(), resolve).ok()?;
        let system = rustix::fs::fstatfs(&file).ok()?.f_type;
        let (bytes, _) = (system == TMPFS).then(|| self.fill(file))??;
        let name = std::str::from_utf8(bytes).ok()?.trim();
        is_label(name).then(|| name.to_owned())
    }
}

/// What one read of a file gives, and whether it is all of it.
pub(super) fn read_once<'b>(
    process: BorrowedFd<'_>,
    name: &str,
    buffer: &'b mut [u8],
) -> Option<(&'b [u8], bool)> {
    let file = openat(process, name, READ_ONLY, Mode::empty()).ok()?;
    let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer)).ok()?;
    Some((&buffer[..count], count < buffer.len()))
}

const NAMESPACE_FILES: [&str; 2] = [
    "run/secrets/kubernetes.io/serviceaccount/namespace",
    "var/run/secrets/kubernetes.io/serviceaccount/namespace",
];

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Never wait: what is opened may be a pipe or a terminal.
const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The directory of a process; stays that process's, and fails once it has ended.
pub(super) fn open_process(tgid: u32) -> Option<OwnedFd> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, format!("/proc/{tgid}"), directory, Mode::empty()).ok()
}

fn link(process: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    readlinkat(process, name, Vec::new()).ok().map(|path| path.into_bytes())
}

/// A DNS label, as Kubernetes demands of namespaces.
fn is_label(name: &str) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_read_as_it_was_started() {
        let mut child = Command::new("/bin/sleep")
            .args(["100"])
            .env_clear()
            .env("OTEL_SERVICE_NAME", "sleeper")
            .env("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=night")
            .env("SECRET", "hunter2")
            .current_dir("/")
            .spawn()
            .unwrap();
        let mut reader = Reader::new();
        // The system call that replaces the program returns to the parent before the arguments are in place.
        let mut facts = reader.facts(child.id()).unwrap();
        while facts.command.is_empty() {
            facts = reader.facts(child.id()).unwrap();
        }
        assert_eq!(facts.parent, std::process::id());
        assert_eq!(facts.executable.rsplit('/').next(), Some("sleep"));
        assert_eq!(
            (facts.directory.as_str(), facts.command.as_slice()),
            ("/", ["/bin/sleep", "100"].map(str::to_owned).as_slice())
        );
        assert_eq!(facts.otel_service_name, "sleeper");
        assert_eq!(facts.otel_resource_attributes, "service.namespace=night");
        assert_eq!(reader.identity(child.id()), Some((facts.start, Some(facts.executable))));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(reader.facts(child.id()), None);
    }

    #[test]
    fn a_zombie_and_a_kernel_thread_are_nothing() {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let mut reader = Reader::new();
        let pid = child.id();
        let stat = format!("/proc/{pid}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z") {
            std::thread::yield_now();
        }
        assert_eq!(reader.facts(pid), None);
        child.wait().unwrap();
        assert_eq!(reader.facts(u32::MAX), None);
        assert_eq!(reader.facts(0), None);
    }

    #[test]
    fn the_namespace_file_is_read_from_the_pods_own_root() {
        fn check(content: &str, expected: Option<&str>) {
            let root = tempfile::tempdir_in("/dev/shm").unwrap();
            let directory = root.path().join("run/secrets/kubernetes.io/serviceaccount");
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("namespace"), content).unwrap();
            let handle = std::fs::File::open(root.path()).unwrap();
            let found = Reader::new().namespace_file(handle.as_fd(), NAMESPACE_FILES[0]);
            assert_eq!(found.as_deref(), expected, "{content:?}");
        }
        check("shop\n", Some("shop"));
        check("", None);
        check("no spaces allowed", None);
        check(&"x".repeat(100_000), None);
    }
}
