//! Which routes are served by one thread from the first byte to the last; or, with "answered by its reader" read as
//! "over when the request was", which ones leave goroutines behind that call.
//!
//! In: for each request that was answered, its route and whether the thread that had read it has answered it. Out:
//! whether requests of that route have gone from hand to hand lately. Refuses to know what a route is called.

use super::recent::Recent;

/// Routes that are known at least; of more, those asked for last.
const ROUTES: usize = 4_096;
/// After so many requests in a row that were answered by their readers, a route counts as new again.
const FORGIVEN: u32 = 3_000;

/// What is known of routes, by the number that the caller has given them.
#[derive(Debug)]
pub(super) struct Synchronous {
    /// Requests in a row since the last that went from hand to hand. Routes of which none did are not here.
    since: Recent<u64, u32>,
}

impl Synchronous {
    pub(super) fn new() -> Self {
        Self { since: Recent::new(ROUTES) }
    }

    /// A request was answered.
    pub(super) fn answered(&mut self, route: u64, by_reader: bool) {
        if !by_reader {
            return self.since.put(route, 0);
        }
        let Some(since) = self.since.get(route) else { return };
        *since += 1;
        if *since > FORGIVEN {
            self.since.take(route);
        }
    }

    /// Some of its requests have gone from hand to hand.
    pub(super) fn is_asynchronous(&mut self, route: u64) -> bool {
        self.since.get(route).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_goes_from_hand_to_hand_is_enough_for_long() {
        let mut routes = Synchronous::new();
        routes.answered(1, true);
        assert!(!routes.is_asynchronous(1));
        routes.answered(1, false);
        (0..FORGIVEN).for_each(|_| routes.answered(1, true));
        assert!(routes.is_asynchronous(1) && !routes.is_asynchronous(2));
        routes.answered(1, true);
        assert!(!routes.is_asynchronous(1));
    }
}
