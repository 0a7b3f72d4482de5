//! Once its series exist and the store is full, a span is recorded and stored without a single allocation.
//!
//! A binary of its own: its allocator counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use obi::export::store::{Limits as StoreLimits, Store};
use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, Service, Span, SpanKind};

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

fn span(service: u32, kind: SpanKind) -> Span {
    let service = Arc::new(Service { name: format!("service-{service}"), id: service, ..Service::default() });
    Span {
        trace_id: [1; 16],
        span_id: [2; 8],
        parent_span_id: None,
        trace_flags: 0,
        trace_state: String::new(),
        exchange: 1,
        kind,
        start: 1_700_000_000_000_000_000,
        end: 1_700_000_000_000_000_000,
        queue_wait: 1,
        pid: 1,
        service,
        detail: Detail::Http(Http { method: "GET", route: Arc::from(""), ..Http::default() }),
    }
}

/// Makes one of many different spans out of a used one, as the assembler does.
fn refill(span: &mut Span, n: u64, routes: &[Arc<str>]) {
    span.end = span.start + (n % 20_000) * 1_000_000;
    let Detail::Http(http) = &mut span.detail;
    let index = usize::try_from(n).expect("64-bit machine") % routes.len();
    http.route.clone_from(&routes[index]);
    http.status = Some(if n.is_multiple_of(7) { 500 } else { 200 });
    http.error_type = if n.is_multiple_of(7) { "500" } else { "" };
    http.path.clear();
    http.path.push_str(&routes[index]);
    http.server_address.clear();
    http.server_address.push_str("shop.example");
}

#[test]
fn no_allocation_in_steady_state() {
    let routes: Vec<Arc<str>> = (0..500).map(|n| Arc::from(format!("/route/{n:04}"))).collect();
    // With the small limit most spans go to overflow series.
    for series in [10_000, 500] {
        let mut registry = Registry::new(Limits { series, ..Limits::default() });
        let mut store = Store::new(StoreLimits { spans: 1_000, bytes: 16 << 20 });
        let mut run = |from: u64, to: u64| {
            let mut spare = None;
            let mut made = 0;
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for n in from..to {
                let mut next = spare.take().unwrap_or_else(|| {
                    made += 1;
                    let kind = if n.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client };
                    span(u32::try_from(n % 8).expect("below 8"), kind)
                });
                refill(&mut next, n, &routes);
                registry.record(&next);
                spare = store.push(next);
            }
            (made, ALLOCATIONS.load(Ordering::Relaxed) - before)
        };
        let (made, allocations) = run(0, 50_000);
        assert!(made >= 1_000 && allocations > 1_000, "the counter counts: {made} spans, {allocations}");
        let (made, allocations) = run(50_000, 150_000);
        // The first span of a run has no spare: one Arc, one name, two strings.
        assert_eq!(made, 1);
        assert!(allocations <= 8, "{allocations} allocations for 100,000 spans with {series} series");
    }
}
