//! Calls of event loops, and the requests that go on with their answers.
//!
//! In: calls as they end. Out: for which request code runs that a call's answer has begun. Bounded: the last ones.
//! Refuses to know how a call's request is found.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Calls that are remembered: samples come within a fraction of a second.
const CALLS: usize = 4_096;

/// Numbers of requests by those of calls.
#[derive(Debug, Default)]
pub(super) struct Continued {
    requests: HashMap<u64, u64, RandomState>,
    order: VecDeque<u64>,
}

impl Continued {
    pub(super) fn put(&mut self, call: u64, request: u64) {
        if self.requests.insert(call, request).is_some() {
            return;
        }
        self.order.push_back(call);
        if self.order.len() > CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.requests.remove(&oldest);
        }
    }

    /// What this exchange is done for; itself, if that is not another one.
    pub(super) fn request_of(&self, exchange: u64) -> u64 {
        self.requests.get(&exchange).copied().unwrap_or(exchange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_known() {
        let mut continued = Continued::default();
        (0..2 * CALLS as u64).for_each(|call| continued.put(call, call + 1_000_000));
        continued.put(9_000_000, 5);
        continued.put(9_000_000, 6);
        let last = 2 * CALLS as u64 - 1;
        assert_eq!([0, last, 9_000_000].map(|it| continued.request_of(it)), [0, last + 1_000_000, 6]);
        assert_eq!(continued.order.len(), CALLS);
    }
}
