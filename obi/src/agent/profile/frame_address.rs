//! Where a frame of a held sample lies; it gets its name when a caller asks for it.
//!
//! In: what was found of an address. Out: something that distinguishes stacks, 24 bytes long. Refuses to know names.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::capture::mapping::space::Mapping;
use crate::profile::symbol::function::Function;

/// An address and what it lies in.
#[derive(Debug, Clone)]
pub(super) struct FrameAddress {
    /// In the process or in the kernel, as in the sample.
    pub(super) address: u64,
    pub(super) within: Within,
}

/// What an address lies in.
#[derive(Debug, Clone)]
pub(super) enum Within {
    /// The kernel; it is behind a call.
    Kernel(bool),
    /// Something that the process maps; it is behind a call.
    Mapped(Arc<Mapping>, bool),
    /// Nothing that is known; it is behind a call.
    Nothing(bool),
    /// An interpreter's function; its position stands in place of the address.
    Function(Arc<Function>),
    /// No frame: the goroutine runs, so its frames are not known.
    Runs,
    /// No frame: why something is missing (`enum guest_failure`) and how the walk ended stand in place of an address.
    Mark,
}

/// A mark's address.
pub(super) fn mark(failure: u32, end: u8) -> u64 {
    u64::from(failure) << 8 | u64::from(end)
}

impl FrameAddress {
    pub(super) fn is_return(&self) -> bool {
        match self.within {
            Within::Kernel(is_return) | Within::Mapped(_, is_return) | Within::Nothing(is_return) => {
                is_return
            }
            Within::Function(_) | Within::Runs | Within::Mark => false,
        }
    }

    /// Mappings are distinguished by identity: what they map may become known later.
    fn key(&self) -> (u64, u8, bool, usize) {
        match &self.within {
            Within::Kernel(is_return) => (self.address, 0, *is_return, 0),
            Within::Mapped(mapping, is_return) => (self.address, 1, *is_return, Arc::as_ptr(mapping).addr()),
            Within::Nothing(is_return) => (self.address, 2, *is_return, 0),
            Within::Function(function) => (self.address, 3, false, Arc::as_ptr(function).addr()),
            Within::Mark => (self.address, 4, false, 0),
            Within::Runs => (self.address, 5, false, 0),
        }
    }
}

impl PartialEq for FrameAddress {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FrameAddress {}

impl Hash for FrameAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
