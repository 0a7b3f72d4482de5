//! How property tests of the kernel side are run.
//!
//! In: how many cases, `PROPTEST_CASES`. Out: the configuration. Refuses to know what is tested.

use proptest::prelude::ProptestConfig;

/// So many random cases, or as many as `PROPTEST_CASES` says; nothing is left in the source tree.
pub(crate) fn cases(n: u32) -> ProptestConfig {
    let n = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(n);
    ProptestConfig { failure_persistence: None, max_shrink_iters: 5000, ..ProptestConfig::with_cases(n) }
}
