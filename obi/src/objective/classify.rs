//! Which objectives a span counts for, and as what.
//!
//! In: spans, and the indicators made ready. Out: one verdict per objective that the span concerns. Which indicators
//! select a span depends on little more than service, side, method, route and status, and those come in few
//! combinations: for each the answer is remembered, so that a thousand objectives cost an event no more than the few it
//! concerns. Refuses to know what is done with a verdict.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use slo::indicator::{EventIndicator, Status, Streaming};
use slo::{Classifier, Kind, Objective, Outcome, Subject};

use crate::span::{self, Answer, Detail, Operation, Span, SpanKind};

/// Combinations remembered; beyond them all are forgotten and learned anew. Routes are bounded per service, so that
/// this happens on very busy machines only.
const REMEMBERED: usize = 16_384;

/// The indicators of all objectives.
#[derive(Debug)]
pub struct Classes {
    indicators: Vec<Class>,
    /// For each combination the indices of those that select it, or may.
    remembered: HashMap<Combination, Arc<[u32]>, RandomState>,
    /// Whether anyone asks for the other side; its address is made into text only then.
    needs_peer: bool,
}

#[derive(Debug)]
struct Class {
    classifier: Classifier,
    objective: u32,
    part: u32,
    /// Its selection also depends on what is not in a [`Combination`].
    is_loose: bool,
    /// WebSockets count. They are no requests, and last for hours: only who asks for streams alone means them.
    takes_websockets: bool,
}

/// A verdict on a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Index of the indicator, in the order of objectives and their parts.
    pub indicator: u32,
    /// Index of the objective.
    pub objective: u32,
    /// Index of its part.
    pub part: u32,
    /// Good or bad.
    pub outcome: Outcome,
}

/// What a span has in common with others that the same indicators select.
#[derive(Debug)]
struct Combination {
    service: Arc<span::Service>,
    kind: SpanKind,
    verb: &'static str,
    place: Arc<str>,
    answer: Answer,
}

impl Combination {
    fn operation(&self) -> Operation<'_> {
        Operation { verb: self.verb, place: &self.place }
    }
}

impl Hash for Combination {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.service.id, self.kind, self.operation(), self.answer).hash(state);
    }
}

/// The same, borrowed.
#[derive(Clone, Copy)]
struct Key<'a> {
    span: &'a Span,
    operation: Operation<'a>,
    answer: Answer,
}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.span.service.id, self.span.kind, self.operation, self.answer).hash(state);
    }
}

impl Equivalent<Combination> for Key<'_> {
    fn equivalent(&self, known: &Combination) -> bool {
        let Self { span, operation, answer } = self;
        (span.service.id, span.kind, *answer) == (known.service.id, known.kind, known.answer)
            && *operation == known.operation()
    }
}

impl PartialEq for Combination {
    fn eq(&self, other: &Self) -> bool {
        (self.service.id, self.kind, self.answer) == (other.service.id, other.kind, other.answer)
            && self.operation() == other.operation()
    }
}

impl Eq for Combination {}

impl Classes {
    /// Makes the indicators of these objectives ready; those over other systems' metrics never select a span.
    #[must_use]
    pub fn new(objectives: &[Objective]) -> Self {
        let mut indicators = Vec::new();
        for (objective, number) in objectives.iter().zip(0..) {
            for (part, index) in objective.parts.iter().zip(0..) {
                let Some(events) = part.indicator.events() else { continue };
                let is_loose = events.total.peer.is_some() || !events.total.attributes.is_empty();
                let takes_websockets = events.total.streaming == Streaming::Only;
                let classifier = Classifier::new(events);
                indicators.push(Class {
                    classifier,
                    objective: number,
                    part: index,
                    is_loose,
                    takes_websockets,
                });
            }
        }
        let asks_for_peer =
            |events: &EventIndicator| events.total.peer.is_some() || events.counted.peer.is_some();
        let parts = objectives.iter().flat_map(|objective| &objective.parts);
        let needs_peer = parts.filter_map(|part| part.indicator.events()).any(asks_for_peer);
        Self { indicators, remembered: HashMap::default(), needs_peer }
    }

