//! Gives up what the agent no longer needs once its programs are attached.
//!
//! In: the capabilities of this thread. Out: fewer of them, and no way back: `no_new_privs` is set, and permitted,
//! inheritable, ambient and (where `CAP_SETPCAP` allows it) bounding set shrink too. Capabilities belong to threads:
//! every thread gives up its own, threads started later inherit what is left, and [`verify`] looks at all of them.
//! Refuses to know how anything was loaded.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use thiserror::Error;

/// How long a thread may take to begin, on a machine that is busy.
const BEGINS: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// What a running agent uses, where it was started with it: other users' processes are read as they come, and files
/// that they have mapped and deleted are opened by `/proc/PID/map_files` (`proc_map_files_get_link` in
/// fs/proc/base.c). Everything that is loaded, attached or switched on is held by a descriptor, which needs nothing
/// any more.
const READING: [Capability; 3] =
    [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH, Capability::CAP_CHECKPOINT_RESTORE];

/// Capabilities that are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept(HashSet<Capability>);

/// Why privileges could not be given up.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    /// The kernel refused.
    #[error("failed to give up {what}: {error}")]
    Refused {
        /// Which part.
        what: &'static str,
        /// What the kernel said.
        error: String,
    },
    /// A descriptor cannot be used with what is left.
    #[error("kernel maps cannot be used without the capabilities given up, not even with CAP_BPF: {0}")]
    Unusable(String),
    /// A thread holds more than it should.
    #[error("thread `{thread}` still holds more capabilities than {kept}: {line}")]
    Left {
        /// Its name.
        thread: String,
        /// What it may hold.
        kept: Kept,
        /// The line of its status that says more.
        line: String,
    },
    /// The threads could not be looked at.
    #[error("failed to read `/proc/self/task`: {0}")]
    Unreadable(#[from] io::Error),
}

/// Gives up, for this thread and those it starts, everything that capturing does not need. `use_map` tries an access
/// to a kernel map: before Linux 5.19, where unprivileged use of `bpf(2)` is switched off, every access demands
/// `CAP_BPF`, and it is kept exactly if this one does. `probes_by_event`: TLS libraries that are found later are probed
/// by performance events, which need `CAP_PERFMON` (before 6.6; links need nothing).
///
/// # Errors
/// When the kernel refuses, or the access fails in any case.
pub fn reduce<E: fmt::Display>(
    probes_by_event: bool,
    mut use_map: impl FnMut() -> Result<(), E>,
) -> Result<Kept, PrivilegeError> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(refused("nothing, reading them"))?;
    let mut kept = to_keep(&permitted);
    if probes_by_event && permitted.contains(&Capability::CAP_PERFMON) {
        kept.insert(Capability::CAP_PERFMON);
    }
    forbid_more(&kept)?;
    set_effective(&kept)?;
    if let Err(error) = use_map() {
        if !permitted.contains(&Capability::CAP_BPF) {
            return Err(PrivilegeError::Unusable(error.to_string()));
        }
        kept.insert(Capability::CAP_BPF);
        set_effective(&kept)?;
        use_map().map_err(|error| PrivilegeError::Unusable(error.to_string()))?;
    }
    caps::set(None, CapSet::Permitted, &kept).map_err(refused("permitted capabilities"))?;
    Ok(Kept(kept))
}

/// Gives up everything, for this thread and those it starts.
///
/// # Errors
/// When the kernel refuses.
pub fn give_up() -> Result<(), PrivilegeError> {
    forbid_more(&HashSet::new())?;
    set_effective(&HashSet::new())?;
    caps::clear(None, CapSet::Permitted).map_err(refused("permitted capabilities"))
}

/// Gives up everything but what access to kernel maps needs, where [`reduce`] has kept that: for the thread that reads
/// what others have sent.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_maps() -> Result<(), PrivilegeError> {
    let mut kept = caps::read(None, CapSet::Permitted).map_err(refused("nothing, reading them"))?;
    kept.retain(|capability| *capability == Capability::CAP_BPF);
    forbid_more(&kept)?;
    set_effective(&kept)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(refused("permitted capabilities"))
}

/// Looks at every thread of this process: none may hold more than `kept`, or get more. A thread that has just begun
/// gives up what it has before anything else, and has [`BEGINS`] for that: where nothing is loaded, all begin at once.
///
/// # Errors
/// When one does.
pub fn verify(kept: &Kept) -> Result<(), PrivilegeError> {
    until_none_is_left(BEGINS, || look(kept))
}

fn until_none_is_left(
    limit: Duration,
    mut look: impl FnMut() -> Result<(), PrivilegeError>,
) -> Result<(), PrivilegeError> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Err(PrivilegeError::Left { .. }) if Instant::now() < deadline => {
                std::thread::sleep(BETWEEN_LOOKS)
            }
            result => return result,
        }
    }
}

fn look(kept: &Kept) -> Result<(), PrivilegeError> {
    for task in std::fs::read_dir("/proc/self/task")? {
        // A thread that has ended meanwhile holds nothing.
        let Ok(status) = std::fs::read_to_string(task?.path().join("status")) else { continue };
        if let Some(line) = excess(&status, kept) {
            let thread = status.lines().next().and_then(|line| line.strip_prefix("Name:\t")).unwrap_or("?");
            return Err(PrivilegeError::Left {
                thread: thread.to_owned(),
                kept: kept.clone(),
                line: line.to_owned(),
            });
        }
    }
    Ok(())
}

