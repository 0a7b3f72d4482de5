//! pprof files: no panic, bounded memory, and what was read survives being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::export::pprof::{decode, encode};
use obi::profile::Selection;

fn periods(selection: &Selection) -> u64 {
    selection.samples.iter().map(|sample| u64::from(sample.weight)).sum()
}

fuzz_target!(|input: &[u8]| {
    if let Ok(selection) = decode(input) {
        let again = decode(&encode(&selection)).expect("we wrote it");
        assert_eq!(periods(&again), periods(&selection));
        assert_eq!(again.lost, selection.lost);
    }
});
