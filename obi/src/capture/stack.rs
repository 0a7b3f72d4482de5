//! Records of sampled stacks to [`StackSample`]s.
//!
//! In: bytes of a `stack_event`. Out: a sample whose addresses are those of its process and of the kernel, leaf first.
//! A record of a kind that is not known here, or with such a frame, is an error. Refuses to know what lies at an
//! address.

use obi_ebpf::{
    FRAME_CODE, FRAME_JAVA, FRAME_JAVASCRIPT, FRAME_MARK, FRAME_NATIVE, FRAME_PYTHON, GUEST_NO_POSITION,
    GUEST_POSITION_BITS, JVM_ADDRESS_BITS, JVM_COMPILATION_BITS, SAMPLE_KINDS, STACK_ADDRESS_BITS,
    STACK_BY_POINTER_BIT, STACK_EXACT_BIT, STACK_FRAMES_KERNEL, STACK_FRAMES_USER, STACK_KIND_BITS,
    stack_event,
};
use thiserror::Error;
use zerocopy::FromBytes;

use super::guest::Kind;

/// A stack as the kernel side reports it; borrows the record.
#[derive(Debug, Clone, Copy)]
pub struct StackSample<'a> {
    /// What was measured; process, thread, time, the thread's current exchange; CPU, name, how the walk ended.
    pub event: &'a stack_event,
    kernel: &'a [u64],
    user: &'a [u64],
}

/// One address of a user's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// In the process.
    pub address: u64,
    /// It is the next instruction itself; else one behind a call.
    pub is_exact: bool,
    /// Found by frame pointer, for want of a table.
    pub by_pointer: bool,
}

/// What a word of a user's stack says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserFrame {
    /// An address.
    Native(Address),
    /// A function of an interpreter.
    Function {
        /// Of which.
        kind: Kind,
        /// Of its object: CPython's code, HotSpot's method, what functions of the same text share in V8.
        address: u64,
        /// Of the instruction there, in units of two bytes (CPython) or bytes; `None`: not known.
        position: Option<u32>,
    },
    /// No frame: where in compiled code that before it is.
    Code {
        /// There.
        address: Address,
        /// The lowest bits of the compilation's number.
        compilation: u16,
    },
    /// No frame: something is missing, `enum guest_failure`.
    Mark(u32),
}

/// Why a record is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StackError {
    /// Shorter than its head.
    #[error("stack record of {0} bytes is shorter than its head")]
    Short(usize),
    /// It holds fewer addresses than it says, or may say.
    #[error("stack record of {bytes} bytes cannot hold {kernel} and {user} addresses")]
    Addresses {
        /// Its length.
        bytes: usize,
        /// Addresses of the kernel.
        kernel: u16,
        /// Of the user.
        user: u16,
    },
    /// It says that something else was measured than any program measures.
    #[error("stack record of unknown kind {0}")]
    Kind(u8),
    /// One of the user's frames is none that a walk finds.
    #[error("stack record with a frame of unknown kind {0}")]
    Frame(u32),
}

/// `enum frame_kind` of a word.
fn frame_kind(word: u64) -> u32 {
    (word >> STACK_ADDRESS_BITS) as u32 & ((1 << STACK_KIND_BITS) - 1)
}

