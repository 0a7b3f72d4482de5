//! Runs that the kernel skipped, counted as lost where nothing else would tell.
//!
//! In: what the kernel knows of each program. Out: losses. A skipped run carries at most one message of one side, so the
//! count is an upper bound of exchanges. On TCP nothing is counted here, but for the last instances of programs under
//! preemption: the stream offsets of the next run show the gap, and the exchanges are counted as lost by the kernel side.

use std::collections::HashMap;

use crate::capture::program::Measured;
use crate::stats::{Loss, Stage, Stats};

/// Label `reason` of `obi_lost_total`.
const REASON: &str = "hook_missed";

/// Remembers the totals seen last.
#[derive(Debug, Default)]
pub(super) struct Misses {
    seen: HashMap<&'static str, u64>,
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
}
