//! What the goroutines of a program do: their stacks, and where each was made.
//!
//! In: where the runtime keeps them, the process's memory. Out: [`Goroutines`]s: how many have the same stack. One that
//! does not run has its stack pointer and frame pointer in its descriptor; callers are found by frame pointers, which
//! Go's compiler keeps on x86-64. Of one that runs, or has moved on while it was read, only its first function is
//! known. Those of the runtime itself are left out, as for `runtime.NumGoroutine`. Refuses to know names.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::layout::{Layout, STACK, STACK_POINTER, START};
use super::{Program, Unread};
use crate::capture::guest::Memory;
use crate::capture::tls::elf::Source;

/// A frame of a goroutine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeAddress {
    /// As the process sees it.
    pub address: u64,
    /// It is behind a call.
    pub is_return: bool,
}

/// Goroutines that do the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goroutines {
    /// Leaf first; the last frame is the `go` statement that has made them.
    pub stack: Vec<CodeAddress>,
    /// The frames between the first function and the leaf are known.
    pub is_complete: bool,
    /// How many.
    pub n: u64,
}

/// Goroutines whose stacks are walked; of more, one stands for several.
const WALKED: u64 = 16_384;
/// Goroutines of one program.
const MOST: u64 = 1 << 24;
/// Frames of a stack.
const FRAMES: usize = 128;
/// Bytes of a stack that are read: its innermost frames.
const STACK_BYTES: u64 = 32 * 1024;
/// Bytes of a descriptor that are read.
const DESCRIPTOR: usize = 320;
/// A goroutine that moves on while it is read is read again.
const TRIES: usize = 3;

/// `_Gscan`: the collector looks at it.
const SCANNED: u32 = 0x1000;
const RUNNABLE: u32 = 1;
const RUNNING: u32 = 2;
const IN_SYSTEM_CALL: u32 = 3;
const WAITING: u32 = 4;
const COPIED: u32 = 8;
const PREEMPTED: u32 = 9;

impl<S: Source + Clone> Program<S> {
    /// The goroutines of a process of this program. `bias` is to be added to the file's addresses, `is_code` says
    /// whether an address of the process is one of code.
    ///
    /// # Errors
    /// When what is there is no list of goroutines.
    pub fn goroutines(
        &self,
        memory: &impl Memory,
        bias: u64,
        is_code: impl Fn(u64) -> bool,
    ) -> Result<Vec<Goroutines>, Unread> {
        let (number, list) = self.places.goroutines.clone()?;
        let word =
            |address: u64| memory.word(address).ok_or_else(|| Unread::Memory("no such address".to_owned()));
        let (n, list) = (word(bias.wrapping_add(number))?, word(bias.wrapping_add(list))?);
        if n > MOST || (n > 0) != (list != 0) {
            return Err(Unread::Proof("list of goroutines"));
        }
        let end = (bias.wrapping_add(self.places.end.0), bias.wrapping_add(self.places.end.1));
        let all = List { address: list, n, layout: self.layout, end };
        let mut known = HashMap::<u64, bool, RandomState>::default();
        let is_own =
            |start: u64| !*known.entry(start).or_insert_with(|| self.is_of_runtime(start.wrapping_sub(bias)));
        all.read(memory, is_code, is_own)
    }
}

/// Where the goroutines of a process are.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// Of their addresses.
    address: u64,
    n: u64,
    layout: Layout,
    /// Range of what goroutines end in.
    end: (u64, u64),
}

impl List {
    /// So many at an address, of a program that this version of Go has made.
    ///
    /// # Errors
    /// When that version is not known.
    pub fn new(version: &str, address: u64, n: u64) -> Result<Self, Unread> {
        Ok(Self { address, n: n.min(MOST), layout: Layout::of(version)?, end: (0, 0) })
    }

    /// Reads those that are the program's own, by where they begin.
    ///
    /// # Errors
    /// When most are no goroutines.
    pub fn read(
        &self,
        memory: &impl Memory,
        is_code: impl Fn(u64) -> bool,
        mut is_own: impl FnMut(u64) -> bool,
    ) -> Result<Vec<Goroutines>, Unread> {
        let reader = Reader { memory, layout: self.layout, is_code, end: self.end };
        let step = self.n.div_ceil(WALKED).max(1);
        let mut found = HashMap::<(Vec<CodeAddress>, bool), u64, RandomState>::default();
        let (mut seen, mut odd) = (0_u64, 0_u64);
        for index in (0..self.n).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let Some(address) = memory.word(self.address.wrapping_add(index * 8)) else {
                return Err(Unread::Memory("the list of goroutines is not there".to_owned()));
            };
            match reader.read(address) {
                Read::None => {}
                Read::Odd => odd += 1,
                Read::One { start, stack, is_complete } => {
                    seen += 1;
                    if is_own(start) {
                        *found.entry((stack, is_complete)).or_default() += step;
                    }
                }
            }
        }
        // Some may be in the making; where most are nothing, or none is, a newer Go has them otherwise.
        if odd > seen || found.is_empty() {
            return Err(Unread::Proof("list of goroutines"));
        }
        let goroutines = |((stack, is_complete), n)| Goroutines { stack, is_complete, n };
        Ok(found.into_iter().map(goroutines).collect())
    }
}

