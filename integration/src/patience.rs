//! How much longer than usual things may take here.
//!
//! In: a time limit that suits real hardware, and `OBI_TEST_SLOWNESS`: how many times slower this machine is (15 on an
//! emulated processor; unset: 1). Out: the limit to wait for. Only waiting is stretched: what a test asserts about
//! time itself stays.

use std::sync::LazyLock;
use std::time::Duration;

/// The variable's name.
pub const VARIABLE: &str = "OBI_TEST_SLOWNESS";

static FACTOR: LazyLock<u32> = LazyLock::new(|| match std::env::var(VARIABLE) {
    Ok(text) => factor(&text),
    Err(_) => 1,
});

/// `limit`, as long as it is here.
#[must_use]
pub fn stretched(limit: Duration) -> Duration {
    limit * *FACTOR
}

/// A wrong value must not pass for a fast machine.
fn factor(text: &str) -> u32 {
    match text.parse() {
        Ok(factor) if factor > 0 => factor,
        _ => panic!("{VARIABLE}={text} is not a whole number from 1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors() {
        let check = |text: &str, expected: u32| assert_eq!(factor(text), expected);
        check("1", 1);
        check("15", 15);
        for wrong in ["0", "-1", "", "fast", "1.5"] {
            assert!(std::panic::catch_unwind(|| factor(wrong)).is_err(), "{wrong:?} is taken");
        }
    }
}
