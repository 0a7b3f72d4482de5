//! Any bytes as a jitdump, in any pieces: bounded, and the pieces make no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::profile::symbol::code::{Code, MOST_BYTES};
use obi::profile::symbol::jitdump::JitDump;

fuzz_target!(|input: (usize, &[u8])| {
    let (cut, bytes) = input;
    // A valid header half of the time, or most inputs end there.
    let header: Vec<u8> =
        [0x4A69_5444_u32, 1, 40, 62, 0, 1, 0, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let bytes = if cut % 2 == 0 { [&header, bytes].concat() } else { bytes.to_vec() };
    let (mut dump, mut whole) = (JitDump::default(), Code::default());
    dump.extend(&bytes, &mut whole);
    assert!(whole.bytes() <= MOST_BYTES);
    let (first, second) = bytes.split_at(cut / 2 % (bytes.len() + 1));
    let (mut dump, mut pieces) = (JitDump::default(), Code::default());
    dump.extend(first, &mut pieces);
    dump.extend(second, &mut pieces);
    assert_eq!(whole, pieces);
});
