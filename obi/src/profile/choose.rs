//! Which samples a caller wants.
//!
//! In: a [`Filter`]. Out: [`SelectedSamples`]; or those that are to be exported next, each once. Refuses to know who
//! asks.

use std::hash::Hash;

use super::join::EXPORT_WAIT;
use super::sample_type::SampleKind;
use super::store::{SelectedSample, SelectedSamples, Store, StoredSample};
use super::waits::is_for_thread;
use crate::red::RouteRef;

/// Requests that take at least as long as so many of their route's are slow.
pub const SLOW_SHARE: f64 = 0.95;

/// Which requests of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pace {
    /// Those that take as long as the slowest 5 % of their route, of the time that is looked at.
    Slow,
    /// The others.
    Rest,
}

/// Conditions that must all hold; an absent one always does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// What was measured.
    pub kind: SampleKind,
    /// First moment, `CLOCK_MONOTONIC`.
    pub start: u64,
    /// First moment behind it.
    pub end: u64,
    /// `service.name`.
    pub service: Option<String>,
    /// `service.version`.
    pub version: Option<String>,
    /// Route, or method of a call.
    pub route: Option<String>,
    /// Span.
    pub span_id: Option<[u8; 8]>,
    /// Trace.
    pub trace_id: Option<[u8; 16]>,
    /// Process.
    pub pid: Option<u32>,
    /// Slow requests or the others; samples that belong to no request are neither.
    pub pace: Option<Pace>,
}

impl<P: Clone + Eq + Hash> Store<P> {
    /// The samples that a filter wants, in the order of time.
    #[must_use]
    pub fn choose(&self, filter: &Filter) -> SelectedSamples<P> {
        let thresholds = match filter.pace {
            Some(_) => self.ranks.thresholds(filter.start, filter.end, SLOW_SHARE),
            None => Default::default(),
        };
        let mut chosen = SelectedSamples {
            start: filter.start,
            end: filter.end,
            kind: Some(filter.kind),
            samples: Vec::new(),
            lost: self.lost_in(filter.start, filter.end, Some(filter.kind)),
            thresholds,
        };
        for held in self.kept.samples().chain(&self.samples) {
            if self.wants(filter, held) {
                let release = (filter.kind == SampleKind::Lock).then(|| self.release(held)).flatten();
                let release = release.map(Box::new);
                let sample = SelectedSample { kind: filter.kind, release, ..self.chosen(held) };
                if filter.pace.is_none_or(|pace| chosen.pace(&sample) == Some(pace)) {
                    chosen.samples.push(sample);
                }
            }
        }
        chosen.samples.sort_by_key(|sample| sample.time);
        chosen
    }

    /// Samples taken before `now` that have not been exported and can be: those of an exchange that goes on wait for
    /// its span, up to [`EXPORT_WAIT`]. At the end (`all`) none waits any more.
    pub fn export(&mut self, now: u64, all: bool) -> SelectedSamples<P> {
        let skip = usize::try_from(self.unexported.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let mut samples = Vec::new();
        let mut first_left = None;
        for index in skip..self.samples.len() {
            let held = &self.samples[index];
            if held.exported {
                continue;
            }
            if !all && held.exchange != 0 && held.time.saturating_add(EXPORT_WAIT) > now {
                first_left.get_or_insert(self.first + index as u64);
                continue;
            }
            samples.push(self.chosen(held));
            self.samples[index].exported = true;
        }
        self.unexported = first_left.unwrap_or(self.first + self.samples.len() as u64);
        samples.sort_by_key(|sample| sample.time);
        let start = samples.first().map_or(now, |sample| sample.time);
        let end = samples.last().map_or(now, |sample| sample.time + 1).max(now);
        let lost = self.lost_in(self.exported_at, now, None);
        self.exported_at = now;
        SelectedSamples { start, end, kind: None, samples, lost, thresholds: Default::default() }
    }

    fn wants(&self, filter: &Filter, held: &StoredSample<P>) -> bool {
        let link = held.served.as_ref().map(|served| &served.link);
        let is_for_thread = || held.wait.as_ref().is_some_and(|wait| is_for_thread(wait.reason));
        filter.kind.is_made_of(held.kind)
            && (filter.kind != SampleKind::Lock || is_for_thread())
            && (filter.start..filter.end).contains(&held.time)
            && filter.pid.is_none_or(|pid| pid == held.stack.pid)
            && filter.span_id.is_none_or(|id| link.is_some_and(|link| link.span_id == id))
            && filter.trace_id.is_none_or(|id| link.is_some_and(|link| link.trace_id == id))
            && filter.route.as_ref().is_none_or(|route| link.is_some_and(|link| *link.route == **route))
            && filter.service.as_ref().is_none_or(|name| self.origins.get(held.origin).service.name == *name)
            && filter
                .version
                .as_ref()
                .is_none_or(|wanted| self.origins.get(held.origin).version() == Some(wanted))
    }
}

impl<P> SelectedSamples<P> {
    /// Whether a sample belongs to a slow request of its route, or to another one.
    fn pace(&self, sample: &SelectedSample<P>) -> Option<Pace> {
        let served = sample.served.as_ref().filter(|served| served.is_server)?;
        let route = RouteRef { service: served.service.id, route: &served.link.route };
        let threshold = *self.thresholds.get(&route)?;
        Some(if served.duration() >= threshold { Pace::Slow } else { Pace::Rest })
    }
}
