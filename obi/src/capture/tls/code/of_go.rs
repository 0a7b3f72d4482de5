//! A function of Go's, for either processor whose machine code is understood.
//!
//! In: machine, bytes and their address. Out: what [`go`](super::go) and [`goroutine`](super::goroutine), or
//! [`arm64`](super::arm64), find in it. Pure.

use object::elf;

use super::arm64::{self, Received};
use super::{Function, Numbers};

/// From the frame pointer to the home of a first argument on x86-64: over that pointer and the return address.
const X86_HOME: u64 = 16;

/// One function.
#[derive(Debug)]
pub(in super::super) enum GoFunction<'a> {
    X86(Function<'a>),
    Arm64(arm64::Function),
}

impl<'a> GoFunction<'a> {
    /// Of any length; `None` for another machine.
    pub(in super::super) fn whole(machine: u16, address: u64, bytes: &'a [u8]) -> Option<Self> {
        match machine {
            elf::EM_X86_64 => Some(Self::X86(Function::whole(address, bytes))),
            elf::EM_AARCH64 => Some(Self::Arm64(arm64::Function::whole(address, bytes))),
            _ => None,
        }
    }

    /// The jump of the check of the stack, if every call passes it with its first `n_arguments` arguments in their
    /// registers. Where it is taken, the function begins again later.
    pub(in super::super) fn stack_check(&self, n_arguments: usize) -> Option<u64> {
        match self {
            Self::X86(function) => function.stack_check(n_arguments),
            Self::Arm64(function) => function.stack_check(),
        }
    }

    /// The jump behind the only call of `target` that looks at its error, with all its results in their registers, and
    /// where the function's first argument is then.
    pub(in super::super) fn received(&self, target: u64) -> Option<Received> {
        match self {
            Self::X86(function) => {
                let address = function.error_check(target).filter(|_| function.keeps_first_argument(target));
                address.map(|address| Received { address, home: X86_HOME })
            }
            Self::Arm64(function) => function.received(target),
        }
    }

    /// The only call of `taker`, if it comes straight behind the only one of `maker` and has that one's result for its
    /// second argument.
    pub(in super::super) fn handed_on(&self, maker: u64, taker: u64) -> Option<u64> {
        match self {
            Self::X86(function) => function.handed_on(maker, taker),
            Self::Arm64(function) => function.handed_on(maker, taker),
        }
    }

    /// Where in a goroutine its number and that of its creator are, as they are copied behind the only call of
    /// `started`.
    pub(in super::super) fn numbers(&self, started: u64) -> Option<Numbers> {
        match self {
            Self::X86(function) => function.numbers(started),
            Self::Arm64(function) => function.numbers(started),
        }
    }
}
