//! Bytes as a sequence of system calls on one connection: whatever they are, the capture logic stays inside its
//! memory, ends, keeps the contract's promises (checked by the ledger) and leaves nothing behind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi_ebpf_host::ledger::{Fate, Ledger};
use obi_ebpf_host::{Faults, Kernel, Segment};

fuzz_target!(|data: &[u8]| {
    let Some((&[settings, limit, reason], mut data)) = data.split_first_chunk::<3>() else { return };
    let often = |bit: u8| if settings & bit != 0 { 64 } else { 0 };
    let faults = Faults { ring: often(1), user: often(2), note: 0, spare: often(4), steps: often(16) };
    let mut kernel = Kernel::boot(u64::from(limit), 64 + 32 * u32::from(limit), faults);
    let mut ledger = Ledger::default();
    let mut connection = kernel.connect(settings & 8 != 0);
    let mut time = 1000;
    // Each operation: what, how many bytes, and the bytes.
    while let Some((&[what, length], rest)) = data.split_first_chunk::<2>() {
        let length = if what & 4 != 0 { usize::from(length) * 16 } else { usize::from(length) };
        let (bytes, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        time += 1000;
        let sending = what & 1 != 0;
        let gap = if what & 0xe0 == 0xe0 { u32::from(what >> 1 & 1) + 5 } else { 0 };
        // Copied, so that the sanitizer sees a read beyond the end.
        let owned: Vec<Vec<u8>> =
            bytes.chunks(1 + usize::from(what >> 3 & 3) * 37).map(<[u8]>::to_vec).collect();
        let parts: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
        let whole = bytes.to_vec();
        let segment = match what & 0x18 {
            0 => Segment::Buffer(&whole),
            0x18 if what & 0x60 == 0x60 => {
                Segment::Opaque(u32::try_from(length).expect("short"), what & 2 != 0)
            }
            _ => Segment::Vector(&parts),
        };
        kernel.segment(&mut connection, sending, gap, segment, time);
        ledger.read(&kernel);
    }
    kernel.end(&mut connection, 1 + u32::from(reason % 4), time);
    ledger.read(&kernel);
    assert_eq!(kernel.notes(), 0);
    assert_eq!(kernel.current(), 0);
    assert_eq!(ledger.count(|fate| fate == Fate::Open), 0);
    assert!(kernel.uncovered() <= 1);
});