impl<'a> StackSample<'a> {
    /// Reads one record.
    ///
    /// # Errors
    /// When lengths contradict each other, or something in it is of no known kind.
    pub fn decode(record: &'a [u8]) -> Result<Self, StackError> {
        let (event, rest) =
            stack_event::ref_from_prefix(record).map_err(|_| StackError::Short(record.len()))?;
        let (n_kernel, n_user) = (usize::from(event.n_kernel), usize::from(event.n_user));
        let wrong = StackError::Addresses { bytes: record.len(), kernel: event.n_kernel, user: event.n_user };
        if n_kernel > STACK_FRAMES_KERNEL as usize || n_user > STACK_FRAMES_USER as usize {
            return Err(wrong);
        }
        let (addresses, _) =
            <[u64]>::ref_from_prefix_with_elems(rest, n_kernel + n_user).map_err(|_| wrong)?;
        if !(1..SAMPLE_KINDS).contains(&event.kind.into()) {
            return Err(StackError::Kind(event.kind));
        }
        let (kernel, user) = addresses.split_at(n_kernel);
        // The kernel's are such by their place: whatever it finds on its own stack is taken as it is.
        if let Some(word) = user.iter().find(|word| user_frame(**word).is_none()) {
            return Err(StackError::Frame(frame_kind(*word)));
        }
        Ok(Self { event, kernel, user })
    }

    /// The kernel's part, leaf first: the first is exact, the others are behind calls. Empty when the CPU was in the
    /// program.
    #[must_use]
    pub fn kernel(&self) -> &'a [u64] {
        self.kernel
    }

    /// The user's part, leaf first. Functions of an interpreter stand before the native frame that runs them.
    pub fn user(&self) -> impl Iterator<Item = UserFrame> + 'a {
        self.user.iter().filter_map(|word| user_frame(*word))
    }

    /// Words of the user's part.
    #[must_use]
    pub fn n_user(&self) -> usize {
        self.user.len()
    }

    /// Its native frames, leaf first.
    pub fn native(&self) -> impl Iterator<Item = Address> + 'a {
        self.user().filter_map(|frame| match frame {
            UserFrame::Native(address) => Some(address),
            _ => None,
        })
    }
}

