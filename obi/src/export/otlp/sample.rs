//! Which spans leave: head sampling that knows the end, because we see spans when they are over.
//!
//! In: a [`Span`]. Out: [`Kept`], or nothing. Metrics are never sampled. Refuses to know destinations.
//!
//! By ratio, a span is kept when the random part of its trace id is at or above a threshold, so that all agents that
//! sample with the same ratio keep the same traces (OpenTelemetry's consistent probability sampling). With
//! `parent_based`, the caller's decision is followed instead where there is one.
//!
//! Errors, and a span that is slower than all others of its route in this minute, are kept in any case. These go out
//! with `th:0` (kept with certainty), the others with the ratio's threshold, so that a receiver that extrapolates from
//! spans counts each kind right.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::cause::context::FLAG_SAMPLED;
use crate::config::export::Sampling;
use crate::span::{Span, Status};

/// Thresholds and the randomness of trace ids have 56 bits.
const RANDOM_BITS: u32 = 56;
const RANDOM_MASK: u64 = (1 << RANDOM_BITS) - 1;
/// How long a slowest span counts as such, ns of its end.
const WINDOW: u64 = 60_000_000_000;
/// Routes of all services whose slowest span is remembered; further ones share.
const ROUTES: usize = 16_384;

/// Why a span is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Everything is, or the caller decided: its `tracestate` is passed on as it came.
    AsReceived,
    /// With a known probability: rejected are the traces whose randomness is below the threshold.
    Threshold(u64),
}

/// An error, or the slowest of its route: certain to be kept.
const CERTAIN: Kept = Kept::Threshold(0);

/// Decides about spans; remembers the slowest of each route.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    threshold: u64,
    slowest: HashMap<u64, Slowest>,
    hasher: RandomState,
    /// When old entries were last thrown out: once per window, or a table full of young ones would cost every span.
    swept: u64,
    /// Spans that were not kept.
    dropped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Slowest {
    window: u64,
    duration: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new(Sampling::default())
    }
}

impl Sampler {
    /// A sampler that has seen nothing.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            threshold: threshold(sampling.ratio),
            slowest: HashMap::new(),
            hasher: RandomState::default(),
            swept: 0,
            dropped: 0,
        }
    }

    /// Samples otherwise from now on; what was seen and counted stays.
    #[must_use]
    pub fn with(self, sampling: Sampling) -> Self {
        Self { sampling, threshold: threshold(sampling.ratio), ..self }
    }

    /// The settings that it samples by.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Whether a span leaves, and what its `tracestate` then says.
    pub fn decide(&mut self, span: &Span) -> Option<Kept> {
        if self.sampling.ratio >= 1.0 && !self.sampling.parent_based {
            return Some(Kept::AsReceived);
        }
        // Looked at for every span: what another has outlasted is not the slowest, whichever rule kept that one.
        let certain = self.is_slowest(span) || span.status() == Status::Error;
        let kept = match self.by_head(span) {
            // What is kept with certainty says so also when the dice would have kept it.
            None | Some(Kept::Threshold(_)) if certain => Some(CERTAIN),
            by_head => by_head,
        };
        self.dropped += u64::from(kept.is_none());
        kept
    }

    /// Spans that were not kept so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn by_head(&self, span: &Span) -> Option<Kept> {
        if self.sampling.parent_based && span.parent_span_id.is_some() {
            return (span.trace_flags & FLAG_SAMPLED != 0).then_some(Kept::AsReceived);
        }
        if self.sampling.ratio >= 1.0 {
            return Some(Kept::AsReceived);
        }
        (randomness(span) >= self.threshold).then_some(Kept::Threshold(self.threshold))
    }

    /// Whether the span is slower than all of its route that ended in this minute before.
    fn is_slowest(&mut self, span: &Span) -> bool {
        let mut key = self.hasher.hash_one((span.service.id, span.kind, span.detail.operation()));
        let window = span.end / WINDOW;
        if self.slowest.len() >= ROUTES && !self.slowest.contains_key(&key) {
            if self.swept != window {
                self.swept = window;
                self.slowest.retain(|_, slowest| slowest.window >= window);
            }
            if self.slowest.len() >= ROUTES {
                key = 0;
            }
        }
        let duration = span.end.saturating_sub(span.start);
        let slowest = self.slowest.entry(key).or_insert(Slowest { window: 0, duration: 0 });
        let is_slowest = window > slowest.window || duration > slowest.duration;
        if is_slowest {
            *slowest = Slowest { window: window.max(slowest.window), duration };
        }
        is_slowest
    }
}

