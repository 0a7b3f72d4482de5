//! Who has scraped before, and what they saw then: the memory behind zero points (see [`crate::red`]).
//!
//! In: a scraper's identity, the time, the cursor of what it is given now. Out: the cursor of the time before.
//! Refuses to know HTTP and metrics.
//!
//! A scraper that names itself by the `X-Prometheus-Scrape-Timeout-Seconds` header (Prometheus, vmagent, the
//! OpenTelemetry Collector and Alloy send it) first sees a new series as zero and sees its value from its next
//! scrape on. Any other client, and a scraper that comes for the first time, sees values at once. Known limits: two
//! scrapers that share address and user agent take turns in seeing the zero, and an answer that got lost on its way
//! counts as seen once it has been handed to the connection as a whole.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::export::Cursor;

/// Scrapers remembered; the least recently seen is replaced.
const MAX_SCRAPERS: usize = 16;

/// A scraper that was away longer is treated as new.
const MEMORY: Duration = Duration::from_secs(600);

/// No more of a user agent is compared.
const MAX_USER_AGENT_BYTES: usize = 256;

#[derive(Debug)]
struct Scraper {
    address: IpAddr,
    user_agent: String,
    seen_at: Instant,
    cursor: Cursor,
}

/// The scrapers of late.
#[derive(Debug, Default)]
pub struct Scrapers(Vec<Scraper>);

impl Scrapers {
    /// What a scraper was given before `now`.
    #[must_use]
    pub fn last_seen(&self, address: IpAddr, user_agent: &str, now: Instant) -> Option<Cursor> {
        let user_agent = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
        let held = self.0.iter().find(|held| held.address == address && held.user_agent == user_agent);
        held.filter(|held| now.saturating_duration_since(held.seen_at) <= MEMORY).map(|held| held.cursor)
    }

    /// Remembers what a scraper is given at `now`, and returns what it was given before.
    pub fn see(&mut self, address: IpAddr, user_agent: &str, now: Instant, cursor: Cursor) -> Option<Cursor> {
        let user_agent = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
        self.0.retain(|scraper| now.saturating_duration_since(scraper.seen_at) <= MEMORY);
        let known = self.0.iter_mut().find(|held| held.address == address && held.user_agent == user_agent);
        if let Some(scraper) = known {
            scraper.seen_at = now;
            return Some(std::mem::replace(&mut scraper.cursor, cursor));
        }
        if self.0.len() >= MAX_SCRAPERS {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, scraper)| scraper.seen_at);
            if let Some((index, _)) = oldest {
                self.0.swap_remove(index);
            }
        }
        self.0.push(Scraper { address, user_agent: user_agent.to_owned(), seen_at: now, cursor });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Metrics;
    use crate::red::{Limits, Registry};
    use crate::stats::Stats;

    /// Cursors in order, as successive snapshots give them.
    fn cursors(n: usize) -> Vec<Cursor> {
        let (mut registry, mut stats) = (Registry::new(Limits::default()), Stats::default());
        (0..n).map(|_| Metrics::take(&mut registry, &mut stats).cursor()).collect()
    }

    #[test]
    fn scrapers_are_reported_apart_by_address_and_agent() {
        let (mut scrapers, now, cursor) = (Scrapers::default(), Instant::now(), cursors(5));
        let mut check = |address: &str, agent: &str, given: usize, expected: Option<usize>| {
            let address = address.parse().expect("test addresses");
            let known = scrapers.last_seen(address, agent, now);
            let before = scrapers.see(address, agent, now, cursor[given]);
            assert_eq!(known, before, "looking changes nothing");
            assert_eq!(before, expected.map(|index| cursor[index]), "{address} {agent}");
        };
        check("10.0.0.1", "Prometheus/3.0", 0, None);
        check("10.0.0.2", "Prometheus/3.0", 1, None);
        check("10.0.0.1", "vmagent", 2, None);
        check("10.0.0.1", "Prometheus/3.0", 3, Some(0));
        check("10.0.0.1", "Prometheus/3.0", 4, Some(3));
        check("10.0.0.2", "Prometheus/3.0", 4, Some(1));
    }

    #[test]
    fn the_forgotten_are_new_again() {
        let (mut scrapers, now, cursor) = (Scrapers::default(), Instant::now(), cursors(2));
        let address = IpAddr::from([127, 0, 0, 1]);
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(scrapers.see(address, "a", at(0), cursor[0]), None);
        assert_eq!(scrapers.see(address, "a", at(600), cursor[1]), Some(cursor[0]));
        assert_eq!(scrapers.see(address, "a", at(1_201), cursor[1]), None);
    }

    #[test]
    fn the_least_recently_seen_is_replaced() {
        let (mut scrapers, now, cursor) = (Scrapers::default(), Instant::now(), cursors(2));
        let address = IpAddr::from([127, 0, 0, 1]);
        for n in 0..=MAX_SCRAPERS as u64 {
            let at = now + Duration::from_secs(n);
            assert_eq!(scrapers.see(address, &n.to_string(), at, cursor[0]), None);
        }
        assert_eq!(scrapers.0.len(), MAX_SCRAPERS);
        assert_eq!(scrapers.see(address, "1", now + Duration::from_secs(30), cursor[1]), Some(cursor[0]));
        assert_eq!(scrapers.see(address, "0", now + Duration::from_secs(31), cursor[1]), None);
    }
}
