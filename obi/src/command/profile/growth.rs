//! What has been allocated between two moments.
//!
//! In: two selections of the same processes. Out: the later one without what was there in the earlier one, stack by
//! stack. Refuses to know where they come from.

use std::collections::HashMap;

use crate::profile::{Sample, Selection};

/// A stack of a process: its addresses. Samples of a stack may be several, by the size of what was allocated.
type Key = (u32, Vec<u64>);

fn key(sample: &Sample) -> Key {
    (sample.origin.pid, sample.stack.frames.iter().map(|frame| frame.address).collect())
}

/// The later selection without the earlier one; what began meanwhile is whole.
pub(super) fn since(before: &Selection, mut now: Selection) -> Selection {
    let mut known = HashMap::<Key, u64>::new();
    for sample in &before.samples {
        let sum = known.entry(key(sample)).or_default();
        *sum = sum.saturating_add(sample.value);
    }
    for sample in &mut now.samples {
        if let Some(left) = known.get_mut(&key(sample)) {
            let taken = sample.value.min(*left);
            sample.value -= taken;
            *left -= taken;
        }
    }
    now.samples.retain(|sample| sample.value > 0);
    now.start = before.start;
    now
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profile::{Frame, Origin, SampleKind, Stack, Symbol};

    fn sample(pid: u32, addresses: &[u64], value: u64) -> Sample {
        let frame = |address: &u64| Frame {
            address: *address,
            is_return: true,
            mapping: None,
            symbol: Arc::new(Symbol::default()),
        };
        Sample {
            kind: SampleKind::Alloc,
            value,
            time: 1,
            origin: Arc::new(Origin { pid, ..Origin::default() }),
            stack: Arc::new(Stack { frames: addresses.iter().map(frame).collect() }),
            tid: pid,
            thread: "".into(),
            cpu: 0,
            link: None,
        }
    }

    #[test]
    fn what_was_there_before_does_not_count() {
        let of = |start, samples| Selection { start, end: start + 1, samples, ..Selection::default() };
        let before = of(10, vec![sample(1, &[7, 8], 100), sample(1, &[7, 8], 30), sample(1, &[9], 50)]);
        let now = of(
            90,
            vec![
                sample(1, &[7, 8], 110),
                sample(1, &[7, 8], 60),
                sample(1, &[9], 50),
                sample(1, &[6], 5),
                // Another process, with the same program.
                sample(2, &[9], 4),
            ],
        );
        let grown = since(&before, now);
        let values: Vec<(Key, u64)> = grown.samples.iter().map(|it| (key(it), it.value)).collect();
        assert_eq!(values, [((1, vec![7, 8]), 40), ((1, vec![6]), 5), ((2, vec![9]), 4)]);
        assert_eq!((grown.start, grown.end), (10, 91));
    }
}
