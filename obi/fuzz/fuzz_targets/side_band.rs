//! Side-band records and lists of mappings, each as a kind, `u16` length and bytes: nothing panics, what is kept is
//! bounded, and what is mapped is found where it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::mapping::image::Image;
use obi::capture::mapping::process::Processes;
use obi::capture::mapping::side_band::{Event, parse};
use obi::capture::mapping::space::MAPPINGS;

fuzz_target!(|input: &[u8]| {
    let _ = Image::read(&input);
    let mut processes = Processes::default();
    let mut rest = input;
    let mut time = 1;
    while let [kind, low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (bytes, after) = after.split_at(length);
        rest = after;
        if *kind == 0 {
            processes.listed(u32::from(*low) + 1, bytes, time);
            continue;
        }
        let Ok(mut record) = parse(bytes) else { continue };
        // They come in order.
        time = time.max(record.time);
        record.time = time;
        processes.apply(record);
        if let Event::Mapped { tgid, mapped } = record.event {
            let full = processes.counts().mappings_full > 0;
            assert!(full || processes.find(tgid, mapped.start, time).is_some());
            assert!(processes.mappings(tgid).is_some_and(|mappings| mappings.len() <= MAPPINGS));
        }
        if let Some(tgid) = processes.take_changed().last() {
            processes.sampled(*tgid, time, true);
        }
    }
    let _ = (processes.take_wants(), processes.sweep(u64::MAX, |_| false));
});
