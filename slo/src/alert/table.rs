//! The default alerts, for objectives without policies.
//!
//! In: the length of a period. Out: four arms of the SRE workbook's table (`windows.yaml`), fitted to it. Refuses to
//! warn of budget that lasts far beyond the period.

use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use super::arm::{Arm, Condition, Gate, Source};

/// The period of the table.
const PERIOD: Duration = Duration::from_secs(30 * 86_400);
/// From here on the windows stay and the factors change, as the workbook has it.
const LONG_PERIOD: Duration = Duration::from_secs(7 * 86_400);
/// Factors below this become 1.
const LEAST: f64 = 0.9;
/// Windows of shorter periods are multiples of this.
const STEP: u64 = 10;

/// A line of `windows.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    severity: String,
    budget_percent: f64,
    long_minutes: u64,
    short_minutes: u64,
}

static TABLE: LazyLock<Vec<Line>> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("windows.yaml")).expect("the table is checked by a test")
});

/// The default arms for a period.
///
/// The burn rate of an arm is the share of the budget times the period over the long window: 14.4, 6, 3 and 1 for
/// 30 days; 13.44, 5.6, 2.8 and 0.93 for 28. Factors below 0.9 become 1, since a budget that burns slower lasts. For
/// periods below a week the windows shrink with the period instead, and the factors are those of 30 days.
pub fn workbook(period: Duration) -> Vec<Arm> {
    TABLE.iter().map(|line| arm(line, period)).collect()
}

fn arm(line: &Line, period: Duration) -> Arm {
    let long = Duration::from_secs(line.long_minutes * 60);
    let short = Duration::from_secs(line.short_minutes * 60);
    let (long, short, reference) = if period >= LONG_PERIOD {
        (long, short, period)
    } else {
        (shrunk(long, period), shrunk(short, period), PERIOD)
    };
    let factor_window = Duration::from_secs(line.long_minutes * 60);
    let factor = line.budget_percent / 100.0 * reference.as_secs_f64() / factor_window.as_secs_f64();
    let factor = if factor < LEAST { 1.0 } else { factor };
    let condition = |window: Duration| Condition { window, threshold: factor, inclusive: false };
    Arm {
        severity: line.severity.clone(),
        policy: "default".to_owned(),
        source: Source::Table,
        conditions: vec![condition(long), condition(short)],
        after: Duration::ZERO,
        gate: Gate::default(),
        when_breaching: true,
        when_resolved: true,
        when_no_data: false,
        targets: Vec::new(),
        description: String::new(),
    }
}

/// The same share of a shorter period, in whole steps.
fn shrunk(window: Duration, period: Duration) -> Duration {
    let seconds = window.as_secs_f64() * period.as_secs_f64() / PERIOD.as_secs_f64();
    Duration::from_secs(((seconds / STEP as f64).round() as u64).max(1) * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_follow_the_period() {
        let check = |days: u64, expected: [f64; 4]| {
            let arms = workbook(Duration::from_secs(days * 86_400));
            let factors: Vec<f64> = arms.iter().map(|arm| arm.long().threshold).collect();
            for (factor, expected) in factors.iter().zip(expected) {
                assert!((factor - expected).abs() < 1e-3, "{days} d: {factors:?}");
            }
        };
        check(30, [14.4, 6.0, 3.0, 1.0]);
        check(28, [13.44, 5.6, 2.8, 0.9333]);
        check(90, [43.2, 18.0, 9.0, 3.0]);
        check(7, [3.36, 1.4, 1.0, 1.0]);
        check(1, [14.4, 6.0, 3.0, 1.0]);
    }

    #[test]
    fn windows_of_short_periods_shrink() {
        let windows = |hours: u64| -> Vec<(u64, u64)> {
            let arms = workbook(Duration::from_secs(hours * 3600));
            arms.iter().map(|arm| (arm.long().window.as_secs(), arm.short().window.as_secs())).collect()
        };
        assert_eq!(windows(24), [(120, 10), (720, 60), (2880, 240), (8640, 720)]);
        assert_eq!(windows(24 * 30), [(3600, 300), (21_600, 1800), (86_400, 7200), (259_200, 21_600)]);
    }
}
