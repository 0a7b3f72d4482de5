//! Any memory as that of a Go program: what is read of it is bounded, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::go_runtime::{goroutine::List, heap};
use obi::capture::guest::memory::Piece;

fuzz_target!(|input: (bool, u16, u16, u8, &[u8])| {
    let (is_new, head, list, n, bytes) = input;
    let memory = Piece { start: 0, bytes: bytes.to_vec() };
    if let Ok(found) = heap::heap(&memory, head.into(), 512 * 1024) {
        assert!(found.sites.iter().all(|site| site.allocated > 0));
    }
    let version = if is_new { "go1.26.8" } else { "go1.18" };
    let list = List::new(version, list.into(), n.into()).expect("both are known");
    // The upper half is code.
    let is_code = |address: u64| address >= 0x8000;
    if let Ok(found) = list.read(&memory, is_code, |start| start % 2 == 0) {
        assert!(found.iter().map(|it| it.n).sum::<u64>() <= n.into());
        assert!(found.iter().all(|it| it.stack.len() <= 129));
    }
});
