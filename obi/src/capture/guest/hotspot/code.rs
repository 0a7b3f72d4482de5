//! Where HotSpot has its code, and how its pieces describe themselves.
//!
//! In: what a process's JVM says of itself. Out: a [`jvm`] for the kernel's walk. All of it must lie where the JVM says
//! that code is. Refuses to know methods' names.

use obi_ebpf::{JVM_BLOB_WORDS, JVM_HEAPS, JVM_METHOD_WORDS, jvm, jvm_heap};

use super::Layout;
use super::table::Vm;
use crate::capture::guest::Unfit;

/// Beyond the size of any code cache.
const CODE_MOST: u64 = 1 << 32;
/// Of a segment, as a power of two.
const SEGMENT_BITS: std::ops::RangeInclusive<u32> = 3..=16;
const CODE: &str = "CodeCache._low_bound";
const HEAPS: &str = "CodeCache._heaps";
const INTERPRETER: &str = "AbstractInterpreter._code";
const WORD: u64 = 8;

/// All that the walk needs, once all of the interpreter is made.
pub(super) fn places(vm: &Vm<'_>, layout: &Layout) -> Result<jvm, Unfit> {
    let (low, high) = (vm.value(CODE)?, vm.value("CodeCache._high_bound")?);
    if low == 0 || vm.value(INTERPRETER)? == 0 {
        return Err(Unfit::NotBegun);
    }
    let code_bytes = high.checked_sub(low).filter(|bytes| *bytes < CODE_MOST).ok_or(Unfit::Proof(CODE))?;
    let jvm = jvm { code: low, code_bytes, ..jvm::default() };
    let (interpreter, interpreter_bytes) = interpreter(vm)?;
    if !is_within(&jvm, interpreter, interpreter_bytes) {
        return Err(Unfit::Proof(INTERPRETER));
    }
    let access = vm.offset("Method._access_flags")?;
    if layout.const_method.max(access) >= WORD as u16 * JVM_METHOD_WORDS as u16 {
        return Err(Unfit::Proof("Method._access_flags"));
    }
    let (const_method, bytecode) = (layout.const_method, layout.bytecode);
    let call_stub = vm.value("StubRoutines._call_stub_return_address")?;
    let jvm = jvm { interpreter, interpreter_bytes, call_stub, const_method, bytecode, access, ..jvm };
    blobs(vm, heaps(vm, jvm)?)
}

fn is_within(jvm: &jvm, start: u64, bytes: u64) -> bool {
    let end = start.checked_sub(jvm.code).and_then(|at| at.checked_add(bytes));
    end.is_some_and(|end| end <= jvm.code_bytes)
}

/// Where the interpreter is, and its bytes.
fn interpreter(vm: &Vm<'_>) -> Result<(u64, u64), Unfit> {
    let queue = vm.value(INTERPRETER)?;
    let field = |name: &'static str| Ok::<u64, Unfit>(queue.wrapping_add(vm.offset(name)?.into()));
    let integer = |name: &'static str| vm.integer(field(name)?).ok_or(Unfit::Proof(INTERPRETER));
    let start = vm.word(field("StubQueue._stub_buffer")?).ok_or(Unfit::Proof(INTERPRETER))?;
    let (limit, end) = (integer("StubQueue._buffer_limit")?, integer("StubQueue._queue_end")?);
    // What is left over is given back when all is made.
    if limit == end && limit > 0 { Ok((start, limit.into())) } else { Err(Unfit::NotBegun) }
}

/// The heaps of code, and the size of their segments.
fn heaps(vm: &Vm<'_>, mut jvm: jvm) -> Result<jvm, Unfit> {
    const PROOF: Unfit = Unfit::Proof(HEAPS);
    let array = vm.value(HEAPS)?;
    let at = |object: u64, offset: u16| object.wrapping_add(offset.into());
    let n = vm.integer(at(array, vm.offset("GrowableArrayBase._len").or_else(|_| vm.offset(OLD_LENGTH))?));
    let first = vm.word(at(array, vm.offset("GrowableArray<int>._data")?)).ok_or(PROOF)?;
    let n = n.filter(|n| (1..=JVM_HEAPS).contains(n)).ok_or(PROOF)?;
    let low = vm.offset("VirtualSpace._low_boundary")?;
    let (memory, map) = (vm.offset("CodeHeap._memory")?, vm.offset("CodeHeap._segmap")?);
    let bits = vm.offset("CodeHeap._log2_segment_size")?;
    for (index, place) in (0..n.into()).zip(&mut jvm.heap) {
        let heap = vm.word(first.wrapping_add(WORD * index)).ok_or(PROOF)?;
        let start = vm.word(at(heap, memory + low)).ok_or(PROOF)?;
        let end = vm.word(at(heap, memory + vm.offset("VirtualSpace._high_boundary")?)).ok_or(PROOF)?;
        let segments = vm.word(at(heap, map + low)).ok_or(PROOF)?;
        let bits = vm.integer(at(heap, bits)).filter(|bits| SEGMENT_BITS.contains(bits)).ok_or(PROOF)? as u8;
        *place = jvm_heap { start, bytes: end.checked_sub(start).ok_or(PROOF)?, segments };
        if index > 0 && bits != jvm.segment_bits {
            return Err(PROOF);
        }
        jvm.segment_bits = bits;
    }
    let heaps = jvm.heap.iter().filter(|heap| heap.bytes > 0);
    if heaps.clone().all(|heap| is_within(&jvm, heap.start, heap.bytes)) { Ok(jvm) } else { Err(PROOF) }
}

const OLD_LENGTH: &str = "GenericGrowableArray._len";

/// What stands where in a blob.
fn blobs(vm: &Vm<'_>, jvm: jvm) -> Result<jvm, Unfit> {
    let begin = vm.offset("CodeBlob._code_begin").map(|offset| (offset, 0));
    let begin = begin.or_else(|_| vm.offset("CodeBlob._code_offset").map(|offset| (offset, 1)));
    let (code_begin, code_is_offset) = begin?;
    let method = vm.word_offset("CompiledMethod._method").or_else(|_| vm.word_offset("nmethod._method"))?;
    let described = jvm {
        block: vm.size("HeapBlock")?,
        blob_size: vm.offset("CodeBlob._size")?,
        header_size: vm.offset("CodeBlob._header_size")?,
        method_header: vm.size("nmethod")?,
        method,
        frame_size: vm.offset("CodeBlob._frame_size")?,
        frame_complete: vm.offset("CodeBlob._frame_complete_offset")?,
        code_begin,
        code_is_offset,
        compile_id: vm.offset("nmethod._compile_id")?,
        ..jvm
    };
    let offsets = [
        ("CodeBlob._size", described.blob_size),
        ("CodeBlob._header_size", described.header_size),
        ("nmethod._method", described.method),
        ("CodeBlob._frame_size", described.frame_size),
        ("CodeBlob._frame_complete_offset", described.frame_complete),
        ("CodeBlob._code_begin", described.code_begin),
        ("nmethod._compile_id", described.compile_id),
    ];
    // What is longer than two bytes stands within a word.
    let fits = |offset: u16| u32::from(offset) < WORD as u32 * JVM_BLOB_WORDS && offset.is_multiple_of(2);
    match offsets.into_iter().find(|(_, offset)| !fits(*offset)) {
        Some((name, _)) => Err(Unfit::Proof(name)),
        None => Ok(described),
    }
}
