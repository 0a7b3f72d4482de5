//! Programs through the kernel's verifier, two at a time: nearly all of the agent's start is the verifier's.
//!
//! In: a list and what to do with each. Out: the results in the order of the list. Refuses to know what is loaded.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// More would be quicker where there are more processors; but each verification takes memory of the agent's cgroup.
const WORKERS: usize = 2;

/// Does `work` for each item, on this thread and another one. A panic of either is this thread's.
pub(super) fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let n_others = items.len().min(WORKERS).saturating_sub(1);
    let left = Mutex::new(items.into_iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut done = Vec::new();
        while let Some((nth, item)) = take() {
            done.push((nth, work(item)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (0..n_others).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_the_list() {
        for n in [0, 1, 2, 100] {
            let items: Vec<usize> = (0..n).collect();
            let doubled = in_parallel(items, |item| {
                thread::sleep(std::time::Duration::from_micros(if item % 7 == 0 { 500 } else { 0 }));
                item * 2
            });
            assert_eq!(doubled, (0..n).map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn two_are_under_way_at_the_same_time() {
        // Each waits for the other: alone, neither would end.
        let both = Barrier::new(2);
        assert_eq!(in_parallel(vec![1, 2], |item| (both.wait(), item).1), [1, 2]);
    }

    #[test]
    #[should_panic(expected = "refused")]
    fn a_panic_is_the_callers() {
        in_parallel(vec![1, 2, 3], |item| assert!(item != 3, "refused"));
    }
}
