//! Machine code of one function on arm64, as far as the choice of probe points needs it.
//!
//! In: a function's bytes and their address. Out, of any function: an instruction near its beginning that the kernel
//! simulates, with the arguments still in their registers; all its returns. Of Go's (the ABI of 1.18 and later): the
//! jump of its check of the stack; the jump behind a call that looks at the call's error, with the results still in
//! their registers; where the function's first argument is kept. Proven from the code, whatever compiler has made it;
//! what is not understood is no answer. Encodings: Arm Architecture Reference Manual, C4. Pure.
//!
//! Jumps, returns and relative addresses are simulated (`arch/arm64/kernel/probes/decode-insn.c`). Instructions all
//! have one word, so a register that an instruction may write is read off its fields: too many are assumed, never too
//! few.

mod word;

use std::collections::BTreeSet;

use self::word::{
    ADD, LOWER, LOWER_OR_SAME, Memory, POINTER, SETS_FLAGS, STACK, SUB, brings_back, field, immediate,
    is_conditional, is_immediate, is_relative, loaded_word, may_write, memory, pushed_link, stored_at,
    writes_stack,
};
use super::Numbers;

/// A function, by its words.
#[derive(Debug)]
pub(in super::super) struct Function {
    address: u64,
    words: Vec<u32>,
    /// Indexes that direct jumps go to.
    targets: BTreeSet<usize>,
}

/// Where a call's results can be read, and where the function's own first argument is then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Received {
    /// The jump that is taken by whether the call's error is none.
    pub(in super::super) address: u64,
    /// From the frame pointer (`x29`) to the function's first argument, bytes.
    pub(in super::super) home: u64,
}

/// `ldr x16,[x28,#16]`: of what is running, the lowest address that the stack may come down to.
const LOAD_GUARD: u32 = 0xf940_0b90;
/// `cmp sp,x16`.
const COMPARE_STACK: u32 = 0xeb30_63ff;
/// `cmp x17,x16`.
const COMPARE_LOWERED: u32 = 0xeb10_023f;
/// `mov x17,sp`.
const COPY_STACK: u32 = 0x9100_03f1;
/// `stur x29,[sp,#-8]`, `sub x29,sp,#8`, `mov sp,x20`, `stp x29,x30,[x20,#-8]`, `sub x29,sp,#24`, `ret`.
const SAVE_POINTER: u32 = 0xf81f_83fd;
const SET_POINTER: u32 = 0xd100_23fd;
const SET_STACK: u32 = 0x9100_029f;
const SAVE_PAIR: u32 = 0xa93f_fa9d;
const SET_POINTER_OF_COPY: u32 = 0xd100_63fd;
const RETURN: u32 = 0xd65f_03c0;

/// The results of `decrypt(record) ([]byte, recordType, error)`; of the error the first word, which is the last here.
const RESULTS: [u32; 5] = [0, 1, 2, 3, ERROR];
const ERROR: u32 = 4;
/// Words behind a call that are looked at.
const BEHIND: usize = 10;
/// `mov x1,x0`.
const COPY_FIRST: u32 = 0xaa00_03e1;
/// Words from the first that brings a pointer back to the return.
const END: usize = 5;

/// What an instruction does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    /// To an index, or to another function.
    Jump(Option<usize>),
    /// To an index, another function, or the next one.
    Branch(Option<usize>),
    /// It comes back.
    Call,
    Return,
    Trap,
    Unknown,
}

impl Function {
    /// Of any length; bytes behind the last whole word are none.
    pub(in super::super) fn whole(address: u64, bytes: &[u8]) -> Self {
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut function = Self { address, words, targets: BTreeSet::new() };
        let flows = (0..function.words.len()).map(|index| function.flow(index));
        function.targets = flows
            .filter_map(|flow| match flow {
                Flow::Jump(target) | Flow::Branch(target) => target,
                _ => None,
            })
            .collect();
        function
    }

    /// The first instruction that the kernel simulates, if every call passes it with its first `n_arguments` arguments
    /// in their registers.
    pub(in super::super) fn entry(&self, n_arguments: u32) -> Option<u64> {
        for (index, word) in self.words.iter().enumerate() {
            // To the first of them jumps a function that begins again.
            if index > 0 && self.targets.contains(&index) {
                return None;
            }
            let flow = self.flow(index);
            if flow != Flow::Next || is_relative(*word) {
                return (!matches!(flow, Flow::Trap | Flow::Unknown)).then(|| self.at(index));
            }
            if (0..n_arguments).any(|argument| may_write(*word, argument)) {
                return None;
            }
        }
        None
    }

