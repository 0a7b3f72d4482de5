//! OTLP profiles: no panic, bounded memory, and what was read survives being written, in parts too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::export::otlp::profile::{decode, encode_within};
use obi::profile::Selection;

fn periods(selection: &Selection) -> u64 {
    selection.samples.iter().map(|sample| u64::from(sample.weight)).sum()
}

fuzz_target!(|input: &[u8]| {
    if let Ok(selection) = decode(input) {
        let parts = encode_within(&selection, 2_000);
        let read = parts.iter().map(|part| decode(&part.bytes).expect("we wrote it"));
        assert_eq!(read.map(|part| periods(&part)).sum::<u64>(), periods(&selection));
    }
});
