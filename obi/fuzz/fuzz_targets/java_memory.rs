//! Any memory as that of a JVM: what proves itself is within bounds, every method and all that is inlined is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::guest::hotspot::{Compiled, Layout, Parts};
use obi::capture::guest::memory::Piece;
use obi::capture::guest::{Build, Kind, ForKernel, recognise};
use obi::profile::symbol::function::{Code, Function, Object, Sources};
use obi::profile::symbol::java::{COMPILATION, CompiledFrame};

const COMPILED: Compiled = Compiled {
    heaps: [(0x100, 0x8000, 0), (0, 0, 0), (0, 0, 0)],
    segment_bits: 7,
    block: 16,
    size: 12,
    header_size: 16,
    method_header: 352,
    method: 112,
    compile_id: 304,
    code_begin: 32,
    begin_is_offset: false,
    row_address: 0,
    row_scope: 4,
    row: 16,
    parts: Parts::Behind { rows: [268, 272], scopes: 120, methods: 260 },
};

/// Of 17, and what differs in 25.
fn layout(is_new: bool) -> Layout {
    let parts = Parts::Apart { fixed: 96, rows: 196, scopes: 200, changing: 16, methods: 28 };
    let new =
        Compiled { begin_is_offset: true, code_begin: 36, method: 80, compile_id: 212, parts, ..COMPILED };
    Layout {
        const_method: 8,
        constants: 8,
        flags: 28,
        has_lines: 1,
        code_size: 32,
        name: 34,
        signature: 36,
        bytecode: 48,
        tags: 8,
        holder: 24,
        length: 60,
        source: 54,
        source_is_of_class: false,
        first: 72,
        class_name: 24,
        symbol_length: 4,
        symbol_bytes: 6,
        array_bytes: 4,
        excludes_zero: is_new,
        compiled: Some(if is_new { new } else { COMPILED }),
    }
}

fuzz_target!(|input: (bool, bool, u16, u16, &[u8])| {
    let (is_new, is_exact, method, code, bytes) = input;
    let memory = Piece { start: 0, bytes: bytes.to_vec() };
    // As a file, and what it says of the same bytes as memory.
    if let Some(Ok(build @ Build::HotSpot(_))) = recognise(&bytes)
        && let Ok(ForKernel::HotSpot(jvm)) = build.examine(&memory, 0).map(|known| known.for_kernel)
    {
        assert!(jvm.interpreter_bytes <= jvm.code_bytes);
    }
    let layout = layout(is_new);
    let place = CompiledFrame { address: code.into(), compilation: method & COMPILATION, is_exact };
    if let Some(scopes) = place.scopes(&memory, &layout) {
        assert!(scopes.methods.last().is_some_and(|(outermost, _)| *outermost == scopes.method));
    }
    let sources = Sources::default();
    for compiled in [None, Some(place)] {
        let object = Object { kind: Kind::HotSpot, address: method.into(), compiled };
        let layout = obi::capture::guest::Layout::HotSpot(layout);
        let code = Code::read(&memory, &layout, &sources, &object);
        if let Ok(code) = &code {
            assert!(code.is_at(&memory, &layout, &sources, &object));
        }
        let function = Function::new(object);
        function.tell(code);
        for position in [None, Some(0), Some(97), Some(4000)] {
            assert!(function.symbol(position).lines.len() <= 64);
        }
    }
});
