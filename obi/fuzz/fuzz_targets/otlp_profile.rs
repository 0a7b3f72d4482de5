//! OTLP profiles: no panic, bounded memory, and what was read survives being written, in parts too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::export::otlp::profile::{decode, encode_within};
use obi::profile::Selection;

fn counted(selection: &Selection) -> u128 {
    selection
        .samples
        .iter()
        .map(|sample| u128::from(selection.type_of(sample.kind).count(sample.value)))
        .sum()
}

fuzz_target!(|input: &[u8]| {
    if let Ok(selection) = decode(input) {
        let parts = encode_within(&selection, 2_000);
        let read = parts.iter().map(|part| decode(&part.bytes).expect("we wrote it"));
        assert_eq!(read.map(|part| counted(&part)).sum::<u128>(), counted(&selection));
    }
});
