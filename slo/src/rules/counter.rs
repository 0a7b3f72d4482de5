//! What counters have gained in one evaluation step, exactly.
//!
//! In: a selector of counters. Out: PromQL whose value is an integer. Refuses `rate` and `increase`: they extrapolate
//! to the edges of the window, and know neither the birth of a series nor a restart that ends above the old value.
//!
//! For every series the last sample of this step is compared with the last one before. Steps follow each other without
//! a hole, so the sum over any window telescopes: every sample is compared with exactly one before it.
//!
//! | what happened | counted |
//! |---|---|
//! | same process, more | the difference |
//! | restarted | all of the new process, and of the old one what its samples show |
//! | first seen, target scraped before or its process young | all of it: born here |
//! | first seen, process older than [`GAP`] | what came after its first sample: the rest was there unobserved |
//! | no sample for longer than [`GAP`] | nothing: a gap is not a burst |
//! | ended | what its last sample shows |

use std::time::Duration;

use super::file::short;

/// When counters are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between evaluations, and what one counts. Windows are rounded up to it.
    pub step: Duration,
    /// How far behind the present. A sample has its time when its scrape begins, but is there when it ends, or when a
    /// remote write has arrived.
    pub settle: Duration,
}

/// Half a minute, and behind by what Prometheus gives a scrape by default.
impl Default for Timing {
    fn default() -> Self {
        Self { step: Duration::from_secs(30), settle: Duration::from_secs(10) }
    }
}

/// The longest time between two samples of a series that is no gap.
pub const GAP: Duration = Duration::from_mins(10);
/// The longest time between scrapes with which every step sees every series.
const SCRAPE: Duration = Duration::from_mins(1);
/// Started at different times by less: the same process.
const SAME_START: &str = "1";

/// Starts of processes; every target of Prometheus that follows its conventions has this.
const STARTS: &str = "process_start_time_seconds";

/// What the counters of `selector` have gained in this step, summed `by` some labels.
pub(super) fn gained(selector: &str, by: &str, timing: Timing) -> String {
    let Timing { step, settle } = timing;
    let before = settle + step;
    let seen = before + GAP;
    let now = last(selector, SCRAPE, settle);
    let [least, most] = ["min", "max"]
        .map(|which| format!("{which}_over_time({selector}[{}] offset {})", short(SCRAPE), short(settle)));
    let old = last(selector, GAP, before);
    let start = last(STARTS, SCRAPE, settle);
    let old_start = last(STARTS, GAP, before);
    let seen = seen.as_secs();
    let sum = if by.is_empty() { "sum".to_owned() } else { format!("sum by ({by})") };
    format!(
        "{sum} (\n  \
           ({now} - {old} >= 0)\n    \
             unless on (job, instance) ({start} - {old_start} > {SAME_START})\n  \
           or\n  \
           ({now} + ({most} > {now}) - {old} or {now})\n    \
             and on (job, instance) ({old_start} or {start} >= time() - {seen})\n  \
           or\n  \
           ({now} < {old})\n  \
           or\n  \
           ({now} - {least})\n\
         )"
    )
}

fn last(selector: &str, range: Duration, offset: Duration) -> String {
    format!("last_over_time({selector}[{}] offset {})", short(range), short(offset))
}
