//! How many agents run at a time in one test binary.
//!
//! In: who wants to start one, alone or beside others. Out: a [`Seat`], which is held for as long as that agent runs.
//! Refuses to know what agents do.
//!
//! Two agents see the same machine and do not meet, and most of a test's time is spent waiting. But at saturation
//! they would disturb each other, so what measures or floods takes all seats.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Agents at a time: as many as the smallest machine that runs the tests has processors.
const SEATS: usize = 2;

static TAKEN: Mutex<Taken> = Mutex::new(Taken { seats: 0, waits_for_all: 0 });
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
struct Taken {
    seats: usize,
    /// Those who want all: nobody else gets one before them, or they would wait for ever.
    waits_for_all: usize,
}

/// The right to run an agent. Dropping it gives it back.
#[derive(Debug)]
pub struct Seat {
    seats: usize,
}

impl Seat {
    /// Waits for one.
    #[must_use]
    pub fn beside_others() -> Self {
        let mut taken = lock();
        while taken.waits_for_all > 0 || taken.seats >= SEATS {
            taken = CHANGED.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        taken.seats += 1;
        Self { seats: 1 }
    }

    /// Waits until there is no other, and keeps others away.
    #[must_use]
    pub fn alone() -> Self {
        let mut taken = lock();
        taken.waits_for_all += 1;
        while taken.seats > 0 {
            taken = CHANGED.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        taken.waits_for_all -= 1;
        taken.seats = SEATS;
        Self { seats: SEATS }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock().seats -= self.seats;
        CHANGED.notify_all();
    }
}

fn lock() -> MutexGuard<'static, Taken> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_is_alone_and_others_are_few() {
        let running = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..32 {
                let running = &running;
                scope.spawn(move || {
                    let is_alone = number % 4 == 0;
                    let seat = if is_alone { Seat::alone() } else { Seat::beside_others() };
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= if is_alone { 1 } else { SEATS }, "{now} at a time");
                    thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(seat);
                });
            }
        });
        assert_eq!(lock().seats, 0);
    }
}
