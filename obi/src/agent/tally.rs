//! What the kernel programs counted by themselves, added to the agent's statistics.
//!
//! In: the `tally` maps, running totals by process. Out: the differences since the last look.

use std::collections::HashMap;

use obi_ebpf::{
    SIDE_CLIENT, SIDE_SERVER, TALLY_LOST, TALLY_PROCESS_LOST, TALLY_READ_LATE, TALLY_RESTS,
    TALLY_THREAD_FULL, TALLY_TIMES_LOST, TALLY_UNCOVERED, TIMES_LATE, TIMES_NO_ACCOUNT, TIMES_RING_FULL,
    UNCOVERED_TLS, tally_key,
};

use super::span_pipeline::{SpanPipeline, side_name};
use crate::capture::program::{Maps, TallyKey};
use crate::protocol::Side;
use crate::protocol::loss::{kernel_reason, uncovered_reason};
use crate::stats::{Loss, Stage};

/// (tgid, kind, reason, side)
type Key = (u32, u8, u16, u8);

/// Remembers the totals seen last.
#[derive(Debug)]
pub(super) struct Tallies {
    seen: HashMap<Key, u64>,
    rest: [u64; TALLY_RESTS as usize],
    /// Processes that have ended since the last look: their entries go when they have been read.
    ended: Vec<u32>,
    /// Processes whose TLS connections are not read, and how many more.
    uncovered_tls: Vec<(u32, u64)>,
}

/// The label value of `obi_lost_times_total`.
fn times_reason(reason: u32) -> &'static str {
    match reason {
        TIMES_NO_ACCOUNT => "no_account",
        TIMES_LATE => "late",
        TIMES_RING_FULL => "ring_full",
        _ => "unknown",
    }
}

impl Default for Tallies {
    fn default() -> Self {
        Self {
            seen: HashMap::new(),
            rest: [0; TALLY_RESTS as usize],
            ended: Vec::new(),
            uncovered_tls: Vec::new(),
        }
    }
}

impl Tallies {
    pub(super) fn process_ended(&mut self, tgid: u32) {
        self.ended.push(tgid);
    }

    /// Watched processes whose TLS connections are not read, and how many more since the last call.
    pub(super) fn uncovered_tls(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.uncovered_tls)
    }

    /// Adds what is new.
    pub(super) fn read(&mut self, maps: &mut Maps, span_pipeline: &mut SpanPipeline) {
        let ended = std::mem::take(&mut self.ended);
        let entries: Vec<(TallyKey, u64)> = maps.tally.iter().filter_map(Result::ok).collect();
        for (TallyKey(key), total) in entries {
            let seen = self.seen.entry((key.tgid, key.kind, key.reason, key.side)).or_default();
            let new = total.saturating_sub(*seen);
            *seen = total;
            if new > 0 && count(span_pipeline, &key, new) && is_uncovered_tls(&key) {
                self.uncovered_tls.push((key.tgid, new));
            }
            if ended.contains(&key.tgid) && maps.tally.remove(&TallyKey(key)).is_ok() {
                self.seen.remove(&(key.tgid, key.kind, key.reason, key.side));
            }
        }
        let rest = maps.tally_rest.get(&0, 0).unwrap_or(self.rest);
        for ((index, total), seen) in (0u32..).zip(rest).zip(&mut self.rest) {
            let new = total.saturating_sub(*seen);
            *seen = total;
            if new > 0 {
                let key =
                    tally_key { kind: (index / 16) as u8, reason: (index % 16) as u16, ..Default::default() };
                let _ = count(span_pipeline, &key, new);
            }
        }
    }
}

fn is_uncovered_tls(key: &tally_key) -> bool {
    (u32::from(key.kind), u32::from(key.reason)) == (TALLY_UNCOVERED, UNCOVERED_TLS)
}

/// Whether it is of a watched process.
fn count(span_pipeline: &mut SpanPipeline, key: &tally_key, n: u64) -> bool {
    let reason = u32::from(key.reason);
    match u32::from(key.kind) {
        TALLY_LOST => {
            // No process: the entry of one for whom there was no room.
            let (service_name, watched) = match key.tgid {
                0 => (String::new(), true),
                tgid => {
                    let who = span_pipeline.processes.identity(tgid);
                    (who.service.name.clone(), who.is_watched)
                }
            };
            let side = match u32::from(key.side) {
                SIDE_SERVER => Some(Side::Server),
                SIDE_CLIENT => Some(Side::Client),
                _ => None,
            };
            if watched {
                let loss = Loss {
                    stage: Stage::Kernel,
                    reason: kernel_reason(reason),
                    side: side_name(side),
                    service_name: &service_name,
                };
                span_pipeline.stats.lose(loss, n);
            }
            watched
        }
        TALLY_UNCOVERED => {
            let watched = key.tgid == 0 || span_pipeline.processes.identity(key.tgid).is_watched;
            if watched {
                span_pipeline.stats.uncover(uncovered_reason(reason), n);
            }
            watched
        }
        TALLY_READ_LATE => {
            let watched = key.tgid == 0 || span_pipeline.processes.identity(key.tgid).is_watched;
            if watched {
                span_pipeline.stats.read_late(uncovered_reason(reason), n);
            }
            watched
        }
        // Made good: a process is compared with `/proc` when its first exchange comes, and now and then.
        TALLY_PROCESS_LOST => {
            span_pipeline.stats.lost_process_events += n;
            true
        }
        TALLY_TIMES_LOST => {
            span_pipeline.stats.lose_times(times_reason(reason), n);
            true
        }
        TALLY_THREAD_FULL => {
            tracing::warn!(n, "the table of threads is full: their current exchange is unknown");
            true
        }
        other => {
            tracing::warn!(kind = other, n, "unknown kind of kernel tally");
            false
        }
    }
}
