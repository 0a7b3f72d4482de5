//! Which pids `/proc` shows: the kernel's events carry those of the initial pid namespace.
//!
//! In: `/proc/self`. Out: whether they agree, and our own pid there. The inode of the initial pid namespace is a
//! constant of the kernel (`PID_NS_INIT_INO`), and the kernel's threads live in no other, so this is exact and no
//! guess.

use serde::Serialize;

use super::{Check, Outcome};
use crate::capture::discover::proc_text;

/// How our view of pids relates to the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PidNamespace {
    /// `/proc` shows the pids of the initial namespace.
    pub initial: bool,
    /// Our own pid in the outermost namespace that `/proc` shows; in the kernel's events if `initial`.
    pub own_pid: u32,
}

/// `PID_NS_INIT_INO` of `linux/nsfs.h`.
const INITIAL: &[u8] = b"pid:[4026531836]";

impl PidNamespace {
    pub(super) fn probe() -> Self {
        let own = rustix::fs::readlink("/proc/self/ns/pid", Vec::new());
        let own = own.is_ok_and(|target| target.as_bytes() == INITIAL);
        let pids = pids(&std::fs::read("/proc/self/status").unwrap_or_default());
        // In the initial namespace /proc may still be another's: then it shows us by another number, or not at all.
        let shown = pids.as_slice() == [std::process::id()];
        // Elsewhere it may still be the initial one's, and then it shows the kernel's own threads.
        let second = std::fs::read("/proc/2/stat").ok().and_then(|text| proc_text::stat(&text));
        let initial = (own && shown) || second.is_some_and(|stat| stat.kernel);
        Self { initial, own_pid: pids.first().copied().unwrap_or_else(std::process::id) }
    }

    pub(super) fn check(self) -> Check {
        const NAME: &str = "host pid namespace";
        if self.initial {
            return Check::new(NAME, Outcome::Available);
        }
        Check::missing(
            NAME,
            "`/proc` does not show the initial pid namespace, whose pids the kernel's events carry",
            "start the container with the host's pids: `docker run --pid=host`, `hostPID: true` in Kubernetes",
        )
    }
}

/// Our pids from the outermost namespace that `/proc` shows to our own.
fn pids(status: &[u8]) -> Vec<u32> {
    let text = String::from_utf8_lossy(status);
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_of_nested_namespaces() {
        fn check(status: &str, expected: &[u32]) {
            assert_eq!(pids(status.as_bytes()), expected, "{status:?}");
        }
        check("Name:\tx\nNSpid:\t42\nNSpgid:\t42\n", &[42]);
        check("NSpid:\t4242\t7\t1\n", &[4242, 7, 1]);
        check("NSpid:\n", &[]);
        check("", &[]);
    }

    #[test]
    fn the_namespace_of_the_tests() {
        let own = rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).unwrap();
        let found = PidNamespace::probe();
        assert!(found.initial || own.as_bytes() != INITIAL, "{found:?}");
        assert_eq!(found.own_pid, std::process::id());
        assert!(matches!(PidNamespace { initial: false, own_pid: 1 }.check().outcome, Outcome::Missing(_)));
    }
}
