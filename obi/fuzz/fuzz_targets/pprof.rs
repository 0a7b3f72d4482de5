//! pprof files: no panic, bounded memory, and what was read survives being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::export::pprof::{decode, encode};
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
        let again = decode(&encode(&selection)).expect("we wrote it");
        assert_eq!(counted(&again), counted(&selection));
        assert_eq!(again.lost, selection.lost);
    }
});