/// Newer kernels let `CAP_PERFMON` read what `CAP_SYS_PTRACE` does of a process's environment: it is worth keeping
/// only in the other's place.
fn to_keep(permitted: &HashSet<Capability>) -> HashSet<Capability> {
    let [ptrace, search, _] = READING;
    let instead =
        (!permitted.contains(&ptrace) && permitted.contains(&search)).then_some(Capability::CAP_PERFMON);
    READING.into_iter().chain(instead).filter(|capability| permitted.contains(capability)).collect()
}

/// Closes the ways to more than `kept`. First of all, while `CAP_SETPCAP` is still effective.
fn forbid_more(kept: &HashSet<Capability>) -> Result<(), PrivilegeError> {
    rustix::thread::set_no_new_privs(true).map_err(refused("new privileges"))?;
    caps::clear(None, CapSet::Ambient).map_err(refused("ambient capabilities"))?;
    caps::clear(None, CapSet::Inheritable).map_err(refused("inheritable capabilities"))?;
    // Without it the set stays as it was given; no_new_privs closes the same way.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        let bounding = caps::read(None, CapSet::Bounding).map_err(refused("bounding capabilities"))?;
        for capability in bounding.difference(kept) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(refused("bounding capabilities"))?;
        }
    }
    Ok(())
}

fn set_effective(kept: &HashSet<Capability>) -> Result<(), PrivilegeError> {
    caps::set(None, CapSet::Effective, kept).map_err(refused("effective capabilities"))
}

fn refused<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> PrivilegeError {
    move |error| PrivilegeError::Refused { what, error: error.to_string() }
}

/// The line of `/proc/PID/status` that shows more than `kept`, or a way to it.
fn excess<'a>(status: &'a str, kept: &Kept) -> Option<&'a str> {
    let allowed = kept.0.iter().fold(0, |mask, capability| mask | capability.bitmask());
    status.lines().find(|line| match line.split_once(":\t") {
        Some(("CapPrm" | "CapEff" | "CapInh" | "CapAmb", mask)) => {
            u64::from_str_radix(mask, 16).map_or(true, |mask| mask & !allowed != 0)
        }
        Some(("NoNewPrivs", set)) => set != "1",
        _ => false,
    })
}

impl fmt::Display for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        names.sort();
        formatter.write_str(if names.is_empty() { "none" } else { "" })?;
        formatter.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_begins_has_time_and_one_that_stays_has_none() {
        let left = || PrivilegeError::Left {
            thread: "obi".to_owned(),
            kept: Kept(HashSet::new()),
            line: "CapPrm:\t1".to_owned(),
        };
        let check = |beginning: usize, limit: u64, expected: bool| {
            let mut looks = 0;
            let result = until_none_is_left(Duration::from_millis(limit), || {
                looks += 1;
                if looks <= beginning { Err(left()) } else { Ok(()) }
            });
            assert_eq!(result.is_ok(), expected, "{beginning} looks in {limit} ms: {result:?}");
        };
        check(0, 0, true);
        check(3, 10_000, true);
        check(1, 0, false);
        check(usize::MAX, 20, false);
    }

    #[test]
    fn what_is_kept_follows_from_what_is_held() {
        use Capability::{
            CAP_BPF, CAP_CHECKPOINT_RESTORE, CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE,
        };
        fn check(held: &[Capability], expected: &str) {
            let held = held.iter().copied().collect();
            assert_eq!(Kept(to_keep(&held)).to_string(), expected, "{held:?}");
        }
        check(&[], "none");
        check(&[CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN], "none");
        check(&[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE], "CAP_SYS_PTRACE");
        check(&[CAP_BPF, CAP_CHECKPOINT_RESTORE], "CAP_CHECKPOINT_RESTORE");
        check(&[CAP_PERFMON, CAP_DAC_READ_SEARCH], "CAP_DAC_READ_SEARCH, CAP_PERFMON");
        check(&[CAP_PERFMON, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE], "CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE");
    }

    #[test]
    fn excess_is_found() {
        fn check(status: &str, expected: Option<&str>) {
            let kept = Kept(HashSet::from([Capability::CAP_SYS_PTRACE]));
            assert_eq!(excess(status, &kept), expected, "{status:?}");
        }
        check("Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t0000000000080000\nNoNewPrivs:\t1\n", None);
        check("CapBnd:\tffffffffffffffff\n", None);
        check("CapPrm:\t0000000000080004\n", Some("CapPrm:\t0000000000080004"));
        check("CapEff:\t?\n", Some("CapEff:\t?"));
        check("NoNewPrivs:\t0\n", Some("NoNewPrivs:\t0"));
    }

    /// In threads of their own, since there is no way back.
    #[test]
    fn a_thread_gives_up_and_says_what_is_left() {
        fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
            std::thread::spawn(work).join().unwrap()
        }
        in_thread(|| {
            give_up().unwrap();
            for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable, CapSet::Ambient] {
                assert!(caps::read(None, set).unwrap().is_empty(), "{set:?}");
            }
            assert!(rustix::thread::no_new_privs().unwrap());
            give_up().unwrap();
        });
        in_thread(|| {
            keep_maps().unwrap();
            let permitted = caps::read(None, CapSet::Permitted).unwrap();
            assert!(permitted.iter().all(|capability| *capability == Capability::CAP_BPF), "{permitted:?}");
        });
        let kept = in_thread(|| reduce(false, || Ok::<_, io::Error>(())).unwrap());
        assert!(kept.0.iter().all(|capability| *capability != Capability::CAP_BPF));
        let error = in_thread(|| reduce(false, || Err(io::Error::other("broken"))).unwrap_err().to_string());
        assert!(error.contains("broken"), "{error}");
    }
}
