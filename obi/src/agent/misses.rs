//! Runs that the kernel skipped: counted as lost where nothing else shows it, warned of when they are many.
//!
//! In: what the kernel knows of each program. Out: losses, a warning. A skipped run carries at most one message of one
//! side, so the count is an upper bound of exchanges. On TCP nothing is counted here, but for the last instances of
//! programs under preemption: the stream offsets of the next run show the gap, and the exchanges are counted as lost by
//! the kernel side.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::capture::hook_set::HookSet;
use crate::capture::program::Measured;
use crate::stats::{Loss, Stage, Stats};

/// Label `reason` of `obi_lost_total`.
const REASON: &str = "hook_missed";
/// Over how long many are many.
const MINUTE: Duration = Duration::from_secs(60);
/// So many skipped runs within a minute are worth a line in the log: a few are the price of preemption, and on an
/// emulated kernel beside software that works maps all the time there were some 38,000.
const MANY: u64 = 100;
/// The next line comes after this many minutes.
const QUIET: u32 = 10;

/// Remembers the totals seen last.
#[derive(Debug, Default)]
pub(super) struct Misses {
    seen: HashMap<&'static str, u64>,
    /// When the minute began, and what had been skipped until then.
    minute: Option<(Instant, u64)>,
    warned: Option<Instant>,
}

impl Misses {
    /// Adds what is new.
    pub(super) fn read(&mut self, programs: &[Measured], stats: &mut Stats) {
        for program in programs.iter().filter(|program| program.silent) {
            let total = program.misses.unwrap_or(0);
            let seen = self.seen.insert(program.name, total).unwrap_or(0);
            let loss = Loss { stage: Stage::Kernel, reason: REASON, side: "", service_name: "" };
            stats.lose(loss, total.saturating_sub(seen));
        }
    }

    /// Warns when requests can be missing by it, and says what helps.
    pub(super) fn warn(&mut self, set: HookSet, programs: &[Measured]) {
        let missed = programs.iter().filter(|program| program.missed);
        let total = missed.filter_map(|program| program.misses).sum();
        let Some(n) = self.due(Instant::now(), total) else { return };
        let remedy = match set {
            HookSet::Kprobe => "; if other software here works BPF maps, `capture.hooks: syscall` loses less",
            _ => "",
        };
        tracing::warn!(
            n,
            "the kernel skipped programs of hook set {set} n times within a minute: requests can be missing \
             (obi_bpf_program_misses_total){remedy}"
        );
    }

    /// How many were skipped in a minute that is over, if that is worth a line; `total` counts them from the start.
    fn due(&mut self, now: Instant, total: u64) -> Option<u64> {
        let (begun, before) = *self.minute.get_or_insert((now, total));
        if now.saturating_duration_since(begun) < MINUTE {
            return None;
        }
        self.minute = Some((now, total));
        let n = total.saturating_sub(before);
        let is_quiet = self.warned.is_some_and(|at| now.saturating_duration_since(at) < MINUTE * QUIET);
        if n < MANY || is_quiet {
            return None;
        }
        self.warned = Some(now);
        Some(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::bpf::info::ProgramInfo;

    #[test]
    fn only_silent_misses_are_lost_and_each_once() {
        let program = |name, misses, silent| Measured {
            name,
            info: ProgramInfo::default(),
            misses,
            silent,
            missed: !silent,
            statistics: true,
        };
        let (mut misses, mut stats) = (Misses::default(), Stats::default());
        let mut check = |programs: &[Measured], expected: u64| {
            misses.read(programs, &mut stats);
            let lost = stats.snapshot().lost;
            assert!(lost.iter().all(|(loss, _)| loss.reason == "hook_missed"), "{lost:?}");
            assert_eq!(lost.iter().map(|(_, counter)| counter.value).sum::<u64>(), expected, "{programs:?}");
        };
        check(&[program("unix_stream_sendmsg", None, true)], 0);
        check(&[program("unix_stream_sendmsg", Some(2), true), program("tcp_sendmsg", Some(7), false)], 2);
        check(&[program("unix_stream_sendmsg", Some(2), true), program("tcp_sendmsg", Some(9), false)], 2);
        check(&[program("unix_stream_sendmsg", Some(5), true)], 5);
    }

    #[test]
    fn many_within_a_minute_are_reported_of_now_and_then() {
        let start = Instant::now();
        let mut misses = Misses::default();
        let mut check = |seconds, total, expected: Option<u64>| {
            assert_eq!(
                misses.due(start + Duration::from_secs(seconds), total),
                expected,
                "after {seconds} s"
            );
        };
        // What was there before the first look is no minute's.
        check(0, 5_000, None);
        check(59, 9_000, None);
        check(60, 9_000, Some(4_000));
        check(120, 20_000, None);
        check(600, 20_000, None);
        check(660, 20_099, None);
        check(720, 20_199, Some(100));
        check(1_400, 20_298, None);
    }
}
