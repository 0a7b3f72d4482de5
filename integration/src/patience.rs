//! How much longer everything may take on a slow machine.
//!
//! In: `OBI_TEST_SLOWNESS`, a whole number, 1 when absent. Out: time limits. An emulated kernel is 10 to 30 times
//! slower than this machine; limits that are waited for pass through here, and nowhere else. Refuses to know what is
//! waited for.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// `limit` of a machine of ordinary speed, for this one.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    limit.saturating_mul(slowness())
}

/// Looks until there is something.
///
/// # Panics
/// When there is nothing within `limit` of an ordinary machine: with `what` and with what the last look found instead.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(state) if begun.elapsed() > patience(limit) => {
                panic!("{what}: not within {limit:?}: {state}")
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
}

/// How many times slower than an ordinary machine this one is, at least 1.
///
/// # Panics
/// When `OBI_TEST_SLOWNESS` is no whole number from 1 to 1000.
#[must_use]
pub fn slowness() -> u32 {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    *SLOWNESS.get_or_init(|| {
        std::env::var("OBI_TEST_SLOWNESS").map_or(1, |text| {
            let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
            number.unwrap_or_else(|| panic!("OBI_TEST_SLOWNESS is `{text}`, expected 1 to 1000"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_slowness() {
        let second = Duration::from_secs(1);
        assert_eq!(patience(second), second * slowness());
        assert_eq!(patience(Duration::MAX), Duration::MAX);
    }
}