    /// The returns, if every way out of the function passes one of them; the result is in its register there.
    /// `is_whole`: nothing of the function is behind the bytes, so that a call at their end never comes back.
    pub(in super::super) fn returns(&self, is_whole: bool) -> Option<Vec<u64>> {
        let mut returns = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut to_do = vec![0];
        while let Some(index) = to_do.pop() {
            if index >= self.words.len() {
                return None;
            }
            if !seen.insert(index) {
                continue;
            }
            match self.flow(index) {
                Flow::Call if is_whole && index + 1 == self.words.len() => {}
                Flow::Next | Flow::Call => to_do.push(index + 1),
                Flow::Branch(Some(target)) => to_do.extend([index + 1, target]),
                Flow::Jump(Some(target)) => to_do.push(target),
                Flow::Return => {
                    returns.insert(self.at(index));
                }
                Flow::Trap => {}
                // A jump elsewhere returns there.
                Flow::Branch(None) | Flow::Jump(None) | Flow::Unknown => return None,
            }
        }
        (!returns.is_empty()).then(|| returns.into_iter().collect())
    }

    /// The jump of the check of the stack; every call passes it with all its arguments in their registers, since what
    /// comes before it writes `x16` and `x17` only. Where it is taken, the function begins again later.
    pub(in super::super) fn stack_check(&self) -> Option<u64> {
        self.check_index().map(|index| self.at(index))
    }

    /// The jump behind the only call of `target` that is taken by whether its error is none, all results in their
    /// registers; and where the function's first argument is, if every way there has stored it in its home, and nothing
    /// else is ever put there.
    pub(in super::super) fn received(&self, target: u64) -> Option<Received> {
        let call = self.only_call(target)?;
        let frame = self.frame()?;
        let home = frame.size.checked_add(8)?;
        let stores = self.stores_to(home, 0, frame.body)?;
        if !self.passes(frame.body, call, &stores) {
            return None;
        }
        // The frame pointer is a word below the stack pointer.
        Some(Received { address: self.error_check(call)?, home: home.checked_add(8)? })
    }

    /// The only call of `taker`, if it comes straight behind the only one of `maker` and has that one's result for its
    /// second argument.
    pub(in super::super) fn handed_on(&self, maker: u64, taker: u64) -> Option<u64> {
        let made = self.only_call(maker)?;
        let (mut in_first, mut in_second) = (true, false);
        for index in self.behind(made) {
            let word = self.words[index];
            match self.flow(index) {
                Flow::Call => {
                    return (in_second && self.only_call(taker) == Some(index)).then(|| self.at(index));
                }
                Flow::Next => {}
                _ => return None,
            }
            let moved = in_first && word == COPY_FIRST;
            in_second = moved || in_second && !may_write(word, 1);
            in_first &= !may_write(word, 0);
        }
        None
    }

    /// Behind the only call of `started`, a word of the goroutine in the second argument is stored in another object:
    /// `newg.parentGoid = callergp.goid`, the first thing that Go does there since 1.21.
    pub(in super::super) fn numbers(&self, started: u64) -> Option<Numbers> {
        let home = self.home_of_second_argument()?;
        let call = self.only_call(started)?;
        let (mut creator, mut number): (Option<u32>, Option<(u32, u64)>) = (None, None);
        for index in self.behind(call) {
            let word = self.words[index];
            if self.flow(index) != Flow::Next {
                return None;
            }
            if let Some((register, own)) = number
                && let Some((object, at)) = stored_at(word, register).filter(|(object, _)| *object != STACK)
            {
                let is_another = Some(object) != creator && object != register;
                let at = u64::try_from(at).unwrap_or(0);
                return (is_another && own != at && own != 0 && at != 0)
                    .then_some(Numbers { own, creator: at });
            }
            let loaded = loaded_word(word);
            let read = loaded.filter(|(_, base, _)| Some(*base) == creator);
            let reload = loaded.filter(|(_, base, at)| (*base, *at) == (STACK, home));
            creator = creator.filter(|register| !may_write(word, *register));
            number = number.filter(|(register, _)| !may_write(word, *register));
            if let Some((register, _, at)) = read {
                number = Some((register, at));
            } else if let Some((register, ..)) = reload {
                creator = Some(register);
            }
        }
        None
    }

