//! Once its series exist and the store is full, a span is recorded and stored without a single allocation.
//!
//! In: 35,000 different spans. Out: failure when the counter moves.

use std::sync::Arc;

use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, Service, Span, SpanKind};
use obi::span_store::{Limits as StoreLimits, Store};

use super::{allocations, alone};

/// What spans share, as the stages before would hand it out.
struct Shared {
    services: Vec<Arc<Service>>,
    routes: Vec<Arc<str>>,
}

impl Shared {
    fn new() -> Self {
        let service = |id| Arc::new(Service { name: format!("service-{id}"), id, ..Service::default() });
        let routes = (0..500).map(|n| Arc::from(format!("/route/{n:04}")));
        Self { services: (0..8).map(service).collect(), routes: routes.collect() }
    }

    fn span(&self) -> Span {
        Span {
            trace_id: [1; 16],
            span_id: [2; 8],
            start: 1_700_000_000_000_000_000,
            end: 1_700_000_000_000_000_000,
            service: Arc::clone(&self.services[0]),
            detail: Detail::Http(Http {
                method: "GET",
                route: Arc::clone(&self.routes[0]),
                ..Http::default()
            }),
            ..Span::blank()
        }
    }

    /// Makes one of 35,000 different spans out of a used one, as the assembler does.
    fn refill(&self, span: &mut Span, n: usize) {
        let route = &self.routes[n % self.routes.len()];
        let failed = n.is_multiple_of(7);
        span.kind = if n.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client };
        span.end = span.start + (n as u64 % 5_000) * 1_000_000;
        span.service.clone_from(&self.services[n % self.services.len()]);
        span.error_type = if failed { "500" } else { "" };
        let Detail::Http(http) = &mut span.detail else { unreachable!("all are requests") };
        http.route.clone_from(route);
        http.status = Some(if failed { 500 } else { 200 });
        http.path.clear();
        http.path.push_str(route);
        span.server.address.clear();
        span.server.address.push_str("shop.example");
    }
}

#[test]
fn no_allocation_in_steady_state() {
    let _alone = alone();
    let shared = Shared::new();
    // With the small limit most spans go to overflow series.
    for series in [10_000, 500] {
        let mut registry = Registry::new(Limits { series, ..Limits::default() });
        let mut store = Store::new(StoreLimits { spans: 1_000, bytes: 16 << 20, kept_bytes: 1 << 20 });
        let mut spare = None;
        let mut made = 0;
        let mut run = |from: usize, to: usize| {
            let before = (made, allocations());
            for n in from..to {
                let mut next = spare.take().unwrap_or_else(|| {
                    made += 1;
                    Box::new(shared.span())
                });
                shared.refill(&mut next, n);
                registry.record(&next);
                spare = store.push(next);
            }
            (made - before.0, allocations() - before.1)
        };
        let (made, allocations) = run(0, 50_000);
        assert!(made == 1_001 && allocations > 1_000, "the counter counts: {made} spans, {allocations}");
        assert_eq!(run(50_000, 150_000), (0, 0), "(spans, allocations) made, {series} series");
    }
}
