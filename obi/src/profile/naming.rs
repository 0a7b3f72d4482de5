//! Selected samples to a [`Selection`]: every stack gets names, once.
//!
//! In: [`SelectedSamples`], and what can name a place. Out: a [`Selection`]. Refuses to know how names are found.
//!
//! Where the walk along a stack broke off, a frame in the place of its root says so: `[truncated: no table]`.

use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::{
    GUEST_APART, GUEST_NO_BLOB, GUEST_NO_CALLER, GUEST_NO_CODE, GUEST_NO_FUNCTION, GUEST_NO_METHOD,
    GUEST_NO_THREAD, GUEST_NO_V8, GUEST_UNLINKED, GUEST_UNREADABLE, STACK_COMPLETE, STACK_FOREIGN_MODE,
    STACK_NO_MAPPING, STACK_NO_PROCESS, STACK_NO_PROGRESS, STACK_NO_RULE, STACK_NO_TABLE, STACK_NO_USER,
    STACK_TOO_DEEP, STACK_UNREADABLE,
};

use super::sample::{Fidelity, Frame, Line, Runtime, Sample, Selection, Stack, Symbol};
use super::sample_type::{SampleKind, SampleType};
use super::store::{Places, Release, SelectedSample, SelectedSamples};
use super::waits;
use crate::clock::Clock;

/// Why the walk along a user's stack broke off, as a label's value; `None` when it came to the thread's first frame, or
/// there was no user's stack.
#[must_use]
pub fn truncation(end: u8) -> Option<&'static str> {
    match u32::from(end) {
        STACK_COMPLETE | STACK_NO_USER => None,
        STACK_TOO_DEEP => Some("too_deep"),
        STACK_NO_PROCESS => Some("no_process"),
        STACK_NO_MAPPING => Some("no_mapping"),
        STACK_NO_TABLE => Some("no_table"),
        STACK_NO_RULE => Some("no_rule"),
        STACK_UNREADABLE => Some("unreadable"),
        STACK_NO_PROGRESS => Some("no_progress"),
        STACK_FOREIGN_MODE => Some("foreign_mode"),
        _ => Some("unknown"),
    }
}

/// The frame that stands for what is missing of an interpreter's part of a stack, `enum guest_failure`. Where that part
/// is whole and stands apart from the native one, it says why the walk along that ended.
#[must_use]
pub fn guest_marker(failure: u32, end: u8) -> Frame {
    marker(match failure {
        GUEST_NO_THREAD => "python_no_thread",
        GUEST_UNREADABLE => "python_unreadable",
        GUEST_NO_CODE => "python_no_code",
        GUEST_UNLINKED => "python_unlinked",
        GUEST_NO_METHOD => "java_no_method",
        GUEST_NO_BLOB => "java_no_code",
        GUEST_NO_CALLER => "java_no_caller",
        GUEST_NO_FUNCTION => "node_no_function",
        GUEST_NO_V8 => "node_not_known",
        GUEST_APART => truncation(end).unwrap_or("python_apart"),
        _ => "unknown",
    })
}

/// The frame that says so.
fn marker(reason: &str) -> Frame {
    let line =
        Line { function: format!("[truncated: {}]", reason.replace('_', " ")).into(), ..Line::default() };
    let symbol = Symbol { lines: vec![line], fidelity: Fidelity::Marker, runtime: Runtime::Native };
    Frame { address: 0, is_return: false, mapping: None, symbol: Arc::new(symbol) }
}

/// Names all samples; `types` are those that are taken. `name` is asked once for each frame of each distinct stack,
/// with the process.
pub fn selection<P: Eq + Hash>(
    chosen: &SelectedSamples<P>,
    clock: &Clock,
    types: &[SampleType],
    mut name: impl FnMut(u32, &P) -> Frame,
) -> Selection {
    let mut stacks = HashMap::<Identity<P>, Arc<Stack>, RandomState>::default();
    let mut threads = HashMap::<[u8; 16], Arc<str>, RandomState>::default();
    let mut frames_of = |stack: &Places<P>| -> Vec<Frame> {
        let frames = stack.places.iter().map(|place| name(stack.pid, place));
        frames.chain(truncation(stack.end).map(marker)).collect()
    };
    let samples = chosen.samples.iter().map(|sample| {
        let identity = Identity::of(sample);
        let stack = stacks.entry(identity).or_insert_with(|| Arc::new(stack_of(sample, &mut frames_of)));
        let thread = threads.entry(sample.comm).or_insert_with(|| thread_name(&sample.comm).into());
        Sample {
            kind: sample.kind,
            value: sample.value,
            time: clock.unix(sample.time),
            origin: Arc::clone(&sample.origin),
            stack: Arc::clone(stack),
            tid: sample.tid,
            thread: Arc::clone(thread),
            cpu: sample.cpu,
            link: sample.served.as_ref().map(|served| Arc::clone(&served.link)),
        }
    });
    let samples = samples.collect();
    let (start, end) = (clock.unix(chosen.start), clock.unix(chosen.end));
    let types = types.iter().filter(|taken| match chosen.kind {
        Some(kind) => kind == taken.kind,
        None => taken.kind.is_held(),
    });
    Selection { start, end, types: types.copied().collect(), samples, lost: chosen.lost }
}