    /// What every run executes behind this word, as far as nothing jumps there.
    fn behind(&self, index: usize) -> impl Iterator<Item = usize> {
        let behind = (index + 1..self.words.len()).take(BEHIND);
        behind.take_while(|index| !self.targets.contains(index))
    }

    /// From the stack pointer to the home of the second argument, if it is stored there before anything is called, and
    /// nothing else ever is.
    fn home_of_second_argument(&self) -> Option<u64> {
        let frame = self.frame()?;
        let home = frame.size.checked_add(16)?;
        let stores = self.stores_to(home, 1, frame.body)?;
        let only = *stores.first().filter(|_| stores.len() == 1)?;
        let is_first = (frame.body..only)
            .all(|index| self.flow(index) == Flow::Next && !may_write(self.words[index], 1));
        let merges = self.targets.range(frame.body..=only).next().is_some();
        (is_first && !merges).then_some(home)
    }

    fn at(&self, index: usize) -> u64 {
        self.address + 4 * index as u64
    }

    fn check_index(&self) -> Option<usize> {
        let word = |index: usize| self.words.get(index).copied();
        if word(0)? != LOAD_GUARD {
            return None;
        }
        let index = match word(1)? {
            COMPARE_STACK => 2,
            second if second == COPY_STACK || is_immediate(second, SUB, STACK, 17) => {
                (word(2)? == COMPARE_LOWERED).then_some(3)?
            }
            // A frame of pages: where that is more than there is, the stack must grow, too.
            second if is_immediate(second, SUB | SETS_FLAGS, STACK, 17) => {
                (is_conditional(word(2)?, LOWER) && word(3)? == COMPARE_LOWERED).then_some(4)?
            }
            _ => return None,
        };
        let merges = self.targets.range(1..=index).next().is_some();
        (is_conditional(word(index)?, LOWER_OR_SAME) && !merges).then_some(index)
    }

    /// What the word at `index` does next.
    fn flow(&self, index: usize) -> Flow {
        let word = self.words[index];
        let to = |bits: u32, at: u32| {
            let target = i64::try_from(index).ok()?.checked_add(field(word, at, bits))?;
            usize::try_from(target).ok().filter(|target| *target < self.words.len())
        };
        match word {
            RETURN => Flow::Return,
            _ if word & 0xfc00_0000 == 0x1400_0000 => Flow::Jump(to(26, 0)),
            _ if word & 0xfc00_0000 == 0x9400_0000 => Flow::Call,
            // b.cond
            _ if word & 0xff00_0010 == 0x5400_0000 => Flow::Branch(to(19, 5)),
            // cbz, cbnz
            _ if word & 0x7e00_0000 == 0x3400_0000 => Flow::Branch(to(19, 5)),
            // tbz, tbnz
            _ if word & 0x7e00_0000 == 0x3600_0000 => Flow::Branch(to(14, 5)),
            // blr
            _ if word & 0xffff_fc1f == 0xd63f_0000 => Flow::Call,
            // brk
            _ if word & 0xffe0_001f == 0xd420_0000 => Flow::Trap,
            // hint, barrier, mrs, msr
            _ if word & 0xffc0_0000 == 0xd500_0000 => Flow::Next,
            _ if word >> 26 & 7 == 5 => Flow::Unknown,
            // Reserved, SVE and SME.
            _ if word >> 25 & 15 < 4 => Flow::Unknown,
            _ => Flow::Next,
        }
    }

    fn only_call(&self, target: u64) -> Option<usize> {
        let goes = |(index, word): (usize, &u32)| {
            let distance = 4 * field(*word, 0, 26);
            let is_direct = *word & 0x7c00_0000 == 0x1400_0000;
            (is_direct && self.at(index).wrapping_add_signed(distance) == target).then_some(index)
        };
        let mut found = self.words.iter().enumerate().filter_map(goes);
        let index = found.next().filter(|_| found.next().is_none())?;
        (self.flow(index) == Flow::Call).then_some(index)
    }

    fn error_check(&self, call: usize) -> Option<u64> {
        for index in self.behind(call) {
            let word = self.words[index];
            match self.flow(index) {
                // cbz, cbnz of the whole register
                Flow::Branch(_) if word & 0xfe00_001f == 0xb400_0000 | ERROR => return Some(self.at(index)),
                Flow::Next if RESULTS.iter().all(|result| !may_write(word, *result)) => {}
                _ => return None,
            }
        }
        None
    }

