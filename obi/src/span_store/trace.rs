//! Traces, as far as their spans are held.
//!
//! In: spans in the order of arrival. Out: summaries of traces; the spans of one as a tree. Refuses to know how a span
//! came into its trace.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Stored;
use crate::span::{Service, Span, SpanKind, Status};

/// Which traces a reader wants to see. Absent conditions hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceQuery {
    /// Some span of it is of this service.
    pub service: Option<String>,
    /// Whether some span of it has failed.
    pub error: Option<bool>,
    /// Least time from the beginning of its first to the end of its last span, ns.
    pub min_duration: Option<u64>,
    /// Those that have got a span of a higher sequence, oldest first; else the newest, newest first.
    pub after: Option<u64>,
    /// At most so many.
    pub limit: usize,
}

/// A trace.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Its id.
    pub trace_id: [u8; 16],
    /// The sequence of the span that came last.
    pub last: u64,
    /// Spans held.
    pub spans: usize,
    /// Of them, those that have failed.
    pub errors: usize,
    /// Beginning of the first, nanoseconds since the Unix epoch.
    pub start: u64,
    /// End of the last.
    pub end: u64,
    /// The first span without a parent that is held.
    pub first: First,
    /// Services that take part, by name and namespace.
    pub services: Vec<Arc<Service>>,
}

/// Where a trace begins, as far as it is held.
#[derive(Debug, Clone)]
pub struct First {
    /// Name of the span.
    pub name: String,
    /// Its kind.
    pub kind: SpanKind,
    /// Its service.
    pub service: Arc<Service>,
    /// It has no parent: nothing came before it.
    pub is_root: bool,
}

/// A span in a tree.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The span.
    pub stored: Stored,
    /// Parents of parents above it that are held.
    pub depth: usize,
    /// It has a parent, which is not held: of another machine, not sampled there, lost or gone.
    pub is_cut: bool,
}

/// The traces that a query asks for.
pub(super) fn find<'a>(spans: impl Iterator<Item = &'a Stored>, query: &TraceQuery) -> Vec<Trace> {
    let mut traces: HashMap<[u8; 16], Vec<&Stored>> = HashMap::new();
    for stored in spans {
        traces.entry(stored.span.trace_id).or_default().push(stored);
    }
    let last = |spans: &[&Stored]| spans.iter().map(|stored| stored.sequence).max().unwrap_or(0);
    let mut found: Vec<(u64, Vec<&Stored>)> = traces
        .into_values()
        .map(|spans| (last(&spans), spans))
        .filter(|trace| query.matches(trace))
        .collect();
    found.sort_unstable_by_key(|(last, _)| *last);
    if query.after.is_none() {
        found.reverse();
    }
    found.truncate(query.limit);
    found.into_iter().filter_map(|(last, spans)| Trace::of(last, &spans)).collect()
}

impl TraceQuery {
    fn matches(&self, (last, spans): &(u64, Vec<&Stored>)) -> bool {
        let any = |test: &dyn Fn(&Span) -> bool| spans.iter().any(|stored| test(&stored.span));
        let (start, end) = extent(spans);
        self.after.is_none_or(|after| *last > after)
            && self.min_duration.is_none_or(|least| end.saturating_sub(start) >= least)
            && self.error.is_none_or(|error| error == any(&|span| span.status() == Status::Error))
            && self.service.as_ref().is_none_or(|name| any(&|span| span.service.name == *name))
    }
}

