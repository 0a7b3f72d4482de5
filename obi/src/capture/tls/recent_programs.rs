//! Programs that were looked at lately and had no TLS library: of many short-lived processes one is looked at.
//!
//! In: which program, and when. Out: whether it is worth a look. Refuses to know what a look finds.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// After this time it is looked at again.
const STAYS: Duration = Duration::from_secs(60);
/// Programs that are remembered.
const MOST: usize = 4096;

/// A program as its processes show it without a look into them: the path of its file and its control group. Another
/// container has another control group; a file that was replaced is noticed when it is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Program(u64);

impl Program {
    /// Of the executable's path inside the process's root and the path of the control group.
    #[must_use]
    pub fn of(hasher: &impl BuildHasher, executable: &str, cgroup: &str) -> Self {
        Self(hasher.hash_one((executable, cgroup)))
    }
}

/// When each of them was looked at.
#[derive(Debug, Clone, Default)]
pub struct RecentPrograms(HashMap<Program, Instant>);

impl RecentPrograms {
    /// A look at a process of this program has found nothing. Returns whether that is news.
    pub fn note(&mut self, program: Program, now: Instant) -> bool {
        if self.contains(program, now) {
            return false;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, noted| now.duration_since(*noted) < STAYS);
        }
        if self.0.len() < MOST {
            self.0.insert(program, now);
        }
        true
    }

    /// A look at a process of this program has found something. Returns whether that is news.
    pub(super) fn forget(&mut self, program: Program) -> bool {
        self.0.remove(&program).is_some()
    }

    /// Whether nothing was found not long ago.
    #[must_use]
    pub fn contains(&self, program: Program, now: Instant) -> bool {
        self.0.get(&program).is_some_and(|noted| now.duration_since(*noted) < STAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_empty_is_familiar_for_a_while() {
        let (mut recent_programs, now) = (RecentPrograms::default(), Instant::now());
        let one = Program(1);
        assert!(!recent_programs.contains(one, now));
        assert!(recent_programs.note(one, now) && !recent_programs.note(one, now));
        assert!(
            recent_programs.contains(one, now + STAYS / 2) && !recent_programs.contains(one, now + STAYS)
        );
        assert!(recent_programs.forget(one) && !recent_programs.forget(one));
        assert!(!recent_programs.contains(one, now));
        for program in 0..2 * MOST as u64 {
            recent_programs.note(Program(program), now);
        }
        assert_eq!(recent_programs.0.len(), MOST);
        recent_programs.note(Program(u64::MAX), now + STAYS);
        assert_eq!(recent_programs.0.len(), 1);
    }

    #[test]
    fn programs_are_reported_apart() {
        let hasher = foldhash::quality::RandomState::default();
        let of = |executable, cgroup| Program::of(&hasher, executable, cgroup);
        assert_eq!(of("/bin/a", "/x"), of("/bin/a", "/x"));
        assert_ne!(of("/bin/a", "/x"), of("/bin/a", "/y"));
        assert_ne!(of("/bin/a", "/x"), of("/bin/a/x", ""));
    }
}