    /// How the function makes its frame, if it does so in a known way right behind the check of the stack, and leaves
    /// it alone until it ends.
    fn frame(&self) -> Option<Frame> {
        let from = self.check_index()? + 1;
        let word = |offset: usize| self.words.get(from + offset).copied();
        let frame = if let Some(size) = pushed_link(word(0)?) {
            ([word(1)?, word(2)?] == [SAVE_POINTER, SET_POINTER]).then_some(Frame { size, body: from + 3 })?
        } else {
            let size = immediate(word(0)?).filter(|_| is_immediate(self.words[from], SUB, STACK, 20))?;
            let rest = [word(1)?, word(2)?, word(3)?];
            (rest == [SAVE_PAIR, SET_STACK, SET_POINTER]).then_some(Frame { size, body: from + 4 })?
        };
        let moves =
            |index: &usize| may_write(self.words[*index], POINTER) || writes_stack(self.words[*index]);
        let mut moved = (frame.body..self.words.len()).filter(moves);
        let is_calm = moved.all(|index| self.ends_from(index) || self.is_of_copy(index));
        is_calm.then_some(frame)
    }

    /// From here on only pointers are brought back, and the function returns.
    fn ends_from(&self, index: usize) -> bool {
        let rest = self.words.iter().skip(index).take(END);
        rest.copied().find(|word| !brings_back(*word)) == Some(RETURN)
    }

    /// Around the call of a routine that copies or clears, which has a frame for itself.
    fn is_of_copy(&self, index: usize) -> bool {
        let is = |at: usize, word: u32| self.words.get(at) == Some(&word);
        let calls = |at: usize| at < self.words.len() && self.flow(at) == Flow::Call;
        is(index, SET_POINTER_OF_COPY) && calls(index + 1) && is(index + 2, SET_POINTER)
            || index >= 2 && is(index, SET_POINTER) && calls(index - 1) && is(index - 2, SET_POINTER_OF_COPY)
    }

    /// What stores to the home (so many bytes above the stack pointer), if all of it stores the whole `register`, and
    /// nothing hands out its address.
    fn stores_to(&self, home: u64, register: u32, body: usize) -> Option<BTreeSet<usize>> {
        let mut stores = BTreeSet::new();
        for (index, word) in self.words.iter().copied().enumerate().skip(body) {
            let above = match word >> 5 & 31 {
                STACK => home,
                POINTER => home + 8,
                _ => continue,
            };
            match memory(word) {
                Memory::None => {
                    let adds = is_immediate(word, ADD, word >> 5 & 31, word & 31);
                    if adds && immediate(word).is_some_and(|at| (above..above + 8).contains(&at)) {
                        return None;
                    }
                }
                Memory::Load { .. } => {}
                Memory::Store { at, bytes } if at >= signed(above + 8) || at + bytes <= signed(above) => {}
                Memory::Store { .. }
                    if stored_at(word, register).map(|(_, at)| at) == Some(signed(above)) =>
                {
                    stores.insert(index);
                }
                Memory::Store { .. } | Memory::Unknown => return None,
            }
        }
        Some(stores)
    }

    /// Whether every way from `body` to `goal` passes one of the `stores` while the first argument is in its register.
    fn passes(&self, body: usize, goal: usize, stores: &BTreeSet<usize>) -> bool {
        let mut seen = BTreeSet::new();
        let mut passed = BTreeSet::new();
        let mut to_do = vec![(body, true)];
        while let Some((index, holds)) = to_do.pop() {
            if !seen.insert((index, holds)) {
                continue;
            }
            if index == goal || index >= self.words.len() {
                return false;
            }
            if stores.contains(&index) {
                if !holds {
                    return false;
                }
                passed.insert(index);
                continue;
            }
            let flow = self.flow(index);
            let holds = holds && flow == Flow::Next && !may_write(self.words[index], 0)
                || holds && matches!(flow, Flow::Branch(_) | Flow::Jump(_));
            match flow {
                Flow::Next | Flow::Call => to_do.push((index + 1, holds)),
                Flow::Branch(Some(target)) => to_do.extend([(index + 1, holds), (target, holds)]),
                // The function begins again, with what it was called with.
                Flow::Jump(Some(0)) => {}
                Flow::Jump(Some(target)) => to_do.push((target, holds)),
                Flow::Return | Flow::Trap => {}
                Flow::Branch(None) | Flow::Jump(None) | Flow::Unknown => return false,
            }
        }
        !stores.is_empty() && passed == *stores
    }
}

/// A function's frame, once it is made.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// From the stack pointer to where it was before.
    size: u64,
    /// The first word behind the making.
    body: usize,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
