//! Once its series exist and the store is full, a span is recorded and stored without a single allocation.
//!
//! A binary of its own: its allocator counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, Service, Span, SpanKind};
use obi::span_store::{Limits as StoreLimits, Store};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's demand.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let shared = Shared::new();
    // With the small limit most spans go to overflow series.
    for series in [10_000, 500] {
        let mut registry = Registry::new(Limits { series, ..Limits::default() });
        let mut store = Store::new(StoreLimits { spans: 1_000, bytes: 16 << 20, kept_bytes: 1 << 20 });
        let mut spare = None;
        let mut made = 0;
        let mut run = |from: usize, to: usize| {
            let before = (made, ALLOCATIONS.load(Ordering::Relaxed));
            for n in from..to {
                let mut next = spare.take().unwrap_or_else(|| {
                    made += 1;
                    shared.span()
                });
                shared.refill(&mut next, n);
                registry.record(&next);
                spare = store.push(next);
            }
            (made - before.0, ALLOCATIONS.load(Ordering::Relaxed) - before.1)
        };
        let (made, allocations) = run(0, 50_000);
        assert!(made == 1_001 && allocations > 1_000, "the counter counts: {made} spans, {allocations}");
        assert_eq!(run(50_000, 150_000), (0, 0), "(spans, allocations) made, {series} series");
    }
}