impl Trace {
    fn of(last: u64, spans: &[&Stored]) -> Option<Self> {
        let ids: HashSet<[u8; 8]> = spans.iter().map(|stored| stored.span.span_id).collect();
        let is_first = |span: &Span| span.parent_span_id.is_none_or(|parent| !ids.contains(&parent));
        let each = || spans.iter().map(|stored| &stored.span);
        let first = each().filter(|span| is_first(span)).min_by_key(|span| span.start).or(each().next())?;
        let mut services: Vec<Arc<Service>> = Vec::new();
        for span in each() {
            let is_same = |known: &Arc<Service>| {
                (&known.name, &known.namespace) == (&span.service.name, &span.service.namespace)
            };
            if !services.iter().any(is_same) {
                services.push(Arc::clone(&span.service));
            }
        }
        services.sort_by(|a, b| (&a.name, &a.namespace).cmp(&(&b.name, &b.namespace)));
        let (start, end) = extent(spans);
        Some(Self {
            trace_id: first.trace_id,
            last,
            spans: spans.len(),
            errors: each().filter(|span| span.status() == Status::Error).count(),
            start,
            end,
            first: First {
                name: first.name().to_string(),
                kind: first.kind,
                service: Arc::clone(&first.service),
                is_root: first.parent_span_id.is_none(),
            },
            services,
        })
    }
}

fn extent(spans: &[&Stored]) -> (u64, u64) {
    let start = spans.iter().map(|stored| stored.span.start).min().unwrap_or(0);
    let end = spans.iter().map(|stored| stored.span.end).max().unwrap_or(0);
    (start, end)
}

/// Children of a span that has taken over the id of an SDK's are below that.
fn under_present_ids(spans: &mut [Stored]) {
    let present: HashMap<[u8; 8], [u8; 8]> = spans
        .iter()
        .filter_map(|stored| Some((stored.span.twin.as_ref()?.former_id, stored.span.span_id)))
        .collect();
    for Stored { span, .. } in spans.iter_mut() {
        if let Some(present) = span.parent_span_id.as_ref().and_then(|parent| present.get(parent)) {
            span.parent_span_id = Some(*present);
        }
    }
}

/// By exchange, the call that was seen at its other end. A header may name a parent that no one here has seen, such
/// as a span of an SDK that is sent elsewhere: the call is what came between.
fn callers(spans: &[Stored]) -> HashMap<u64, [u8; 8]> {
    let calls = spans.iter().map(|stored| &stored.span).filter(|span| span.kind == SpanKind::Client);
    calls.filter_map(|span| Some((span.exchange_id?, span.span_id))).collect()
}

