//! Header blocks, each as `u16` length and bytes: what an independent decoder reads is what ours reads, and what one
//! that joined after the first block knows is right. Nothing panics, memory stays within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::protocol::http2::hpack::{Decoder, Head, Name};
use obi::protocol::redact::{split_target, write_path, write_query};

const NAMES: [(Name, &[u8]); 7] = [
    (Name::Method, b":method"),
    (Name::Path, b":path"),
    (Name::Status, b":status"),
    (Name::ContentType, b"content-type"),
    (Name::UserAgent, b"user-agent"),
    (Name::GrpcStatus, b"grpc-status"),
    (Name::GrpcMessage, b"grpc-message"),
];

/// As a table keeps it, cut as it cuts.
fn shown(name: Name, value: &[u8]) -> Vec<u8> {
    let mut shown = Vec::new();
    if name == Name::Path {
        let target = split_target(b"", value);
        write_path(target.path, |bytes| shown.extend_from_slice(bytes));
        shown.truncate(2048);
        shown.push(b'?');
        let start = shown.len();
        write_query(target.query, |bytes| shown.extend_from_slice(bytes));
        shown.truncate(start + 2048);
    } else {
        shown.extend_from_slice(&value[..value.len().min(2048)]);
    }
    shown
}

fuzz_target!(|input: &[u8]| {
    let mut oracle = Some(loona_hpack::Decoder::new());
    let (mut whole, mut late, mut head) = (Decoder::default(), Decoder::default(), Head::default());
    let (mut rest, mut is_first) = (input, true);
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (block, after) = after.split_at(length);
        rest = after;
        // Where the oracle gives up, its connection is over; ours goes on and only must not panic.
        let right = oracle.as_mut().and_then(|oracle| oracle.decode(block).ok());
        let outcome = whole.decode(block, &mut head);
        let Some(right) = right else {
            oracle = None;
            continue;
        };
        assert!(outcome.is_ok(), "the oracle reads it");
        let find = |wanted: &[u8]| right.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        for (name, text) in NAMES {
            // Beyond the bounds of a table ours knows less; it may never know something else.
            let ours = head.get(name).map(|value| shown(name, value));
            let theirs = find(text).map(|value| shown(name, value));
            assert!(ours == theirs || ours.is_none() && head.unknown() > 0, "{name:?} {ours:?} {theirs:?}");
        }
        if !is_first && late.decode(block, &mut head).is_ok() {
            for (name, text) in NAMES {
                let Some(ours) = head.get(name).map(|value| shown(name, value)) else { continue };
                let mut all = right.iter().filter(|(found, _)| found == text);
                assert!(all.any(|(_, value)| shown(name, value) == ours), "{name:?} {ours:?}");
            }
        }
        is_first = false;
        assert!(whole.capacity() < 256 * 1024);
    }
});
