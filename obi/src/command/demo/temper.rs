//! The moods of a service: now and then it is slow, busy or broken.
//!
//! In: how often. Out: a delay that was waited for, and the status of a failure. Chances are arguments, so tests
//! can be certain.

use std::time::Duration;

use axum::http::StatusCode;

/// Chances between 0 and 1; together at most 1.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Temper {
    /// Answers well, but after 300 to 900 ms.
    pub(super) slow: f64,
    /// Answers 500.
    pub(super) broken: f64,
    /// Answers 503.
    pub(super) busy: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mood {
    delay: Duration,
    failure: Option<StatusCode>,
}

impl Temper {
    /// Waits as long as the work seems to take.
    ///
    /// # Errors
    /// The status to answer with, in a bad mood.
    pub(super) async fn work(&self) -> Result<(), StatusCode> {
        let mood = self.mood(fastrand::f64(), fastrand::f64());
        tokio::time::sleep(mood.delay).await;
        mood.failure.map_or(Ok(()), Err)
    }

    /// `dice` chooses the mood, `share` how much of its longest delay; both from 0 to 1.
    fn mood(&self, dice: f64, share: f64) -> Mood {
        let usual = Duration::from_millis(1) + Duration::from_millis(5).mul_f64(share);
        let slow = Duration::from_millis(300) + Duration::from_millis(600).mul_f64(share);
        if dice < self.slow {
            Mood { delay: slow, failure: None }
        } else if dice < self.slow + self.broken {
            Mood { delay: usual, failure: Some(StatusCode::INTERNAL_SERVER_ERROR) }
        } else if dice < self.slow + self.broken + self.busy {
            Mood { delay: usual, failure: Some(StatusCode::SERVICE_UNAVAILABLE) }
        } else {
            Mood { delay: usual, failure: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dice: f64, share: f64, expected: (u64, Option<u16>)) {
        let mood = Temper { slow: 0.1, broken: 0.2, busy: 0.3 }.mood(dice, share);
        let actual =
            (u64::try_from(mood.delay.as_millis()).unwrap(), mood.failure.map(|status| status.as_u16()));
        assert_eq!(actual, expected, "dice {dice}, share {share}");
    }

    #[test]
    fn dice_choose_the_mood() {
        check(0.00, 0.0, (300, None));
        check(0.09, 1.0, (900, None));
        check(0.11, 0.0, (1, Some(500)));
        check(0.29, 1.0, (6, Some(500)));
        check(0.31, 0.0, (1, Some(503)));
        check(0.59, 0.0, (1, Some(503)));
        check(0.61, 1.0, (6, None));
        check(1.00, 0.0, (1, None));
    }

    #[tokio::test]
    async fn a_calm_service_never_fails() {
        for _ in 0..20 {
            assert_eq!(Temper::default().work().await, Ok(()));
        }
    }
}
