//! One series budget, shared fairly between services.
//!
//! In: services that ask for a series, and give series back. Out: yes or no, and who holds what. Refuses to know
//! labels.
//!
//! Four fifths of the budget are for ordinary series, one fifth for those of overflow. Of the ordinary ones a quarter
//! is *promised*: the first 32 services have 1/64 of it each, the next 64 have 1/256 each, the next 128 have 1/1024
//! each, and so on, so that the promises never add up to more than there is, whatever comes and in whatever order. The
//! other three quarters are *common*: a service may hold four times as many of them as are still free (the dynamic
//! threshold of Choudhury and Hahne, which keeps a switch's shared buffer from being taken by one port). One noisy
//! service alone gets four fifths of the common part, two get four ninths each, `n` get 4/(1+4n) each. A quiet one
//! finds its promised part untouched at any time. And while the common part is nearly full, series of a service that
//! holds more than an equal part expire sooner (see [`Budget::is_tight_for`]).

use std::sync::Arc;

use super::series::{LAST_RESORT_SERIES, OTHER};
use crate::counter::Counter;
use crate::span::Service;

/// A service may hold so many times the common series that are free.
const EAGERNESS: usize = 4;

/// Services that are promised the largest part.
const FIRST_TIER: usize = 32;

/// What was folded is remembered for so many label sets per service.
const EXAMPLES: usize = 5;

/// One of so many folded spans is looked at, until there are enough examples, and at most so many times: a look
/// makes a text.
const EXAMPLE_EVERY: u64 = 64;

/// What one service holds and what it was refused.
#[derive(Debug, Clone, Default)]
pub struct Share {
    /// The service.
    pub service: Arc<Service>,
    /// Ordinary series that it holds.
    pub series: usize,
    /// Overflow series that it holds.
    pub overflow_series: usize,
    /// Ordinary series that no other service can take from it.
    pub promised: usize,
    /// Spans that were counted in overflow instead of in a series of their own; a span is folded by each metric apart.
    pub folded: Counter,
    /// Series that expired.
    pub expired: u64,
    /// Some of the label sets that were folded first, as text.
    pub examples: Vec<String>,
    /// Order of arrival among services that hold something; names the tier of the promise.
    rank: Option<usize>,
}

impl Share {
    fn common(&self) -> usize {
        self.series.saturating_sub(self.promised)
    }

    /// Notes that a span was folded.
    pub(super) fn fold(&mut self, born: u64, example: impl FnOnce() -> String) {
        self.folded.add(1, born);
        let nth = self.folded.value;
        let wanted = self.examples.len() < EXAMPLES && nth <= EXAMPLE_EVERY * EXAMPLE_EVERY;
        if wanted && nth % EXAMPLE_EVERY == 1 {
            let example = example();
            if !self.examples.contains(&example) {
                self.examples.push(example);
            }
        }
    }
}

/// The budget and its state at one moment.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// All series that may be.
    pub limit: usize,
    /// Those for ordinary series; the rest is for overflow.
    pub ordinary_limit: usize,
    /// Who holds what.
    pub shares: Vec<Share>,
}

/// Who may have how much.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    services: usize,
    /// Indexed by `Service::id`.
    shares: Vec<Option<Share>>,
    other: Share,
    /// Ranks in use.
    ranks: Vec<bool>,
    /// Common series held by all.
    common_used: usize,
    overflow_used: usize,
}

impl Budget {
    pub(super) fn new(limit: usize, services: usize) -> Self {
        let service = Arc::new(Service { name: OTHER.to_owned(), id: u32::MAX, ..Service::default() });
        Self {
            limit,
            services,
            shares: Vec::new(),
            other: Share { service, ..Share::default() },
            ranks: Vec::new(),
            common_used: 0,
            overflow_used: 0,
        }
    }

    /// The service that stands for those beyond all bounds.
    pub(super) fn last_resort(&self) -> &Arc<Service> {
        &self.other.service
    }

    fn ordinary_limit(&self) -> usize {
        self.limit / 5 * 4
    }

    fn promised_limit(&self) -> usize {
        self.ordinary_limit() / 4
    }

    fn common_limit(&self) -> usize {
        self.ordinary_limit() - self.promised_limit()
    }

