//! Identities that were asked for lately.
//!
//! In: a pid, the version of the table of processes, a way to read that. Out: the identity. Most exchanges are those of
//! few processes, and the table, which other threads write, costs a lock and six counted references each time. Refuses
//! to keep what the table may have changed.

use std::sync::Arc;

use super::Identity;

/// So many, by pid modulo this number: more than there are busy processes on most machines, so that two of them are
/// seldom at the same place.
const PLACES: usize = 256;

#[derive(Debug)]
pub(super) struct AtHand {
    places: Box<[Option<Asked>]>,
}

/// An identity, and the version of the table that it was read behind.
#[derive(Debug)]
struct Asked {
    tgid: u32,
    version: u64,
    identity: Arc<Identity>,
}

impl Default for AtHand {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| None).collect() }
    }
}

impl AtHand {
    /// The identity of this process; read if it is not at hand. `version` was taken before: what changes while an entry
    /// is read makes it another one.
    pub(super) fn get(
        &mut self,
        tgid: u32,
        version: u64,
        read: impl FnOnce() -> Option<Identity>,
    ) -> Option<&Arc<Identity>> {
        let place = &mut self.places[tgid as usize % PLACES];
        if !place.as_ref().is_some_and(|asked| asked.tgid == tgid && asked.version == version) {
            *place = Some(Asked { tgid, version, identity: Arc::new(read()?) });
        }
        place.as_ref().map(|asked| &asked.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(executable: &str) -> Option<Identity> {
        Some(Identity { executable: executable.into(), ..Identity::default() })
    }

    #[test]
    fn what_the_table_has_changed_is_read_again() {
        let mut at_hand = AtHand::default();
        let mut check = |tgid, version, read: Option<Identity>, expected: Option<&str>| {
            let found = at_hand.get(tgid, version, || read).map(|identity| &*identity.executable);
            assert_eq!(found, expected, "{tgid} at {version}");
        };
        check(1, 1, called("a"), Some("a"));
        check(1, 1, called("b"), Some("a"));
        check(1, 2, called("b"), Some("b"));
        // Not known, or not yet: asked for each time.
        check(2, 2, None, None);
        check(2, 2, called("c"), Some("c"));
        check(1, 2, called("d"), Some("b"));
        // In the place of another one.
        check(1 + PLACES as u32, 2, called("e"), Some("e"));
        check(1, 2, called("f"), Some("f"));
        // It was not there any more.
        check(1, 3, None, None);
    }
}