/// What came of a descriptor.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// None that is in use.
    None,
    /// It is no goroutine.
    Odd,
    /// One, that began in the function at `start`.
    One { start: u64, stack: Vec<CodeAddress>, is_complete: bool },
}

struct Reader<'a, M, F> {
    memory: &'a M,
    layout: Layout,
    is_code: F,
    /// Range of what goroutines end in.
    end: (u64, u64),
}

/// What a descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descriptor {
    status: u32,
    /// First address, and the one behind the last.
    stack: (u64, u64),
    stack_pointer: u64,
    instruction: u64,
    frame_pointer: u64,
    made_at: u64,
    start: u64,
}

impl<M: Memory, F: Fn(u64) -> bool> Reader<'_, M, F> {
    fn read(&self, address: u64) -> Read {
        let mut descriptor = match self.descriptor(address) {
            Some(descriptor) => descriptor,
            None => return Read::Odd,
        };
        for _ in 0..TRIES {
            match descriptor.status {
                RUNNABLE | IN_SYSTEM_CALL | WAITING | PREEMPTED => {}
                _ => break,
            }
            let walked = self.walk(&descriptor);
            let Some(after) = self.descriptor(address) else { return Read::Odd };
            if after == descriptor {
                let Some(stack) = walked else { return Read::Odd };
                return self.one(&descriptor, stack, true);
            }
            descriptor = after;
        }
        // It runs: its registers are on a processor.
        let first = CodeAddress { address: descriptor.start, is_return: false };
        match descriptor.status {
            RUNNABLE | RUNNING | IN_SYSTEM_CALL | WAITING | COPIED | PREEMPTED => {
                let is_it = (self.is_code)(first.address);
                if is_it { self.one(&descriptor, vec![first], false) } else { Read::Odd }
            }
            _ => Read::None,
        }
    }

    /// With the statement that has made it; the program's first goroutine has none.
    fn one(&self, descriptor: &Descriptor, mut stack: Vec<CodeAddress>, is_complete: bool) -> Read {
        if (self.is_code)(descriptor.made_at) {
            stack.push(CodeAddress { address: descriptor.made_at, is_return: true });
        }
        Read::One { start: descriptor.start, stack, is_complete }
    }

    fn descriptor(&self, address: u64) -> Option<Descriptor> {
        let mut bytes = [0; DESCRIPTOR];
        if !self.memory.read(address, &mut bytes) {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let Layout { frame_pointer, status, made_at } = self.layout;
        Some(Descriptor {
            status: word(status)? as u32 & !SCANNED,
            stack: (word(STACK)?, word(STACK + 8)?),
            stack_pointer: word(STACK_POINTER)?,
            instruction: word(STACK_POINTER + 8)?,
            frame_pointer: word(frame_pointer)?,
            made_at: word(made_at)?,
            start: word(made_at + START)?,
        })
    }

    /// The frames of a goroutine that does not run; none if its descriptor makes no sense.
    fn walk(&self, descriptor: &Descriptor) -> Option<Vec<CodeAddress>> {
        let Descriptor { stack: (low, high), stack_pointer, instruction, start, .. } = *descriptor;
        if !(low..high).contains(&stack_pointer) || !(self.is_code)(instruction) {
            return None;
        }
        // What has not begun yet has no call behind it.
        let mut frames = vec![CodeAddress { address: instruction, is_return: instruction != start }];
        let length = (high - stack_pointer).min(STACK_BYTES);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        if !self.memory.read(stack_pointer, &mut bytes) {
            return None;
        }
        let word = |address: u64| {
            let at = usize::try_from(address.checked_sub(stack_pointer)?).ok()?;
            Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let mut frame = descriptor.frame_pointer;
        while frames.len() < FRAMES {
            let (Some(outer), Some(caller)) = (word(frame), word(frame.wrapping_add(8))) else { break };
            if (self.end.0..self.end.1).contains(&caller) || !(self.is_code)(caller) {
                break;
            }
            frames.push(CodeAddress { address: caller, is_return: true });
            if outer <= frame {
                break;
            }
            frame = outer;
        }
        Some(frames)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capture::guest::memory::Piece;

    /// Where the descriptor lies, and the stack behind it.
    const AT: u64 = 0x7000;
    const LOW: u64 = AT + DESCRIPTOR as u64;
    const HIGH: u64 = LOW + 0x100;
    const CODE: std::ops::Range<u64> = 0x40_0000..0x50_0000;
    const START: u64 = CODE.start + 0x10;
    const MADE: u64 = CODE.start + 0x20;
    const LEAF: u64 = CODE.start + 0x30;
    const CALLER: u64 = CODE.start + 0x40;
    const END: (u64, u64) = (CODE.start + 0x50, CODE.start + 0x60);

    fn layout() -> Layout {
        Layout::of("go1.26.8").unwrap()
    }

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// A goroutine that waits in a function which another has called.
    fn waiting(status: u32) -> Vec<u8> {
        let mut bytes = vec![0; DESCRIPTOR + 0x100];
        let Layout { frame_pointer, status: at, made_at } = layout();
        let words = [
            (STACK, LOW),
            (STACK + 8, HIGH),
            (STACK_POINTER, LOW + 0x40),
            (STACK_POINTER + 8, LEAF),
            (frame_pointer, LOW + 0x50),
            (at, u64::from(status)),
            (made_at, MADE),
            (made_at + super::START, START),
            // Frames: each the outer frame, and what it returns to.
            (DESCRIPTOR + 0x50, LOW + 0x70),
            (DESCRIPTOR + 0x58, CALLER),
            (DESCRIPTOR + 0x70, 0),
            (DESCRIPTOR + 0x78, END.0 + 1),
        ];
        words.into_iter().for_each(|(at, word)| put(&mut bytes, at, word));
        bytes
    }

    fn read(bytes: Vec<u8>) -> Read {
        let memory = Piece { start: AT, bytes };
        let is_code = |address| CODE.contains(&address);
        Reader { memory: &memory, layout: layout(), is_code, end: END }.read(AT)
    }

    fn one(frames: &[(u64, bool)], is_complete: bool) -> Read {
        let frame =
            |(address, is_return): &(u64, bool)| CodeAddress { address: *address, is_return: *is_return };
        Read::One { start: START, stack: frames.iter().map(frame).collect(), is_complete }
    }

    #[test]
    fn callers_are_found_by_frame_pointers() {
        let whole = one(&[(LEAF, true), (CALLER, true), (MADE, true)], true);
        for status in [WAITING, RUNNABLE, IN_SYSTEM_CALL, PREEMPTED, WAITING | SCANNED] {
            assert_eq!(read(waiting(status)), whole, "{status}");
        }
        let first = one(&[(START, false), (MADE, true)], false);
        for status in [RUNNING, COPIED, RUNNING | SCANNED] {
            assert_eq!(read(waiting(status)), first, "{status}");
        }
        for status in [0, 6, 0x77] {
            assert_eq!(read(waiting(status)), Read::None, "{status}");
        }
    }

    #[test]
    fn what_has_not_begun_has_no_call_behind_it() {
        let mut bytes = waiting(RUNNABLE);
        put(&mut bytes, STACK_POINTER + 8, START);
        put(&mut bytes, layout().frame_pointer, 0);
        assert_eq!(read(bytes), one(&[(START, false), (MADE, true)], true));
    }

    #[test]
    fn a_chain_that_leads_nowhere_ends() {
        let check = |at: usize, word: u64, expected: &[(u64, bool)]| {
            let mut bytes = waiting(WAITING);
            put(&mut bytes, at, word);
            assert_eq!(read(bytes), one(expected, true), "{at} {word:x}");
        };
        let both = [(LEAF, true), (CALLER, true), (MADE, true)];
        // Back to itself; below the stack; beyond it; no code.
        check(DESCRIPTOR + 0x50, LOW + 0x50, &both);
        check(DESCRIPTOR + 0x50, LOW, &both);
        check(DESCRIPTOR + 0x50, HIGH - 8, &both);
        check(DESCRIPTOR + 0x58, 7, &[(LEAF, true), (MADE, true)]);
        check(layout().frame_pointer, u64::MAX, &[(LEAF, true), (MADE, true)]);
    }

    #[test]
    fn what_is_no_goroutine_is_none() {
        let check = |at: usize, word: u64| {
            let mut bytes = waiting(WAITING);
            put(&mut bytes, at, word);
            assert_eq!(read(bytes), Read::Odd, "{at} {word:x}");
        };
        check(STACK_POINTER, HIGH);
        check(STACK_POINTER + 8, 7);
        check(STACK + 8, HIGH + 0x1000);
        assert_eq!(read(vec![0; 8]), Read::Odd);
    }

    proptest! {
        #[test]
        fn whatever_is_there_ends(
            changes in proptest::collection::vec(
                (0..(DESCRIPTOR + 0x100) / 8, prop_oneof![any::<u64>(), LOW..HIGH, CODE]),
                0..20,
            ),
        ) {
            let mut bytes = waiting(WAITING);
            changes.into_iter().for_each(|(at, word)| put(&mut bytes, at * 8, word));
            if let Read::One { stack, .. } = read(bytes) {
                prop_assert!(stack.len() <= FRAMES + 1);
            }
        }
    }
}