    /// Indicators over spans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.indicators.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indicators.is_empty()
    }

    /// Says `visit` for each objective that counts this span what it is for it. Objectives are about requests: calls of
    /// databases are none, and would change what an objective over all of a client's requests means.
    pub fn classify(&mut self, span: &Span, mut visit: impl FnMut(Verdict)) {
        if matches!(span.detail, Detail::Database(_)) {
            return;
        }
        let attributes = SpanAttributes { span, texts: OnceCell::new() };
        let peer = if self.needs_peer { peer(span) } else { Cow::Borrowed("") };
        let subject = subject(span, &attributes, &peer);
        let key = Key { span, operation: span.detail.operation(), answer: span.detail.answer() };
        let candidates = match self.remembered.get(&key) {
            Some(known) => Arc::clone(known),
            None => self.remember(key, &subject),
        };
        for index in &*candidates {
            let Class { classifier, objective, part, is_loose, .. } = &self.indicators[*index as usize];
            if *is_loose && !classifier.selects(&subject) {
                continue;
            }
            if let Some(outcome) = classifier.judge(&subject) {
                visit(Verdict { indicator: *index, objective: *objective, part: *part, outcome });
            }
        }
    }

    fn remember(&mut self, key: Key<'_>, subject: &Subject<'_>) -> Arc<[u32]> {
        if self.remembered.len() >= REMEMBERED {
            self.remembered.clear();
        }
        let is_websocket = matches!(key.span.detail, Detail::WebSocket(_));
        let may_select = |class: &Class| {
            (class.takes_websockets || !is_websocket) && (class.is_loose || class.classifier.selects(subject))
        };
        let indices = self.indicators.iter().zip(0..).filter(|(class, _)| may_select(class));
        let combination = Combination {
            service: Arc::clone(&key.span.service),
            kind: key.span.kind,
            verb: key.operation.verb,
            place: Arc::clone(key.operation.place),
            answer: key.answer,
        };
        let indices: Arc<[u32]> = indices.map(|(_, index)| index).collect();
        self.remembered.insert(combination, Arc::clone(&indices));
        indices
    }
}

/// Name or address of the other side.
fn peer(span: &Span) -> Cow<'_, str> {
    match (span.kind, span.client.address) {
        (SpanKind::Client | SpanKind::Internal, _) => Cow::Borrowed(&span.server.address),
        (SpanKind::Server, None) => Cow::Borrowed(""),
        (SpanKind::Server, Some(address)) => Cow::Owned(address.to_string()),
    }
}

/// A span in the words of indicators.
fn subject<'a>(span: &'a Span, attributes: &'a SpanAttributes<'a>, peer: &'a str) -> Subject<'a> {
    let (route, method) = match &span.detail {
        Detail::Rpc(rpc) => (&*rpc.http.route, &*rpc.method),
        Detail::Http(http) => (&*http.route, http.method),
        Detail::WebSocket(socket) => (&*socket.http.route, socket.http.method),
        Detail::Database(database) => (&*database.name, database.system),
        Detail::Sdk(sdk) => ("", &*sdk.name),
    };
    let status = match span.detail.answer() {
        Answer::None => Status::None,
        Answer::Unknown => Status::Unknown,
        Answer::Http(code) => Status::Code(code),
        Answer::Rpc(code) => Status::Rpc { name: code.name(), number: code.number() },
    };
    let kind = match span.kind {
        SpanKind::Server => Kind::Server,
        SpanKind::Client | SpanKind::Internal => Kind::Client,
    };
    Subject {
        service: &span.service.name,
        kind,
        route,
        method,
        status,
        peer,
        duration_ns: span.end.saturating_sub(span.start),
        queue_wait_ns: span.queue_wait,
        error: span.status() == span::Status::Error,
        streaming: span.detail.is_streaming(),
        attributes,
    }
}

/// Attributes by name, those of the resource too; made into text when the first is asked for.
struct SpanAttributes<'a> {
    span: &'a Span,
    texts: OnceCell<Vec<(&'a str, String)>>,
}

