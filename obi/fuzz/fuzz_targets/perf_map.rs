//! Any text as a perf map, in any pieces: bounded, and the pieces make no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::profile::symbol::code::{Code, MOST_BYTES};
use obi::profile::symbol::perf_map::PerfMap;

fuzz_target!(|input: (usize, &[u8])| {
    let (cut, text) = input;
    let (mut map, mut whole) = (PerfMap::default(), Code::default());
    map.extend(text, &mut whole);
    assert!(whole.bytes() <= MOST_BYTES);
    let (first, second) = text.split_at(cut % (text.len() + 1));
    let (mut map, mut pieces) = (PerfMap::default(), Code::default());
    map.extend(first, &mut pieces);
    map.extend(second, &mut pieces);
    // A line beyond all bounds may be cut differently.
    if text.split(|byte| *byte == b'\n').all(|line| line.len() < 4096) {
        assert_eq!(whole, pieces);
    }
});
