//! Which pids `/proc` shows: the kernel's events carry those of the initial pid namespace.
//!
//! In: `/proc/self`. Out: whether they agree, and our own pid there. The inode of the initial pid namespace is a
//! constant of the kernel (`PID_NS_INIT_INO`), so this is exact and no guess.

use serde::Serialize;

use super::{Check, Outcome};

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
        let link = |path: &str| rustix::fs::readlink(path, Vec::new()).map(std::ffi::CString::into_bytes);
        let own = link("/proc/self/ns/pid").is_ok_and(|target| target == INITIAL);
        // The first process that this /proc shows lives in the namespace that it was mounted in.
        let mounted = link("/proc/1/ns/pid").is_ok_and(|target| target == INITIAL);
        let status = std::fs::read("/proc/self/status").unwrap_or_default();
        let pids = pids(&status);
        let own_pid = pids.first().copied().unwrap_or_else(std::process::id);
        // In the initial namespace /proc may still be another's: then it shows us by another number, or not at all.
        let shown = pids.as_slice() == [std::process::id()];
        Self { initial: (own && shown) || mounted, own_pid }
    }

    pub(super) fn check(self) -> Check {
        const NAME: &str = "host pid namespace";
        if self.initial {
            return Check::new(NAME, Outcome::Available);
        }
        Check::missing(
            NAME,
            "`/proc/self/ns/pid` is not the initial pid namespace, so kernel events and /proc number processes differently",
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
    fn a_new_namespace_is_not_the_initial_one() {
        let own = rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).unwrap();
        assert_eq!(PidNamespace::probe().initial, own.as_bytes() == INITIAL);
        assert!(matches!(PidNamespace { initial: false, own_pid: 1 }.check().outcome, Outcome::Missing(_)));
    }
}
