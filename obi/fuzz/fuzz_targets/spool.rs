//! Files of the spool: no panic, an end, and nothing is found in a damaged file that was not written.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use obi::export::spool::{read_all, record_of};

fuzz_target!(|input: &[u8]| {
    // Anything at all.
    let (whole, _) = read_all(&mut Cursor::new(input)).expect("memory can be read");
    assert!(whole.iter().map(Vec::len).sum::<usize>() <= input.len());
    // Records with damage: the first bytes say where and how. A record within a payload would be found where its outer
    // one is damaged: there is none.
    let Some((edits, content)) = input.split_at_checked(12) else { return };
    if content.windows(4).any(|bytes| bytes == b"obiR") {
        return;
    }
    let payloads: Vec<&[u8]> = content.chunks(50).collect();
    let mut file: Vec<u8> = payloads.iter().flat_map(|payload| record_of(payload)).collect();
    for edit in edits.as_chunks::<3>().0 {
        let at = usize::from(edit[0]) << 8 | usize::from(edit[1]);
        if let Some(byte) = file.get_mut(at) {
            *byte ^= edit[2];
        }
    }
    let (whole, _) = read_all(&mut Cursor::new(&file)).expect("memory can be read");
    assert!(whole.iter().all(|found| payloads.contains(&found.as_slice())));
    assert!(whole.len() + edits.len() / 3 >= payloads.len(), "damage costs one record");
});