/// `None` for kinds that are not known.
fn user_frame(word: u64) -> Option<UserFrame> {
    let payload = word & ((1 << STACK_ADDRESS_BITS) - 1);
    match frame_kind(word) {
        FRAME_NATIVE => Some(UserFrame::Native(Address {
            address: payload,
            is_exact: word >> STACK_EXACT_BIT & 1 != 0,
            by_pointer: word >> STACK_BY_POINTER_BIT & 1 != 0,
        })),
        kind @ (FRAME_PYTHON | FRAME_JAVA | FRAME_JAVASCRIPT) => {
            let kind = match kind {
                FRAME_PYTHON => Kind::Cpython,
                FRAME_JAVA => Kind::HotSpot,
                _ => Kind::V8,
            };
            let position = payload as u32 & GUEST_NO_POSITION;
            let position = (position != GUEST_NO_POSITION).then_some(position);
            Some(UserFrame::Function { kind, address: payload >> GUEST_POSITION_BITS << 3, position })
        }
        FRAME_CODE => {
            let address = payload & ((1 << JVM_ADDRESS_BITS) - 1);
            let is_exact = word >> STACK_EXACT_BIT & 1 != 0;
            let compilation = (payload >> JVM_ADDRESS_BITS) as u16 & ((1 << JVM_COMPILATION_BITS) - 1);
            Some(UserFrame::Code { address: Address { address, is_exact, by_pointer: false }, compilation })
        }
        FRAME_MARK => Some(UserFrame::Mark(payload as u32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use obi_ebpf::{FRAME_KERNEL, SAMPLE_CPU, event_header, stack_event};
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn record(n_kernel: u16, n_user: u16, addresses: &[u64]) -> Vec<u8> {
        let (header, kind) = (event_header::default(), SAMPLE_CPU as u8);
        let event = stack_event { header, kind, n_kernel, n_user, ..stack_event::default() };
        [event.as_bytes(), addresses.as_bytes()].concat()
    }

    #[test]
    fn addresses_and_their_marks_come_apart() {
        let bytes = record(
            1,
            2,
            &[0xffff_ffff_8100_0000, 0x1234 | 1 << STACK_EXACT_BIT, 0x5678 | 1 << STACK_BY_POINTER_BIT],
        );
        let sample = StackSample::decode(&bytes).unwrap();
        assert_eq!(sample.kernel(), [0xffff_ffff_8100_0000]);
        let user: Vec<Address> = sample.native().collect();
        assert_eq!(
            user,
            [
                Address { address: 0x1234, is_exact: true, by_pointer: false },
                Address { address: 0x5678, is_exact: false, by_pointer: true },
            ]
        );
    }

    #[test]
    fn functions_of_an_interpreter_have_a_place_in_their_code() {
        let kinds =
            [(FRAME_PYTHON, Kind::Cpython), (FRAME_JAVA, Kind::HotSpot), (FRAME_JAVASCRIPT, Kind::V8)];
        let check = |address: u64, at: u64, position: Option<u32>| {
            for (number, kind) in kinds {
                let kind_bits = u64::from(number) << STACK_ADDRESS_BITS;
                let frame = user_frame(kind_bits | ((address / 8) << GUEST_POSITION_BITS) | at);
                assert_eq!(frame, Some(UserFrame::Function { kind, address, position }));
            }
        };
        check(0x7fff_dead_bee8, 12, Some(12));
        check(8, u64::from(GUEST_NO_POSITION), None);
    }

    #[test]
    fn compiled_code_says_which_it_is() {
        let word = u64::from(FRAME_CODE) << STACK_ADDRESS_BITS | 0x3ff << JVM_ADDRESS_BITS | 0x7fff_dead_beef;
        let check = |word: u64, is_exact: bool| {
            let address = Address { address: 0x7fff_dead_beef, is_exact, by_pointer: false };
            assert_eq!(user_frame(word), Some(UserFrame::Code { address, compilation: 0x3ff }));
        };
        check(word, false);
        check(word | 1 << STACK_EXACT_BIT, true);
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(StackSample::decode(&[0; 10]).unwrap_err(), StackError::Short(10));
        let check = |n_kernel, n_user, addresses: &[u64]| {
            let bytes = record(n_kernel, n_user, addresses);
            let expected = StackError::Addresses { bytes: bytes.len(), kernel: n_kernel, user: n_user };
            assert_eq!(StackSample::decode(&bytes).unwrap_err(), expected);
        };
        check(1, 1, &[7]);
        check(u16::MAX, 0, &[7]);
        check(0, u16::MAX, &[7]);
    }

    #[test]
    fn what_is_of_no_known_kind_is_refused() {
        let kernel = 0xffff_ffff_8100_0000;
        for kind in [0, SAMPLE_KINDS as u8, u8::MAX] {
            let mut bytes = record(0, 1, &[7]);
            bytes[std::mem::offset_of!(stack_event, kind)] = kind;
            assert_eq!(StackSample::decode(&bytes).unwrap_err(), StackError::Kind(kind));
        }
        let check = |n_kernel, words: [u64; 2], expected: Option<u32>| {
            let decoded = StackSample::decode(&record(n_kernel, 2 - n_kernel, &words)).map(|_| ());
            assert_eq!(decoded, expected.map_or(Ok(()), |kind| Err(StackError::Frame(kind))), "{words:x?}");
        };
        check(1, [kernel, 7], None);
        check(0, [7, 5 << STACK_ADDRESS_BITS | 7], Some(5));
        check(0, [7, u64::from(FRAME_MARK) << STACK_ADDRESS_BITS | 7], None);
        check(0, [7, 1 << STACK_EXACT_BIT | 1 << STACK_BY_POINTER_BIT | 7], None);
        check(0, [7, kernel], Some(FRAME_KERNEL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            // Records in the ring are aligned to eight bytes.
            let mut aligned = vec![0_u64; bytes.len().div_ceil(8)];
            aligned.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
            if let Ok(sample) = StackSample::decode(&aligned.as_bytes()[..bytes.len()]) {
                prop_assert_eq!(sample.user().count(), usize::from(sample.event.n_user));
            }
        }
    }
}
