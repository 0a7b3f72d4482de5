//! The walk along an interpreter's frames, as the kernel side does it, in a world of plain values.
//!
//! In: a thread, and a [`World`] that has the map's element and the memory. Out: words of a stack, by call of the
//! evaluating function. Knows no interpreter.

use std::ffi::c_void;

use obi_ebpf::{FRAME_PYTHON, GUEST_POSITION_BITS, STACK_ADDRESS_BITS, guest};

/// What a walk looks at.
pub trait World {
    /// The element of `guest`.
    fn guest(&self, tgid: u32) -> Option<&guest>;
    /// Fills the bytes with memory from this address on; false when it cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// What a walk has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walked {
    /// Code object and position of each frame, leaf first, by call of the evaluating function.
    pub calls: Vec<Vec<(u64, u64)>>,
    /// `enum guest_failure`
    pub failed: u32,
    /// Steps.
    pub steps: u32,
}

/// Steps that a walk may take here.
pub const MOST: usize = 512;

/// A thread whose stack is looked at.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Thread {
    /// Its descriptor.
    pub pointer: u64,
    /// Its next instruction.
    pub pc: u64,
    /// Its process.
    pub tgid: u32,
    /// 1: all frames are one call's.
    pub rest: u32,
}

/// From a thread on.
///
/// # Panics
/// When a word is none of an interpreter's frame.
pub fn walk<W: World>(world: &W, thread: &Thread) -> Walked {
    let raw = RawWorld { context: std::ptr::from_ref(world).cast(), guest: of::<W>, read: read::<W> };
    let (mut words, mut came_to) = ([0_u64; MOST], CameTo::default());
    // SAFETY: all pointers are to live values of the layout that the C side has, the words as many as `MOST` says; it
    // keeps none beyond the call but in a variable of this thread that it sets before it reads it, and calls the
    // functions with the context that they were made for.
    unsafe {
        host_guest(&raw const raw, thread, words.as_mut_ptr(), MOST as u32, &mut came_to);
    }
    let words = &words[..came_to.n_words as usize];
    let frame = |word: &u64| {
        assert_eq!(word >> STACK_ADDRESS_BITS, u64::from(FRAME_PYTHON), "{word:#x}");
        let payload = word & ((1 << STACK_ADDRESS_BITS) - 1);
        (payload >> GUEST_POSITION_BITS << 3, payload & ((1 << GUEST_POSITION_BITS) - 1))
    };
    let calls = words.split(|word| *word == 0).map(|call| call.iter().map(frame).collect()).collect();
    Walked { calls, failed: came_to.failed, steps: came_to.n_calls }
}

#[repr(C)]
struct RawWorld {
    context: *const c_void,
    guest: extern "C" fn(*const c_void, u32) -> *const guest,
    read: extern "C" fn(*const c_void, *mut u8, u32, u64) -> u32,
}

#[repr(C)]
#[derive(Default)]
struct CameTo {
    n_words: u32,
    n_calls: u32,
    failed: u32,
    state: u32,
}

unsafe extern "C" {
    fn host_guest(
        world: *const RawWorld,
        thread: *const Thread,
        words: *mut u64,
        most: u32,
        came_to: &mut CameTo,
    );
}

extern "C" fn of<W: World>(context: *const c_void, tgid: u32) -> *const guest {
    // SAFETY: the context is the world of the call that is running.
    let world = unsafe { &*context.cast::<W>() };
    world.guest(tgid).map_or(std::ptr::null(), std::ptr::from_ref)
}

extern "C" fn read<W: World>(context: *const c_void, to: *mut u8, bytes: u32, address: u64) -> u32 {
    // SAFETY: as above.
    let world = unsafe { &*context.cast::<W>() };
    // SAFETY: the C side hands over room for as many bytes as it names.
    let to = unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) };
    u32::from(!world.read(address, to))
}