impl slo::indicator::Attributes for SpanAttributes<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let span = self.span;
        let texts = self.texts.get_or_init(|| {
            let mut texts = Vec::new();
            span.attributes(|name, value| texts.push((name, value.to_string())));
            texts.extend(span.resource().map(|(name, value)| (name, value.to_string())));
            texts.push(("service.namespace", span.service.namespace.clone()));
            texts
        });
        let found = texts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::red::tests::{call_ended, call_with, service, span_with, websocket};
    use crate::span::grpc::Code;

    /// An SLO named `name` whose indicator selects by `total` and whose good events are those of `good`.
    pub(in crate::objective) fn slo(name: &str, total: &str, good: &str) -> String {
        let source = |spec: &str| format!("{{metricSource: {{type: obi, spec: {spec}}}}}");
        let (total, good) = (source(total), source(good));
        format!(
            "---\napiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: {name}}}\nspec:\n  service: shop\n  \
             indicator:\n    metadata: {{name: {name}}}\n    spec:\n      ratioMetric:\n        counter: true\n        \
             good: {good}\n        total: {total}\n  timeWindow: [{{duration: 28d, isRolling: true}}]\n  \
             budgetingMethod: Occurrences\n  objectives: [{{target: 0.99}}]\n"
        )
    }

    /// Objectives of such SLOs.
    pub(in crate::objective) fn objectives(texts: &[String]) -> Vec<Objective> {
        let reading = slo::openslo::read([("test.yaml", texts.concat().as_str())]);
        let is_error = |finding: &&slo::openslo::Finding| finding.severity == slo::openslo::Severity::Error;
        let errors: Vec<_> = reading.findings.iter().filter(is_error).map(ToString::to_string).collect();
        assert!(errors.is_empty(), "{errors:?}");
        reading.objectives
    }

    fn verdicts(classes: &mut Classes, span: &Span) -> Vec<(u32, Outcome)> {
        let mut found = Vec::new();
        classes.classify(span, |verdict| found.push((verdict.objective, verdict.outcome)));
        found
    }

    #[test]
    fn calls_of_databases_are_no_requests() {
        let objectives = objectives(&[slo("x", "{service: service-1, kind: client}", "{outcome: good}")]);
        let mut span = span_with(SpanKind::Client, |_| {});
        span.service = service(1);
        let mut classes = Classes::new(&objectives);
        assert_eq!(verdicts(&mut classes, &span), [(0, Outcome::Good)]);
        span.detail = Detail::Database(crate::span::Database { system: "redis", ..Default::default() });
        assert_eq!(verdicts(&mut classes, &span), []);
    }

    #[test]
    fn each_selector_has_its_attribute() {
        fn check(total: &str, good: &str, change: fn(&mut Span), expected: Option<Outcome>) {
            let total = format!("{{service: service-1{total}}}");
            let objectives = objectives(&[slo("x", &total, good)]);
            let mut span = span_with(SpanKind::Server, change);
            span.service = service(1);
            let mut classes = Classes::new(&objectives);
            let expected: Vec<_> = expected.map(|outcome| (0, outcome)).into_iter().collect();
            // The second time from memory.
            for _ in 0..2 {
                assert_eq!(verdicts(&mut classes, &span), expected, "{total} {good}");
            }
        }
        let (good, bad) = (Some(Outcome::Good), Some(Outcome::Bad));
        let failed = |span: &mut Span| {
            span.http().status = Some(503);
            span.error_type = "503";
        };
        check("", "{outcome: good}", |_| {}, good);
        check("", "{outcome: good}", failed, bad);
        check(", kind: client", "{outcome: good}", |_| {}, None);
        check(", route: '/item/*'", "{outcome: good}", |_| {}, good);
        check(", route: '/cart/*'", "{outcome: good}", |_| {}, None);
        check(", method: POST", "{outcome: good}", |span| span.http().method = "POST", good);
        check(", status: '4*'", "{outcome: good}", |_| {}, None);
        check(", status: '4*'", "{outcome: good}", |span| span.http().status = Some(404), good);
        check("", "{faster_than: 12ms}", |_| {}, good);
        check("", "{faster_than: 11999us}", |_| {}, bad);
        check(
            ", peer: 192.0.2.7",
            "{outcome: good}",
            |span| span.client.address = "192.0.2.7".parse().ok(),
            good,
        );
        check(", peer: 192.0.2.7", "{outcome: good}", |span| span.client.address = None, None);
        check(", attributes: {user_agent.original: 'curl/*'}", "{outcome: good}", |_| {}, None);
        let by_curl = |span: &mut Span| span.http().user_agent = "curl/8".to_owned();
        check(", attributes: {user_agent.original: 'curl/*'}", "{outcome: good}", by_curl, good);
        check(", attributes: {http.response.status_code: '200'}", "{outcome: good}", |_| {}, good);
        check(", streaming: exclude", "{outcome: good}", |span| span.http().status = Some(101), None);
        check(", ignore_statuses: [503]", "{outcome: good}", failed, None);
        check(", bad_statuses: [429]", "{outcome: good}", |span| span.http().status = Some(429), bad);
    }

    #[test]
    fn calls_and_websockets() {
        fn check(total: &str, good: &str, span: &Span, expected: Option<Outcome>) {
            let total = format!("{{service: service-1{total}}}");
            let mut classes = Classes::new(&objectives(&[slo("x", &total, good)]));
            let expected: Vec<_> = expected.map(|outcome| (0, outcome)).into_iter().collect();
            for _ in 0..2 {
                assert_eq!(verdicts(&mut classes, span), expected, "{total} {good}");
            }
        }
        const SERVER: SpanKind = SpanKind::Server;
        let (good, bad) = (Some(Outcome::Good), Some(Outcome::Bad));
        let code = |name| Code::of_name(name).expect("a code");
        let call = call_with(SERVER, |_| {});
        check("", "{outcome: good}", &call, good);
        check(", method: shop.Cart/Add", "{outcome: good}", &call, good);
        check(", method: 'shop.Cart/*'", "{outcome: good}", &call, good);
        check(", method: POST", "{outcome: good}", &call, None);
        check(", route: '*'", "{outcome: good}", &call, good);
        check(", route: '/item/*'", "{outcome: good}", &call, None);
        check("", "{faster_than: 12ms}", &call, good);
        check("", "{faster_than: 11ms}", &call, bad);
        let (absent, broken) =
            (call_ended(SERVER, code("NOT_FOUND")), call_ended(SERVER, code("UNAVAILABLE")));
        check("", "{outcome: good}", &absent, good);
        check("", "{outcome: good}", &broken, bad);
        check("", "{status: OK}", &absent, bad);
        check("", "{status: '2*'}", &call_ended(SERVER, code("UNKNOWN")), bad);
        check(", status: UNAVAILABLE", "{outcome: good}", &broken, bad);
        check(", status: 14", "{outcome: good}", &broken, bad);
        check(", status: UNAVAILABLE", "{outcome: good}", &absent, None);
        check(", bad_statuses: [NOT_FOUND]", "{outcome: good}", &absent, bad);
        check(", good_statuses: ['14']", "{outcome: good}", &broken, good);
        check(", ignore_statuses: [UNAVAILABLE]", "{outcome: good}", &broken, None);
        let unknown = call_with(SERVER, |span| (span.rpc().status, span.rpc().status_unknown) = (None, true));
        check("", "{outcome: good}", &unknown, None);
        check("", "{status: OK}", &unknown, None);
        check("", "{faster_than: 12ms}", &unknown, good);
        let reset = call_with(SERVER, |span: &mut Span| {
            (span.rpc().status, span.error_type) = (None, "connection_reset");
        });
        check("", "{outcome: good}", &reset, bad);
        let unread =
            span_with(SERVER, |span| (span.http().status, span.http().status_unknown) = (None, true));
        check("", "{outcome: good}", &unread, None);
        check("", "{faster_than: 12ms}", &unread, good);

        let stream = call_with(SERVER, |span| span.rpc().streaming = true);
        check("", "{faster_than: 12ms}", &stream, good);
        check(", streaming: exclude", "{faster_than: 12ms}", &stream, None);
        check(", streaming: exclude", "{faster_than: 12ms}", &call, good);
        check(", streaming: only", "{outcome: good}", &stream, good);
        check(", attributes: {obi.rpc.streaming: 'true'}", "{outcome: good}", &stream, good);
        check(", attributes: {obi.rpc.streaming: 'true'}", "{outcome: good}", &call, None);
        let socket = websocket(SERVER);
        check("", "{faster_than: 12ms}", &socket, None);
        check("", "{outcome: good}", &socket, None);
        check(", attributes: {network.protocol.name: websocket}", "{outcome: good}", &socket, None);
        check(", streaming: only, route: '/item/*'", "{outcome: good}", &socket, good);
        check(", streaming: only", "{faster_than: 12ms}", &socket, bad);
    }

    #[test]
    fn memory_is_bounded_and_tells_combinations_apart() {
        let one = |service: usize| {
            slo(&format!("s{service}"), &format!("{{service: service-{service}}}"), "{outcome: good}")
        };
        let mut classes = Classes::new(&objectives(&[one(0), one(1), one(2)]));
        for round in 0..2 * REMEMBERED {
            let number = round % 3;
            let mut span =
                span_with(SpanKind::Server, |span| span.http().route = format!("/{}", round / 3).into());
            span.service = service(u32::try_from(number).unwrap());
            let expected = u32::try_from(number).unwrap();
            assert_eq!(verdicts(&mut classes, &span), [(expected, Outcome::Good)], "{round}");
        }
        assert!(classes.remembered.len() <= REMEMBERED);
    }
}
