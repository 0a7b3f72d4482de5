//! What stored counts are counts of, as numbers that stay the same over restarts and versions.
//!
//! In: accounts, texts. Out: numbers. Refuses to know where they are used.

use slo::Account;

/// FNV-1a, 64 bits: published, tiny, and the same everywhere.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The identity of an objective's counts: it changes with its name and with what it counts, so that counts of something
/// else are never taken for its own; not with its target, its alerts and its texts.
#[must_use]
pub fn of(account: &Account) -> u64 {
    hash(&format!("{} {}", account.fingerprint(), account.objective().name))
}

#[cfg(test)]
mod tests {
    use slo::{Engine, Time};

    use super::super::classify::tests::{objectives, slo};
    use super::*;

    #[test]
    fn it_changes_with_what_is_counted_and_with_nothing_else() {
        fn of(text: &str) -> u64 {
            let engine = Engine::new(objectives(&[text.to_owned()]), Time::from_seconds(1_700_000_000));
            super::of(engine.account(0).expect("there is one objective"))
        }
        let base = slo("a", "{service: shop}", "{outcome: good}");
        let same = |text: String| assert_eq!(of(&text), of(&base), "{text}");
        let other = |text: String| assert_ne!(of(&text), of(&base), "{text}");
        same(base.replace("target: 0.99", "target: 0.5"));
        same(base.replace("  service: shop\n", "  description: x\n  service: mall\n"));
        other(slo("b", "{service: shop}", "{outcome: good}"));
        other(slo("a", "{service: shop, route: '/x'}", "{outcome: good}"));
        other(slo("a", "{service: shop}", "{faster_than: 1s}"));
        other(slo("a", "{service: shop, bad_statuses: [429]}", "{outcome: good}"));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        let published = [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)];
        for (text, expected) in published {
            assert_eq!(hash(text), expected, "{text}");
        }
    }
}
