//! Where the time of the thread went that has served a request.
//!
//! In: the kernel's record of it. Out: [`Times`]. Refuses to know whose thread it was, and whether that is believed.

use obi_ebpf::{WAIT_REASONS, times_event};

/// Why a thread waits that wants no CPU; by the numbers of the kernel side.
pub const WAIT_REASON_NAMES: [&str; WAIT_REASONS as usize] =
    ["other", "lock", "gil", "condition", "network", "poll", "disk", "file", "page_fault", "sleep", "child"];

/// From the read of the request's head to the last byte of the answer, ns: the parts are exactly that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// On a CPU.
    pub cpu: u64,
    /// Waiting for one.
    pub runqueue: u64,
    /// Waiting for something else, by reason, in the order of [`WAIT_REASON_NAMES`].
    pub blocked: [u64; WAIT_REASON_NAMES.len()],
    /// Times that the thread left a CPU.
    pub switches: u32,
}

impl Times {
    /// As the kernel reports it.
    #[must_use]
    pub fn of_event(event: &times_event) -> Self {
        let times_event { cpu, runqueue, blocked, switches, .. } = *event;
        Self { cpu, runqueue, blocked, switches }
    }

    /// All blocked time.
    #[must_use]
    pub fn blocked_sum(&self) -> u64 {
        self.blocked.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// All of it.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.cpu.saturating_add(self.runqueue).saturating_add(self.blocked_sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_the_kernel_counts() {
        let check = |number: u32, name: &str| assert_eq!(WAIT_REASON_NAMES[number as usize], name);
        check(obi_ebpf::WAIT_OTHER, "other");
        check(obi_ebpf::WAIT_LOCK, "lock");
        check(obi_ebpf::WAIT_GIL, "gil");
        check(obi_ebpf::WAIT_CONDITION, "condition");
        check(obi_ebpf::WAIT_NETWORK, "network");
        check(obi_ebpf::WAIT_POLL, "poll");
        check(obi_ebpf::WAIT_DISK, "disk");
        check(obi_ebpf::WAIT_FILE, "file");
        check(obi_ebpf::WAIT_PAGE_FAULT, "page_fault");
        check(obi_ebpf::WAIT_SLEEP, "sleep");
        check(obi_ebpf::WAIT_CHILD, "child");
    }

    #[test]
    fn wild_numbers_do_not_overflow() {
        let times = Times {
            cpu: u64::MAX,
            runqueue: 1,
            blocked: [u64::MAX; WAIT_REASON_NAMES.len()],
            ..Times::default()
        };
        assert_eq!(times.sum(), u64::MAX);
    }
}
