//! The walk along a user's stack, as the kernel side does it, in a world of plain values.
//!
//! In: registers, and a [`World`] that has the maps' elements and the memory. Out: the caller's registers. Knows
//! neither ELF nor DWARF.

use std::ffi::c_void;

use obi_ebpf::{mapping_block, mapping_key, unwind_chunk, unwind_key};

/// What a walk looks at.
pub trait World {
    /// An element of `unwind_chunk`.
    fn chunk(&self, key: unwind_key) -> Option<&unwind_chunk>;
    /// An element of `mappings`.
    fn block(&self, key: mapping_key) -> Option<&mapping_block>;
    /// Fills the bytes with memory from this address on; false when it cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// Registers that have no name of their own.
const OTHERS: usize = 32;

/// Registers of a frame.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Instruction pointer.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub fp: u64,
    /// (arm64) Where to return to.
    pub link: u64,
    /// By DWARF number.
    pub other: [u64; OTHERS],
    /// The process.
    pub tgid: u32,
    /// 1: `pc` is the next instruction; 0: it is behind a call.
    pub exact: u8,
    /// 1: `other` is known.
    pub all: u8,
    /// 1: found by frame pointer, for want of a rule.
    pub pointer: u8,
    /// 1: there is no caller, for the reason `end`.
    pub ended: u8,
    /// `enum stack_end`
    pub end: u32,
    /// Nothing.
    pub pad: u32,
}

/// What tables have said, as the kernel side remembers it from walk to walk.
#[derive(Debug)]
pub struct Cache(Vec<u64>);

impl Default for Cache {
    fn default() -> Self {
        // SAFETY: the function takes nothing and returns a constant.
        let bytes = unsafe { host_unwind_cache_bytes() };
        Self(vec![0; bytes.div_ceil(8) as usize])
    }
}

/// One frame up.
pub fn unwind<W: World>(world: &W, cache: Option<&mut Cache>, frame: &mut Frame) {
    let raw = RawWorld {
        context: std::ptr::from_ref(world).cast(),
        chunk: chunk::<W>,
        block: block::<W>,
        read: read::<W>,
        cache: cache.map_or(std::ptr::null_mut(), |cache| cache.0.as_mut_ptr().cast()),
    };
    // SAFETY: both pointers are to live values of the layout that the C side has; it keeps neither beyond the call but
    // in a variable of this thread that it sets before it reads it, and calls the functions with the context that they
    // were made for.
    unsafe { host_unwind(&raw const raw, frame) }
}

#[repr(C)]
struct RawWorld {
    context: *const c_void,
    chunk: extern "C" fn(*const c_void, u32, u32) -> *const unwind_chunk,
    block: extern "C" fn(*const c_void, u32, u32) -> *const mapping_block,
    read: extern "C" fn(*const c_void, *mut u8, u32, u64) -> u32,
    cache: *mut c_void,
}

unsafe extern "C" {
    fn host_unwind(world: *const RawWorld, frame: &mut Frame);
    fn host_unwind_cache_bytes() -> u32;
}

extern "C" fn chunk<W: World>(context: *const c_void, table: u32, chunk: u32) -> *const unwind_chunk {
    // SAFETY: the context is the world of the call that is running.
    let world = unsafe { &*context.cast::<W>() };
    world.chunk(unwind_key { table, chunk }).map_or(std::ptr::null(), std::ptr::from_ref)
}

extern "C" fn block<W: World>(context: *const c_void, tgid: u32, block: u32) -> *const mapping_block {
    // SAFETY: as above.
    let world = unsafe { &*context.cast::<W>() };
    world.block(mapping_key { tgid, block }).map_or(std::ptr::null(), std::ptr::from_ref)
}

extern "C" fn read<W: World>(context: *const c_void, to: *mut u8, bytes: u32, address: u64) -> u32 {
    // SAFETY: as above.
    let world = unsafe { &*context.cast::<W>() };
    // SAFETY: the C side hands over room for as many bytes as it names.
    let to = unsafe { std::slice::from_raw_parts_mut(to, bytes as usize) };
    u32::from(!world.read(address, to))
}
