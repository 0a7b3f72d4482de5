//! Requests that count by the spans that report them.
//!
//! In: received spans that are no captured exchange's, captured spans. Out: which of them count, their series,
//! objectives and edges. A service that capture sees answer (or call) counts by what was captured, and only by that: a
//! span of it is never counted here, since its exchange may have been captured without an id that both share.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::span_pipeline::SpanPipeline;
use crate::clock::monotonic_ns;
use crate::receive::Received;
use crate::receive::ends::{Call, End, Ends};
use crate::span::service::{Numbers, Services};
use crate::span::{Detail, Service, Span, SpanKind};

/// Services that are named by spans; further ones share `_OTHER`.
const SERVICES: usize = 4_096;
/// Numbers of calls that were not captured begin here.
const FIRST_CALL: u64 = 1 << 63;

/// Whose spans count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    /// Nothing is captured: everything that is sent.
    All,
    /// Those of services that capture does not see.
    Uncaptured,
}

/// What a service is captured of: a side, and a system of databases, or none where HTTP carries it.
type Kind = (u32, SpanKind, &'static str);

fn kind(service: &Service, span: &Span) -> Kind {
    let system = if let Detail::Database(database) = &span.detail { database.system } else { "" };
    (service.id, span.kind, system)
}

/// State of it; there is none where no received span counts.
#[derive(Debug)]
pub(super) struct Foreign {
    counting: Counting,
    numbers: Numbers,
    services: HashMap<(String, String), Arc<Service>, RandomState>,
    /// The service that was named last, as it came and with its number: spans come in rows.
    last: Option<(Arc<Service>, Arc<Service>)>,
    /// What captured spans have been seen of.
    captured: HashSet<Kind, RandomState>,
    /// By service: what is left of fractions of requests.
    rests: HashMap<u32, f64, RandomState>,
    ends: Ends,
    n_calls: u64,
}

/// What a received span counts as.
struct Counted {
    /// The request that it reports.
    request: Option<Span>,
    /// Spans that it stands for.
    times: u32,
}

impl Foreign {
    pub(super) fn new(counting: Counting, numbers: Numbers) -> Self {
        Self {
            counting,
            numbers,
            services: HashMap::default(),
            last: None,
            captured: HashSet::default(),
            rests: HashMap::default(),
            ends: Ends::default(),
            n_calls: FIRST_CALL,
        }
    }

    /// Whether nothing else counts.
    pub(super) fn is_all(&self) -> bool {
        self.counting == Counting::All
    }

    /// A captured span: its service counts by what is captured from now on.
    pub(super) fn captured(&mut self, span: &Span) {
        self.captured.insert(kind(&span.service, span));
    }

    /// So does the service that an SDK has for the same event, should it have another name.
    pub(super) fn is_captured(&mut self, received: &Span) {
        // Only what HTTP carries names its spans on the wire.
        let service = self.service(&received.service);
        self.captured.insert(kind(&service, received));
    }

    /// What a span counts as whose service has its number; `None` when it does not. Its request is taken.
    fn counted(
        &mut self,
        received: &mut Received,
        known: impl FnOnce(&str) -> &'static str,
    ) -> Option<Counted> {
        let request = received.request.take();
        let weight = request.as_ref().map_or(1.0, |request| request.weight);
        let sent = &received.span;
        let request = request.map(|request| request.counted(sent, known));
        let counts = match (self.counting, &request) {
            (Counting::All, _) => true,
            (Counting::Uncaptured, None) => false,
            (Counting::Uncaptured, Some(span)) => !self.captured.contains(&kind(&sent.service, span)),
        };
        counts.then(|| Counted { times: self.times(sent.service.id, weight), request })
    }

    /// The whole number of requests that this one stands for: fractions add up by service, and none is lost.
    fn times(&mut self, service: u32, weight: f64) -> u32 {
        if weight <= 1.0 {
            return 1;
        }
        let rest = self.rests.entry(service).or_default();
        let whole = (weight + *rest).floor();
        *rest = weight + *rest - whole;
        // Weights lie between 1 and 1,000.
        whole as u32
    }

    /// The service with the number that its captured spans would have.
    fn service(&mut self, named: &Arc<Service>) -> Arc<Service> {
        if let Some((_, known)) = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, named)) {
            return Arc::clone(known);
        }
        let numbered = self.numbered(named);
        self.last = Some((Arc::clone(named), Arc::clone(&numbered)));
        numbered
    }

    fn numbered(&mut self, named: &Service) -> Arc<Service> {
        let pair = (named.namespace.clone(), named.name.clone());
        if let Some(known) = self.services.get(&pair) {
            return Arc::clone(known);
        }
        if self.services.len() >= SERVICES {
            return Services::overflow();
        }
        let service = Arc::new(Service { id: self.numbers.of(&pair.0, &pair.1), ..named.clone() });
        self.services.insert(pair, Arc::clone(&service));
        service
    }
}

