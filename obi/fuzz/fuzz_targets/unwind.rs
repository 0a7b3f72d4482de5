//! Any file: no panic; rows rise, and every table can be cut into the kernel's pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::unwind::{Table, rows};

fuzz_target!(|file: &[u8]| {
    let Ok(rows) = rows(&file) else { return };
    assert!(rows.windows(2).all(|pair| pair[0].address < pair[1].address && pair[0].rule != pair[1].rule));
    for table in Table::cut(&rows) {
        assert!(table.first < table.last && table.chunks(1).count() == table.n_chunks());
    }
});
