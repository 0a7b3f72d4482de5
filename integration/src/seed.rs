//! Randomness that can be repeated.
//!
//! In: `OBI_TEST_SEED`, or chance. Out: a generator and unique request ids; the seed is always printed.
//! Refuses to know what is made from it.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A seeded generator for the test `name`. `OBI_TEST_SEED` (a decimal number) overrides chance, so that a failed
/// run can be repeated. The seed goes to stderr past the test harness's capture: it is shown after every run.
#[must_use]
pub fn seeded(name: &str) -> fastrand::Rng {
    let seed = std::env::var("OBI_TEST_SEED").ok().map_or_else(
        || fastrand::u64(..u64::from(u32::MAX)),
        |text| text.parse().expect("OBI_TEST_SEED must be a decimal number"),
    );
    note(&format!("{name}: OBI_TEST_SEED={seed}"));
    fastrand::Rng::with_seed(seed)
}

/// Writes one line to stderr past the test harness's capture.
pub fn note(line: &str) {
    // A closed stderr is no reason to fail a test.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A short text that no other test run on this machine uses: process id, a counter and the time.
#[must_use]
pub fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = crate::wire::monotonic_ns();
    format!(
        "{:x}{:02x}{:x}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed) & 0xff,
        now & 0xff_ffff
    )
}

/// A fresh request id: 32 hexadecimal digits. Unique by chance *and* by time, also when the seed is repeated.
#[must_use]
pub fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{:08x}{count:08x}", fastrand::u64(..), std::process::id())
}
