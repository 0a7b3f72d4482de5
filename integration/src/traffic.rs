//! Steady traffic of which a random share fails.
//!
//! In: a server, a rate, a share that may change at any time. Out: requests until it is dropped, and how many of them
//! were good and bad. Refuses to know who watches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::fetch;
use crate::shape::Shape;

/// Running traffic. Dropping it ends it.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Of a thousand requests so many fail.
    failing: AtomicU64,
    stop: AtomicBool,
    good: AtomicU64,
    bad: AtomicU64,
}

impl Traffic {
    /// `rate` requests a second to a server that answers with the status it is asked for.
    #[must_use]
    pub fn start(server: SocketAddr, rate: u32, mut rng: fastrand::Rng) -> Self {
        let shared = Arc::new(Shared::default());
        let ours = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let begun = Instant::now();
            for n in 0_u32.. {
                let due = Duration::from_secs(1) * n / rate;
                thread::sleep(due.saturating_sub(begun.elapsed()));
                if ours.stop.load(Ordering::Relaxed) {
                    return;
                }
                let fails = rng.u64(..1_000) < ours.failing.load(Ordering::Relaxed);
                let status = if fails { 503 } else { 200 };
                let target = Shape { status, ..Shape::default() }.target(&format!("traffic-{n}"));
                let answered = fetch::get(server, &target, "*/*").is_ok_and(|answer| answer.status == status);
                // What was not answered as asked is not counted; a test compares the sums.
                if answered {
                    let counter = if fails { &ours.bad } else { &ours.good };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// From now on so many of a thousand requests fail.
    pub fn fail(&self, of_thousand: u64) {
        self.shared.failing.store(of_thousand, Ordering::Relaxed);
    }

    /// Good and bad requests that have been answered.
    #[must_use]
    pub fn answered(&self) -> (u64, u64) {
        (self.shared.good.load(Ordering::Relaxed), self.shared.bad.load(Ordering::Relaxed))
    }

    /// Ends it; good and bad requests that have been answered.
    #[must_use]
    pub fn finish(mut self) -> (u64, u64) {
        self.end();
        self.answered()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked in a way that a test would not see in the numbers.
            let _ = thread.join();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}
