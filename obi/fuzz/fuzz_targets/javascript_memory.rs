//! Any memory as that of V8: every name, file and line is read within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::guest::memory::Piece;
use obi::capture::guest::v8::Layout;
use obi::capture::guest::{Kind, recognise};
use obi::profile::symbol::function::{Code, Function, Object, Sources};

/// Of Node 20 and 24.
fn layout(is_new: bool) -> Layout {
    Layout {
        instance_type: 12,
        shared_type: 260,
        name: if is_new { 24 } else { 16 },
        script: if is_new { 40 } else { 32 },
        scope_type: 261,
        n_locals: 2,
        first_local: if is_new { 5 } else { 3 },
        script_type: 262,
        script_name: 16,
        source: 8,
        line_ends: 48,
        array_type: 263,
        array_length: 8,
        array_first: 16,
        length: 12,
        characters: [16, 16],
        parts: [16, 24],
        offset: 24,
        actual: 16,
        resource: 16,
    }
}

fuzz_target!(|input: (bool, u16, &[u8])| {
    let (is_new, address, bytes) = input;
    let _ = recognise(&bytes);
    let memory = Piece { start: 0, bytes: bytes.to_vec() };
    let layout = obi::capture::guest::Layout::V8(layout(is_new));
    let object = Object { kind: Kind::V8, address: address.into(), compiled: None };
    let sources = Sources::default();
    let code = Code::read(&memory, &layout, &sources, &object);
    if let Ok(code) = &code {
        assert!(code.is_at(&memory, &layout, &sources, &object));
        assert!(code.bytes() <= 1 << 16);
    }
    let function = Function::new(object);
    function.tell(code);
    assert!(function.symbol(None).lines.len() <= 1);
});
