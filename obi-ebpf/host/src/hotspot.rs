//! Frames of HotSpot's code, as the kernel side leaves them, in a world of plain values.
//!
//! In: registers, the map's element, and a [`World`] that has the memory. Out: the frame's word and the caller's
//! registers. Knows no names.

use std::ffi::c_void;

use obi_ebpf::jvm;

/// What a walk looks at.
pub trait World {
    /// Fills the bytes with memory from this address on; false when it cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// Registers of a frame, and what has come of it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frame {
    /// Instruction pointer.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub fp: u64,
    /// Where the interpreter has the bytecode's address.
    pub r13: u64,
    /// The frame's; 0: it was not left.
    pub word: u64,
    /// The process.
    pub tgid: u32,
    /// 1: `pc` is the next instruction; 0: it is behind a call.
    pub exact: u8,
    /// 1: all registers are known.
    pub all: u8,
    /// 1: there is no caller.
    pub ended: u8,
    /// `enum guest_failure`
    pub failed: u8,
}

/// One frame up, if it is one of HotSpot's.
pub fn leave<W: World>(world: &W, jvm: &jvm, frame: &mut Frame) {
    let context = std::ptr::from_ref(world).cast();
    let raw = RawWorld { context, read: read::<W>, jvm };
    // SAFETY: all pointers are to live values of the layout that the C side has; it keeps none beyond the call but in a
    // variable of this thread that it sets before it reads it, and calls the function with the context that it was made
    // for.
    unsafe { host_java(&raw const raw, frame) }
}

#[repr(C)]
struct RawWorld {
    context: *const c_void,
    read: extern "C" fn(*const c_void, *mut u8, u32, u64) -> u32,
    jvm: *const jvm,
}

unsafe extern "C" {
    fn host_java(world: *const RawWorld, frame: &mut Frame);
}

extern "C" fn read<W: World>(context: *const c_void, to: *mut u8, bytes: u32, address: u64) -> u32 {
    // SAFETY: the context is the world of the call that is running.
    let world = unsafe { &*context.cast::<W>() };
    // SAFETY: the C side hands over room for as many bytes as it names.
    let to = unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) };
    u32::from(!world.read(address, to))
}