    /// Takes an ordinary series for a service. `false` when it has to go to overflow.
    pub(super) fn take(&mut self, service: &Arc<Service>) -> bool {
        let free = self.common_limit().saturating_sub(self.common_used);
        let share = self.share(service);
        let common = share.common();
        if share.series >= share.promised {
            if common >= free.saturating_mul(EAGERNESS) || free == 0 {
                return false;
            }
            share.series += 1;
            self.common_used += 1;
        } else {
            share.series += 1;
        }
        true
    }

    /// Takes an overflow series for a service. `false` when it has to go to the last-resort service, for which
    /// there is always room.
    pub(super) fn take_overflow(&mut self, service: &Arc<Service>) -> bool {
        let is_last_resort = service.id == self.other.service.id;
        if !is_last_resort && self.overflow_used >= self.limit / 5 - LAST_RESORT_SERIES {
            return false;
        }
        self.overflow_used += usize::from(!is_last_resort);
        self.share(service).overflow_series += 1;
        true
    }

    /// A series has expired.
    pub(super) fn give_back(&mut self, service: &Arc<Service>, overflow: bool) {
        let is_last_resort = service.id == self.other.service.id;
        let share = self.share(service);
        share.expired += 1;
        if overflow {
            share.overflow_series = share.overflow_series.saturating_sub(1);
            self.overflow_used = self.overflow_used.saturating_sub(usize::from(!is_last_resort));
        } else {
            let was_common = share.common() > 0;
            share.series = share.series.saturating_sub(1);
            self.common_used = self.common_used.saturating_sub(usize::from(was_common));
        }
        self.release_rank(service);
    }

    /// Whether the common part is nearly full and the service holds more than an equal part of all.
    pub(super) fn is_tight_for(&self, service: &Service) -> bool {
        let holders = self.ranks.iter().filter(|used| **used).count().max(1);
        let held = self.peek(service).map_or(0, |share| share.series);
        self.common_used * 10 >= self.common_limit() * 7 && held > self.ordinary_limit() / holders
    }

    /// The share of a service, which begins with nothing.
    pub(super) fn share(&mut self, service: &Arc<Service>) -> &mut Share {
        let Some(id) = usize::try_from(service.id).ok().filter(|id| *id < self.services) else {
            return &mut self.other;
        };
        if self.shares.len() <= id {
            self.shares.resize_with(id + 1, || None);
        }
        let promised_limit = self.promised_limit();
        let share =
            self.shares[id].get_or_insert_with(|| Share { service: Arc::clone(service), ..Share::default() });
        if share.rank.is_none() {
            let rank = self.ranks.iter().position(|used| !used).unwrap_or(self.ranks.len());
            match self.ranks.get_mut(rank) {
                Some(used) => *used = true,
                None => self.ranks.push(true),
            }
            share.rank = Some(rank);
            share.promised = promise(promised_limit, rank);
        }
        share
    }

    pub(super) fn usage(&self) -> Usage {
        let is_used = |share: &&Share| share.series + share.overflow_series > 0 || share.folded.value > 0;
        let shares = self.shares.iter().flatten().chain([&self.other]).filter(is_used).cloned();
        Usage { limit: self.limit, ordinary_limit: self.ordinary_limit(), shares: shares.collect() }
    }

    fn peek(&self, service: &Service) -> Option<&Share> {
        let id = usize::try_from(service.id).ok().filter(|id| *id < self.services);
        id.map_or(Some(&self.other), |id| self.shares.get(id)?.as_ref())
    }

    /// A service that holds nothing any more makes room for the promise to another.
    fn release_rank(&mut self, service: &Service) {
        let id = usize::try_from(service.id).unwrap_or(usize::MAX);
        let Some(share) = self.shares.get_mut(id).and_then(Option::as_mut) else { return };
        if share.series == 0
            && let Some(used) = share.rank.take().and_then(|rank| self.ranks.get_mut(rank))
        {
            share.promised = 0;
            *used = false;
        }
    }
}