/// Who has ended a wait: where, for which route, the name of the thread.
type By<P> = (*const Places<P>, Option<Arc<str>>, [u8; 16]);

/// What decides about the stack that is shown for a sample.
#[derive(PartialEq, Eq, Hash)]
struct Identity<P> {
    stack: *const Places<P>,
    is_wall: bool,
    wait: Option<u32>,
    object: u64,
    release: Option<By<P>>,
}

impl<P> Identity<P> {
    fn of(sample: &SelectedSample<P>) -> Self {
        let route =
            |release: &Release<P>| release.served.as_ref().map(|served| Arc::clone(&served.link.route));
        let release = sample.release.as_deref();
        Self {
            stack: Arc::as_ptr(&sample.stack),
            is_wall: sample.kind == SampleKind::Wall,
            wait: sample.wait.map(|wait| wait.reason),
            object: object_of(sample),
            release: release.map(|release| (Arc::as_ptr(&release.stack), route(release), release.comm)),
        }
    }
}

/// The address of the lock, which separates stacks of different locks; 0 where other types are looked at.
fn object_of<P>(sample: &SelectedSample<P>) -> u64 {
    if sample.kind == SampleKind::Lock { sample.wait.map_or(0, |wait| wait.object) } else { 0 }
}

/// The frames of a sample; of a wait without those of the switch itself, with its reason for a root. Who has ended it
/// stands above its leaf, leaf first: read from the root on, the function that has ended it comes first.
fn stack_of<P>(sample: &SelectedSample<P>, frames_of: &mut impl FnMut(&Places<P>) -> Vec<Frame>) -> Stack {
    let mut frames = Vec::new();
    if let Some(release) = &sample.release {
        // It is in the call that ends waits: the kernel's part says nothing.
        let by =
            frames_of(&release.stack).into_iter().filter(|frame| frame.symbol.runtime != Runtime::Kernel);
        frames.extend(by);
        frames.reverse();
        let route = release.served.as_ref().map(|served| &*served.link.route);
        frames.push(waits::released(route, &thread_name(&release.comm)));
    }
    let mut own = frames_of(&sample.stack);
    if let Some(wait) = sample.wait {
        own.drain(..waits::first_telling(&own));
        frames.append(&mut own);
        frames.extend(Some(object_of(sample)).filter(|object| *object != 0).map(waits::object));
        frames.push(waits::waiting(wait.reason));
    } else {
        frames.append(&mut own);
        frames.extend((sample.kind == SampleKind::Wall).then(waits::running));
    }
    Stack { frames }
}

fn thread_name(comm: &[u8; 16]) -> String {
    let used = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(used).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use obi_ebpf::STACK_ENDS;

    use super::*;
    use crate::profile::store::{RawSample, Store};

    #[test]
    fn every_way_to_end_early_has_a_word_of_its_own() {
        let words: Vec<_> =
            (0..STACK_ENDS).filter_map(|end| truncation(u8::try_from(end).unwrap())).collect();
        let mut distinct = words.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() == words.len() && !words.contains(&"unknown"), "{words:?}");
        assert_eq!(words.len(), STACK_ENDS as usize - 2);
    }

    #[test]
    fn stacks_are_named_once_and_marked_where_they_break_off() {
        let mut store = Store::new(1 << 20);
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"a\nb\xff");
        let no_table = u8::try_from(STACK_NO_TABLE).unwrap();
        for time in 0..10 {
            let end = if time < 5 { 0 } else { no_table };
            let places = [1_u64, 2];
            let (kind, value, exchange, pid, tid, cpu) = (SampleKind::Cpu, 10, 0, 7, 8, 0);
            store.push(RawSample {
                kind,
                value,
                time,
                exchange,
                by_runtime: false,
                pid,
                tid,
                cpu,
                comm,
                places: &places,
                end,
                wait: None,
            });
        }
        let chosen = store.choose(&crate::profile::choose::Filter { end: 100, ..Default::default() });
        let mut asked = Vec::new();
        let cpu = SampleType { kind: SampleKind::Cpu, period: 10 };
        let selection = selection(&chosen, &Clock::anchored(&[]), &[cpu], |pid, place| {
            asked.push((pid, *place));
            marker("test")
        });
        assert_eq!(asked, [(7, 1), (7, 2), (7, 1), (7, 2)]);
        assert_eq!((selection.samples.len(), &*selection.types), (10, &[cpu][..]));
        assert_eq!(&*selection.samples[0].thread, "a\u{fffd}b\u{fffd}");
        let frames = |index: usize| &selection.samples[index].stack.frames;
        assert_eq!((frames(0).len(), frames(9).len()), (2, 3));
        assert_eq!(&*frames(9)[2].symbol.lines[0].function, "[truncated: no table]");
        assert_eq!(frames(9)[2].symbol.fidelity, Fidelity::Marker);
    }
}