/// Traces with a randomness below this are rejected.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "between 0 and 2^56, which a double holds to the last bit but four"
)]
fn threshold(ratio: f64) -> u64 {
    // A ratio of 0 rejects everything: one above the largest randomness.
    ((1.0 - ratio) * (1_u64 << RANDOM_BITS) as f64) as u64
}

/// The trace's randomness: `rv` of OpenTelemetry's `tracestate` member, else the last 56 bits of the trace id.
fn randomness(span: &Span) -> u64 {
    let explicit = ot_member(&span.trace_state).and_then(|(_, value, _)| {
        let rv = value.split(';').find_map(|field| field.strip_prefix("rv:"))?;
        (rv.len() == 14).then(|| u64::from_str_radix(rv, 16).ok()).flatten()
    });
    explicit.unwrap_or_else(|| {
        let (_, low) = span.trace_id.split_at(8);
        u64::from_be_bytes(low.try_into().expect("half of sixteen bytes")) & RANDOM_MASK
    })
}

/// What stands before OpenTelemetry's member of a `tracestate`, its value, and what follows.
fn ot_member(state: &str) -> Option<(&str, &str, &str)> {
    let at = if state.starts_with("ot=") { 0 } else { state.find(",ot=")? + 1 };
    let (before, rest) = state.split_at(at);
    let (value, after) = rest[3..].split_once(',').unwrap_or((&rest[3..], ""));
    Some((before.trim_end_matches(','), value.trim_end(), after))
}

