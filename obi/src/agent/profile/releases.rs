//! Waits and who has ended them; how many waits are sampled.
//!
//! In: records of waits, and of threads that have ended one, which come before. Out: a [`Wait`] that knows its
//! releaser's sample; a threshold that keeps walks along stacks few. Refuses to know stacks.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::stack_event;

use crate::capture::program::profile::{Profiler, THRESHOLD};
use crate::profile::store::Wait;
use crate::profile::waits::is_for_thread;

/// A thread that has been woken has a CPU so soon, ns; what is older is of another wait.
const WITHIN: u64 = 10_000_000_000;
/// Releases that wait for their waits at most; beyond, none is added.
const MOST: usize = 4_096;
/// Walks a second and CPU that are aimed at.
const WALKS: u64 = 100;
/// Thresholds, ns: the first is the smallest, the last the largest. They are powers of two of milliseconds, so that a
/// value that is one belongs to a wait that was drawn, not measured.
const THRESHOLDS: [u64; 2] = [THRESHOLD / 8, THRESHOLD << 8];

/// Releases whose waits have not come yet.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// By the thread that has waited.
    waiting: HashMap<u32, Release, RandomState>,
    /// Those whose wait never came.
    pub(super) unmatched: u64,
}

#[derive(Debug, Clone, Copy)]
struct Release {
    /// Of its sample.
    number: u64,
    time: u64,
    value: u64,
    tgid: u32,
}

impl Releases {
    /// A thread has ended the wait of another one; the sample of it has this number.
    pub(super) fn add(&mut self, event: &stack_event, number: u64) {
        let Ok(waiter) = u32::try_from(event.object) else { return };
        let header = &event.header;
        let release = Release { number, time: header.time, value: event.value, tgid: header.tgid };
        let known = self.waiting.contains_key(&waiter);
        if self.waiting.len() >= MOST && !known {
            self.unmatched += 1;
            return;
        }
        self.unmatched += u64::from(self.waiting.insert(waiter, release).is_some());
    }

    /// What a thread has waited for. One draw decides about a wait and its release: they have the same value.
    pub(super) fn wait_of(&mut self, event: &stack_event) -> Wait {
        let (header, reason) = (&event.header, event.header.flags);
        let known = is_for_thread(reason).then(|| self.waiting.remove(&header.tid)).flatten();
        let is_its = |release: &Release| {
            (release.value, release.tgid) == (event.value, header.tgid)
                && header.time.checked_sub(release.time).is_some_and(|passed| passed < WITHIN)
        };
        let release = known.filter(is_its);
        self.unmatched += u64::from(known.is_some() && release.is_none());
        Wait { reason, object: event.object, release: release.map(|release| release.number) }
    }

    /// To be called now and then.
    pub(super) fn forget(&mut self, now: u64) {
        let before = self.waiting.len();
        self.waiting.retain(|_, release| now.saturating_sub(release.time) < WITHIN);
        self.unmatched += (before - self.waiting.len()) as u64;
    }
}

/// Sets the threshold of waits after a second of so many walks.
pub(super) fn adapt(profiler: &mut Profiler, walked: u64) {
    let n_cpus = profiler.n_cpus() as u64;
    let Ok(waits) = &mut profiler.waits else { return };
    let wanted = next(waits.threshold(), walked, WALKS * n_cpus.max(1));
    if wanted != waits.threshold()
        && let Err(error) = waits.set_threshold(wanted)
    {
        tracing::debug!(%error, "the threshold of waits stays as it is");
    }
}

/// Twice as much where there were too many walks, half where twice as many are no harm.
fn next(threshold: u64, walked: u64, most: u64) -> u64 {
    let next = match walked {
        walked if walked > most => threshold * 2,
        walked if walked < most / 4 => threshold / 2,
        _ => threshold,
    };
    next.clamp(THRESHOLDS[0], THRESHOLDS[1])
}

#[cfg(test)]
mod tests {
    use obi_ebpf::{WAIT_LOCK, WAIT_SLEEP, event_header};

    use super::*;

    fn event(tid: u32, time: u64, value: u64, object: u64) -> stack_event {
        let header = event_header { tgid: 7, tid, time, flags: WAIT_LOCK, ..event_header::default() };
        stack_event { header, value, object, ..stack_event::default() }
    }

    #[test]
    fn a_wait_finds_who_has_ended_it() {
        let mut releases = Releases::default();
        releases.add(&event(2, 100, 50, 1), 11);
        assert_eq!(releases.wait_of(&event(3, 110, 50, 0xf00)).release, None);
        let wait = releases.wait_of(&event(1, 110, 50, 0xf00));
        assert_eq!(wait, Wait { reason: WAIT_LOCK, object: 0xf00, release: Some(11) });
        assert_eq!(releases.wait_of(&event(1, 120, 50, 0xf00)).release, None);
        assert_eq!(releases.unmatched, 0);
    }

    #[test]
    fn of_another_wait_none_is_taken() {
        let check = |wait: stack_event| {
            let mut releases = Releases::default();
            releases.add(&event(2, 100, 50, 1), 11);
            assert_eq!(releases.wait_of(&wait).release, None);
            releases.forget(u64::MAX);
            assert_eq!(releases.unmatched, 1);
        };
        check(event(1, 110, 51, 0));
        check(event(1, 99, 50, 0));
        check(event(1, 100 + WITHIN, 50, 0));
        let sleep = event(1, 110, 50, 0);
        check(stack_event { header: event_header { flags: WAIT_SLEEP, ..sleep.header }, ..sleep });
    }

    #[test]
    fn what_nobody_asks_for_is_bounded() {
        let mut releases = Releases::default();
        (0..2 * MOST as u64).for_each(|waiter| releases.add(&event(2, 100, 50, waiter), waiter));
        assert_eq!((releases.waiting.len(), releases.unmatched), (MOST, MOST as u64));
    }

    #[test]
    fn thresholds_follow_the_number_of_walks() {
        let check = |threshold, walked, expected| assert_eq!(next(threshold, walked, 200), expected);
        check(8_000_000, 201, 16_000_000);
        check(8_000_000, 200, 8_000_000);
        check(8_000_000, 50, 8_000_000);
        check(8_000_000, 49, 4_000_000);
        check(1_000_000, 0, 1_000_000);
        check(2_048_000_000, u64::MAX, 2_048_000_000);
    }
}