/// The spans of one trace, each behind its parent and all that began before it there.
#[must_use]
pub fn tree(mut spans: Vec<Stored>) -> Vec<Placed> {
    spans.sort_by_key(|stored| (stored.span.start, std::cmp::Reverse(stored.span.end), stored.sequence));
    under_present_ids(&mut spans);
    let ids: HashSet<[u8; 8]> = spans.iter().map(|stored| stored.span.span_id).collect();
    let callers = callers(&spans);
    let mut children: HashMap<[u8; 8], Vec<usize>> = HashMap::new();
    let mut next: Vec<(usize, usize)> = Vec::new();
    for (nth, Stored { span, .. }) in spans.iter().enumerate() {
        let is_there = |parent: &[u8; 8]| ids.contains(parent) && *parent != span.span_id;
        let caller = || callers.get(&span.exchange_id.filter(|_| span.kind == SpanKind::Server)?).copied();
        match span.parent_span_id.filter(is_there).or_else(caller) {
            Some(parent) => children.entry(parent).or_default().push(nth),
            None => next.push((nth, 0)),
        }
    }
    next.reverse();
    let mut placed = Vec::with_capacity(spans.len());
    let mut held: Vec<Option<Stored>> = spans.into_iter().map(Some).collect();
    loop {
        while let Some((nth, depth)) = next.pop() {
            let Some(stored) = held[nth].take() else { continue };
            let below = children.remove(&stored.span.span_id).unwrap_or_default();
            next.extend(below.into_iter().rev().map(|child| (child, depth + 1)));
            let is_below_caller = stored.span.kind == SpanKind::Server
                && stored.span.exchange_id.is_some_and(|id| callers.contains_key(&id));
            let is_cut =
                !is_below_caller && stored.span.parent_span_id.is_some_and(|parent| !ids.contains(&parent));
            placed.push(Placed { stored, depth, is_cut });
        }
        // Parents in a circle, which headers can claim: it is cut somewhere.
        match held.iter().position(Option::is_some) {
            Some(nth) => next.push((nth, 0)),
            None => return placed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span_with;

    fn stored(sequence: u64, trace: u8, id: u8, parent: Option<u8>, start: u64) -> Stored {
        let span = span_with(SpanKind::Server, |span| {
            (span.trace_id, span.span_id) = ([trace; 16], [id; 8]);
            span.parent_span_id = parent.map(|parent| [parent; 8]);
            (span.start, span.end) = (start, start + 10);
        });
        Stored { sequence, span: Box::new(span) }
    }

    #[test]
    fn trees_are_reported_from_the_top() {
        let check = |spans: Vec<Stored>, expected: &[(u8, usize, bool)]| {
            let reported: Vec<_> =
                tree(spans).iter().map(|it| (it.stored.span.span_id[0], it.depth, it.is_cut)).collect();
            assert_eq!(reported, expected);
        };
        check(vec![], &[]);
        check(
            vec![
                stored(1, 1, 4, Some(2), 7),
                stored(2, 1, 3, Some(1), 6),
                stored(3, 1, 2, Some(1), 5),
                stored(4, 1, 1, None, 4),
            ],
            &[(1, 0, false), (2, 1, false), (4, 2, false), (3, 1, false)],
        );
        check(vec![stored(1, 1, 2, Some(9), 5), stored(2, 1, 1, Some(8), 4)], &[(1, 0, true), (2, 0, true)]);
        check(
            vec![stored(1, 1, 1, Some(2), 5), stored(2, 1, 2, Some(1), 6)],
            &[(1, 0, false), (2, 1, false)],
        );
        check(vec![stored(1, 1, 1, Some(1), 5)], &[(1, 0, false)]);
        // Both ends of an exchange, whose header names a third span as the parent of both.
        let end = |stored: Stored, kind| Stored {
            span: Box::new(Span { kind, exchange_id: Some(77), ..*stored.span }),
            ..stored
        };
        let call = end(stored(1, 1, 1, Some(9), 4), SpanKind::Client);
        let served = end(stored(2, 1, 2, Some(9), 5), SpanKind::Server);
        check(
            vec![served.clone(), call.clone(), stored(3, 1, 3, Some(2), 6)],
            &[(1, 0, true), (2, 1, false), (3, 2, false)],
        );
        // A parent that is there is believed.
        let served = end(stored(2, 1, 2, Some(3), 5), SpanKind::Server);
        check(vec![served, call, stored(3, 1, 3, Some(1), 4)], &[(1, 0, true), (3, 1, false), (2, 2, false)]);
    }

    #[test]
    fn traces_are_found() {
        let mut failed = stored(3, 2, 3, None, 40);
        failed.span.error_type = "500";
        failed.span.service = Arc::new(Service { name: "cart".into(), id: 9, ..Service::default() });
        let spans =
            [stored(1, 1, 1, None, 5), stored(2, 1, 2, Some(1), 7), failed, stored(4, 3, 4, Some(7), 50)];
        let check = |query: TraceQuery, expected: &[u8]| {
            let found: Vec<_> = find(spans.iter(), &query).iter().map(|trace| trace.trace_id[0]).collect();
            assert_eq!(found, expected, "{query:?}");
        };
        let all = || TraceQuery { limit: 10, ..TraceQuery::default() };
        check(all(), &[3, 2, 1]);
        check(TraceQuery { limit: 2, ..all() }, &[3, 2]);
        check(TraceQuery { after: Some(0), ..all() }, &[1, 2, 3]);
        check(TraceQuery { after: Some(2), limit: 1, ..all() }, &[2]);
        check(TraceQuery { error: Some(true), ..all() }, &[2]);
        check(TraceQuery { error: Some(false), ..all() }, &[3, 1]);
        check(TraceQuery { min_duration: Some(11), ..all() }, &[1]);
        check(TraceQuery { service: Some("cart".into()), ..all() }, &[2]);
        let found = find(spans.iter(), &all());
        assert_eq!((found[2].spans, found[2].errors, found[2].start, found[2].end), (2, 0, 5, 17));
        assert_eq!((found[0].first.is_root, found[1].first.is_root, found[1].errors), (false, true, 1));
    }
}