impl SpanPipeline {
    /// Counts a received span that was not captured, if it counts; whether it does.
    pub(super) fn count_foreign(&mut self, received: &mut Received) -> bool {
        let Some(mut foreign) = self.foreign.take() else { return false };
        // It is shown with the resource that it came with; of those of one service only the first is counted by.
        let numbered = foreign.service(&received.span.service);
        let own = std::mem::replace(&mut received.span.service, numbered);
        let counted = foreign.counted(received, |method| self.assembler.method(method));
        if let Some(Counted { request, times }) = &counted {
            for _ in 0..*times {
                self.registry.record_foreign(&received.span, request.as_ref());
                if let (Some(objectives), Some(request)) = (&mut self.objectives, request) {
                    objectives.record(request);
                }
            }
        }
        received.span.service = own;
        let counts = counted.is_some();
        if let Some(Counted { request: Some(request), times, .. }) = counted {
            let now = monotonic_ns();
            let Foreign { ends, n_calls, .. } = &mut foreign;
            let end = End { span: Box::new(request), times };
            ends.take(end, now, |call| self.connect_foreign(call, n_calls));
        }
        self.foreign = Some(foreign);
        counts
    }

    /// Calls whose other end has not come.
    pub(super) fn settle_foreign(&mut self, is_last: bool) {
        let Some(mut foreign) = self.foreign.take() else { return };
        let now = if is_last { u64::MAX } else { monotonic_ns() };
        let Foreign { ends, n_calls, .. } = &mut foreign;
        ends.tick(now, |call| self.connect_foreign(call, n_calls));
        self.foreign = Some(foreign);
    }

    /// The edge of a call in the service graph.
    fn connect_foreign(&mut self, mut call: Call, n_calls: &mut u64) {
        let times = match &call {
            Call::Both(_, end) | Call::Client(end) | Call::Server(end) => end.times,
        };
        for _ in 0..times {
            *n_calls += 1;
            self.connect_once(&mut call, *n_calls);
        }
    }

    /// `number`: of the call, as the kernel side numbers exchanges.
    fn connect_once(&mut self, call: &mut Call, number: u64) {
        let (mut client, server) = match call {
            Call::Both(client, server) => (Some(client), Some(server)),
            Call::Client(client) => (Some(client), None),
            Call::Server(server) => (None, Some(server)),
        };
        if let Some(client) = &mut client {
            client.span.exchange = number;
            self.registry.called(&client.span, server.as_ref().map(|server| &server.span.service));
        }
        if let Some(server) = server {
            let caller = client.as_ref().map(|client| (number, &client.span.service));
            self.registry.served(&server.span, caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Arc<Service> {
        Arc::new(Service { name: name.to_owned(), ..Service::default() })
    }

    #[test]
    fn fractions_of_requests_add_up() {
        let mut foreign = Foreign::new(Counting::All, Numbers::default());
        let mut check = |service, weight, n, expected: u32| {
            let times: u32 = (0..n).map(|_| foreign.times(service, weight)).sum();
            assert_eq!(times, expected, "{n} of weight {weight}");
        };
        check(1, 1.0, 10, 10);
        check(2, 1.25, 400, 500);
        check(3, 1.5, 3, 4);
        check(3, 1.5, 1, 2);
        check(4, 1_000.0, 2, 2_000);
    }

    /// A MySQL client counts by its spans although its PostgreSQL calls, and its HTTP calls, are captured.
    #[test]
    fn what_is_captured_is_known_by_side_and_system() {
        let mut foreign = Foreign::new(Counting::Uncaptured, Numbers::default());
        let span = |side, system| {
            let mut span = Span { kind: side, ..Span::blank() };
            if let Some(system) = system {
                span.detail = Detail::Database(crate::span::Database { system, ..Default::default() });
            }
            span
        };
        for captured in [span(SpanKind::Client, None), span(SpanKind::Client, Some("postgresql"))] {
            foreign.captured(&captured);
        }
        let check = |side, system, expected| {
            let span = span(side, system);
            let is_captured = foreign.captured.contains(&kind(&span.service, &span));
            assert_eq!(is_captured, expected, "{side:?} {system:?}");
        };
        check(SpanKind::Client, None, true);
        check(SpanKind::Client, Some("postgresql"), true);
        check(SpanKind::Client, Some("mysql"), false);
        check(SpanKind::Server, None, false);
    }

    #[test]
    fn services_have_the_numbers_of_captured_ones() {
        let numbers = Numbers::default();
        let captured = numbers.of("", "shop");
        let mut foreign = Foreign::new(Counting::Uncaptured, numbers);
        let shop = service("shop");
        let found = foreign.service(&shop);
        assert!(Arc::ptr_eq(&found, &foreign.service(&shop)), "known at once");
        assert_eq!((found.id, &*found.name), (captured, "shop"));
        assert_ne!(foreign.service(&service("far")).id, captured);
        for nth in 0..2 * SERVICES {
            foreign.service(&service(&nth.to_string()));
        }
        assert_eq!(foreign.services.len(), SERVICES);
        let beyond = foreign.service(&service("new"));
        assert_eq!((beyond.id, &*beyond.name), (0, "_OTHER"));
        assert_eq!(foreign.service(&service("far")).name, "far");
    }
}
