//! How HotSpot's compiled methods say what was inlined into them.
//!
//! In: what a process's JVM says of itself. Out: [`Compiled`]; without it a compiled method stands for all that was
//! inlined. Refuses to know what is read by it.

use obi_ebpf::{JVM_HEAPS, jvm};

use super::table::Vm;
use crate::capture::guest::Unfit;

/// What leads from an address of code to its method and to what was inlined there. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compiled {
    /// Heaps of code: start, bytes, map of segments.
    pub heaps: [(u64, u64, u64); JVM_HEAPS as usize],
    /// Bytes of a segment, as a power of two.
    pub segment_bits: u8,
    /// From a first segment to what describes the code.
    pub block: u16,
    /// There: its bytes, those of the description, how many the latter are for a method.
    pub size: u16,
    /// Likewise.
    pub header_size: u16,
    /// Likewise.
    pub method_header: u16,
    /// There: the method.
    pub method: u16,
    /// There: which compilation it is.
    pub compile_id: u16,
    /// There: the first instruction, as an address, or (`begin_is_offset`) counted from the description on.
    pub code_begin: u16,
    /// See there.
    pub begin_is_offset: bool,
    /// Of a row: from the first instruction on, where it holds; where its scope is described.
    pub row_address: u16,
    /// Likewise.
    pub row_scope: u16,
    /// Bytes of a row.
    pub row: u16,
    /// Where the rest is.
    pub parts: Parts,
}

/// Where a compiled method has what is not code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Behind its code, at offsets from its description on, named there; but for scopes, by an address (to 22).
    Behind {
        /// Rows, and what comes next.
        rows: [u16; 2],
        /// Scopes.
        scopes: u16,
        /// Methods that scopes name.
        methods: u16,
    },
    /// In memory of their own (since 25).
    Apart {
        /// Address of rows and scopes.
        fixed: u16,
        /// There: rows.
        rows: u16,
        /// There: scopes, behind rows.
        scopes: u16,
        /// Address of what changes.
        changing: u16,
        /// There: methods that scopes name.
        methods: u16,
    },
}

/// All of it, or what is missing.
pub(super) fn of(vm: &Vm<'_>, jvm: &jvm) -> Result<Compiled, Unfit> {
    let parts = match vm.offset("nmethod._immutable_data") {
        Ok(fixed) => Parts::Apart {
            fixed,
            rows: vm.offset("nmethod._scopes_pcs_offset")?,
            scopes: vm.offset("nmethod._scopes_data_offset")?,
            changing: vm.offset("CodeBlob._mutable_data")?,
            methods: vm.offset("CodeBlob._relocation_size")?,
        },
        Err(_) => Parts::Behind {
            rows: [vm.offset("nmethod._scopes_pcs_offset")?, vm.offset("nmethod._dependencies_offset")?],
            scopes: vm
                .offset("CompiledMethod._scopes_data_begin")
                .or_else(|_| vm.offset("nmethod._scopes_data_begin"))?,
            methods: vm.offset("nmethod._metadata_offset")?,
        },
    };
    Ok(Compiled {
        heaps: jvm.heap.map(|heap| (heap.start, heap.bytes, heap.segments)),
        segment_bits: jvm.segment_bits,
        block: jvm.block,
        size: jvm.blob_size,
        header_size: jvm.header_size,
        method_header: jvm.method_header,
        method: jvm.method,
        compile_id: jvm.compile_id,
        code_begin: jvm.code_begin,
        begin_is_offset: jvm.code_is_offset == 1,
        row_address: vm.offset("PcDesc._pc_offset")?,
        row_scope: vm.offset("PcDesc._scope_decode_offset")?,
        row: vm.size("PcDesc")?,
        parts,
    })
}