/// The `tracestate` that goes out. Made in `buffer` where it differs from the one received.
pub(super) fn trace_state<'a>(received: &'a str, kept: Kept, buffer: &'a mut String) -> &'a str {
    let Kept::Threshold(threshold) = kept else { return received };
    let (before, value, after) = ot_member(received).unwrap_or(("", "", received));
    buffer.clear();
    buffer.push_str("ot=th:");
    let digits = format!("{threshold:014x}");
    let digits = digits.trim_end_matches('0');
    buffer.push_str(if digits.is_empty() { "0" } else { digits });
    for field in value.split(';').filter(|field| !field.is_empty() && !field.starts_with("th:")) {
        // Writing to a string cannot fail.
        let _ = write!(buffer, ";{field}");
    }
    for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
        let _ = write!(buffer, ",{rest}");
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::{span, span_with};
    use crate::span::SpanKind;

    const SECOND: u64 = 1_000_000_000;

    fn sampler(ratio: f64, parent_based: bool) -> Sampler {
        Sampler::new(Sampling { ratio, parent_based })
    }

    /// A span without a parent, of a route whose slowest is known already.
    fn root(random: u64) -> Span {
        let mut span = span(SpanKind::Server);
        span.parent_span_id = None;
        span.trace_id[8..].copy_from_slice(&random.to_be_bytes());
        span
    }

    /// The sampler after it has seen a very slow span of the same route.
    fn warmed(ratio: f64, parent_based: bool) -> Sampler {
        let mut sampler = sampler(ratio, parent_based);
        let mut slow = root(0);
        slow.start = slow.end - 50 * SECOND;
        sampler.decide(&slow);
        sampler
    }

    #[test]
    fn the_ratio_is_kept_and_reported() {
        let mut sampler = warmed(0.25, true);
        let mut rng = fastrand::Rng::with_seed(7);
        let n_kept = (0..40_000).filter(|_| match sampler.decide(&root(rng.u64(..))) {
            None => false,
            Some(kept) => {
                assert_eq!(kept, Kept::Threshold(0xc0_0000_0000_0000));
                true
            }
        });
        let n_kept = n_kept.count();
        // Five standard deviations of a binomial.
        assert!((9_567..=10_433).contains(&n_kept), "{n_kept}");
        assert_eq!(sampler.dropped(), 40_000 - n_kept as u64);
    }

    #[test]
    fn heads_decide() {
        fn check(ratio: f64, parent_based: bool, parent: Option<u8>, random: u64, expected: Option<Kept>) {
            let mut span = root(random);
            span.parent_span_id = parent.map(|_| [1; 8]);
            span.trace_flags = parent.unwrap_or(FLAG_SAMPLED);
            let kept = warmed(ratio, parent_based).decide(&span);
            assert_eq!(kept, expected, "{ratio} {parent_based} {parent:?} {random:x}");
        }
        const HALF: u64 = 1 << 55;
        check(1.0, true, None, 0, Some(Kept::AsReceived));
        check(1.0, true, Some(1), 0, Some(Kept::AsReceived));
        check(1.0, true, Some(0), 0, None);
        check(1.0, false, Some(0), 0, Some(Kept::AsReceived));
        check(0.0, true, None, u64::MAX, None);
        check(0.0, true, Some(1), 0, Some(Kept::AsReceived));
        check(0.0, false, Some(1), u64::MAX, None);
        check(0.5, true, None, HALF, Some(Kept::Threshold(HALF)));
        check(0.5, true, None, HALF - 1, None);
        check(0.5, true, None, (HALF - 1) | (0xff << 56), None);
        check(0.5, false, Some(0), HALF, Some(Kept::Threshold(HALF)));
    }

    #[test]
    fn errors_are_kept() {
        for (ratio, random) in [(0.0, 0), (0.5, 0), (0.5, u64::MAX)] {
            let mut error = span_with(SpanKind::Server, |span| span.error_type = "500");
            error.parent_span_id = None;
            error.trace_id[8..].copy_from_slice(&random.to_be_bytes());
            assert_eq!(warmed(ratio, true).decide(&error), Some(CERTAIN), "{ratio} {random}");
        }
    }

    #[test]
    fn the_slowest_of_every_route_and_minute_is_kept() {
        let mut sampler = sampler(0.0, true);
        let mut rng = fastrand::Rng::with_seed(1);
        for minute in 1..4 {
            for route in ["/a", "/b"] {
                let durations: Vec<u64> = (0..1_000).map(|_| rng.u64(1..SECOND)).collect();
                let kept: Vec<u64> = durations
                    .iter()
                    .copied()
                    .filter(|duration| {
                        let mut span = span_with(SpanKind::Server, |span| span.http().route = route.into());
                        span.parent_span_id = None;
                        span.end = (1_000_000 + minute) * WINDOW + 1;
                        span.start = span.end - duration;
                        sampler.decide(&span).is_some()
                    })
                    .collect();
                assert_eq!(kept.iter().max(), durations.iter().max());
                // The expected number of records in a thousand is 7.5.
                assert!(kept.len() < 30, "{}", kept.len());
            }
        }
    }

    #[test]
    fn many_routes_cost_no_more_memory() {
        let mut sampler = sampler(0.0, true);
        for route in 0..2 * ROUTES {
            sampler
                .decide(&span_with(SpanKind::Server, |span| span.http().route = format!("/{route}").into()));
        }
        assert!(sampler.slowest.len() <= ROUTES + 1, "{}", sampler.slowest.len());
    }

    #[test]
    fn trace_states() {
        fn check(received: &str, kept: Kept, expected: &str) {
            let mut buffer = "left over".to_owned();
            assert_eq!(trace_state(received, kept, &mut buffer), expected, "{received}");
        }
        check("a=1", Kept::AsReceived, "a=1");
        check("", CERTAIN, "ot=th:0");
        check("", Kept::Threshold(0xc0_0000_0000_0000), "ot=th:c");
        check("", Kept::Threshold(0x00_0000_0000_1000), "ot=th:00000000001");
        check("a=1,b=2", CERTAIN, "ot=th:0,a=1,b=2");
        check("a=1,ot=th:8;rv:0123456789abcd,b=2", CERTAIN, "ot=th:0;rv:0123456789abcd,a=1,b=2");
        check("ot=x:1", Kept::Threshold(1 << 55), "ot=th:8;x:1");
        check("rot=1", CERTAIN, "ot=th:0,rot=1");
    }

    #[test]
    fn explicit_randomness_wins() {
        let mut span = root(0);
        span.trace_state = "ot=rv:ffffffffffffff".to_owned();
        assert!(warmed(0.5, false).decide(&span).is_some());
        span.trace_state = "ot=rv:short".to_owned();
        assert_eq!(warmed(0.5, false).decide(&span), None);
    }
}