/// What the service of this rank is promised out of `limit`.
fn promise(limit: usize, rank: usize) -> usize {
    let (mut tier, mut end, mut divisor) = (FIRST_TIER, FIRST_TIER, 2 * FIRST_TIER);
    while rank >= end {
        tier *= 2;
        end += tier;
        divisor = divisor.saturating_mul(4);
    }
    limit / divisor
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::service;
    use super::*;

    const LIMIT: usize = 10_000;

    fn fill(budget: &mut Budget, id: u32, wanted: usize) -> usize {
        let service = service(id);
        (0..wanted).filter(|_| budget.take(&service)).count()
    }

    #[test]
    fn promises_never_add_up_to_more_than_there_is() {
        for limit in [0, 48, 2_000, 1_000_000] {
            assert!((0..10_000).map(|rank| promise(limit, rank)).sum::<usize>() <= limit, "{limit}");
        }
        assert_eq!([0, 31, 32, 95, 96].map(|rank| promise(2_000, rank)), [31, 31, 7, 7, 1]);
    }

    #[test]
    fn the_noisy_share_what_the_quiet_do_not_need() {
        fn check(wanted: &[usize], expected: &[usize]) {
            let mut budget = Budget::new(LIMIT, 1_000);
            let mut got = vec![0; wanted.len()];
            // In turns, as services run side by side.
            for _ in 0..*wanted.iter().max().unwrap_or(&0) {
                for (id, wanted) in (0..).zip(wanted) {
                    got[id as usize] += usize::from(got[id as usize] < *wanted && budget.take(&service(id)));
                }
            }
            assert_eq!(got, expected, "{wanted:?}");
        }
        check(&[8_000], &[4_831]);
        check(&[3_000], &[3_000]);
        check(&[8_000, 8_000], &[2_698, 2_698]);
        check(&[8_000, 10, 8_000, 500], &[2_490, 10, 2_489, 500]);
    }

    #[test]
    fn a_late_and_quiet_service_finds_room_after_any_noise() {
        let mut budget = Budget::new(LIMIT, 1_000);
        for id in 0..30 {
            fill(&mut budget, id, LIMIT);
        }
        assert!(fill(&mut budget, 31, 30) == 30);
        assert!(fill(&mut budget, 32, 30) == 30);
        assert!(fill(&mut budget, 33, 7) == 7, "the second tier is promised less");
    }

    #[test]
    fn what_expires_can_be_had_again() {
        let mut budget = Budget::new(LIMIT, 1_000);
        let first = fill(&mut budget, 0, LIMIT);
        assert!(!budget.is_tight_for(&service(0)), "alone it takes nothing from others");
        fill(&mut budget, 1, 10);
        assert!(budget.is_tight_for(&service(0)));
        assert!(!budget.is_tight_for(&service(1)), "it holds less than an equal part");
        (0..first).for_each(|_| budget.give_back(&service(0), false));
        assert!(!budget.is_tight_for(&service(0)));
        assert_eq!(fill(&mut budget, 2, LIMIT), first);
        let usage = budget.usage();
        let expired: Vec<_> = usage.shares.iter().map(|share| (share.series, share.expired)).collect();
        assert_eq!(expired, [(10, 0), (first, 0)]);
    }

    proptest! {
        #[test]
        fn the_limit_holds_in_any_order(
            limit in 5 * LAST_RESORT_SERIES..3_000,
            steps in prop::collection::vec((0..60_u32, 0..4_u8, 1..200_usize), 0..200),
        ) {
            let mut budget = Budget::new(limit, 50);
            for (id, action, times) in steps {
                let service = service(id);
                for _ in 0..times {
                    match action {
                        0 => budget.give_back_one(&service),
                        1 => drop(budget.take_overflow(&service)),
                        _ => drop(budget.take(&service)),
                    }
                }
                let usage = budget.usage();
                let ordinary: usize = usage.shares.iter().map(|share| share.series).sum();
                let overflow: usize = usage.shares.iter().map(|share| share.overflow_series).sum();
                prop_assert!(ordinary <= usage.ordinary_limit, "{ordinary} of {}", usage.ordinary_limit);
                prop_assert!(overflow <= limit / 5, "{overflow}");
            }
        }
    }

    impl Budget {
        fn give_back_one(&mut self, service: &Arc<Service>) {
            if self.peek(service).is_some_and(|share| share.series > 0) {
                self.give_back(service, false);
            }
        }
    }
}
