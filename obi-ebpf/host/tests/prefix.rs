//! Headers that hold the length of their payload, as tables: the shapes in use, and those of protocols that are not.

use obi_ebpf_host::Prefix;
use proptest::prelude::*;

const fn row(header_bytes: u8, at: u8, width: u8, little_endian: u8, counted: u8) -> Prefix {
    Prefix { header_bytes, at, width, little_endian, counted }
}

/// RFC 9113 §4.1; PostgreSQL's "Message Formats": a message, and a start-up message.
const FOLLOWED: [Prefix; 3] = [row(9, 0, 3, 0, 0), row(5, 1, 4, 0, 4), row(8, 0, 4, 0, 8)];

/// `MySQL`, `MongoDB`, DNS over TCP, TDS, memcached's binary protocol, CQL.
const OTHERS: [Prefix; 6] = [
    row(4, 0, 3, 1, 0),
    row(16, 0, 4, 1, 16),
    row(2, 0, 2, 0, 0),
    row(8, 2, 2, 0, 8),
    row(24, 8, 4, 0, 0),
    row(9, 5, 4, 0, 0),
];

/// A header with that number in the place of its length, written the long way.
fn header(row: &Prefix, length: u32, filler: u8) -> Vec<u8> {
    let mut header = vec![filler; usize::from(row.header_bytes)];
    let (at, width) = (usize::from(row.at), usize::from(row.width));
    let place = &mut header[at..at + width];
    if row.little_endian == 1 {
        place.copy_from_slice(&length.to_le_bytes()[..width]);
    } else {
        place.copy_from_slice(&length.to_be_bytes()[4 - width..]);
    }
    header
}

/// The largest number that the length has room for.
fn most(row: &Prefix) -> u32 {
    u32::MAX >> (32 - 8 * u32::from(row.width))
}

fn check(row: &Prefix, header: &[u8], payload: u32) {
    assert_eq!(row.payload(header), payload, "{row:?} {header:02x?}");
}

#[test]
fn the_shapes_in_use_are_those_of_their_specifications() {
    assert_eq!(Prefix::all(), FOLLOWED);
}

#[test]
fn headers_that_are_known() {
    let [frame, message, start] = FOLLOWED;
    check(&frame, b"\0\0\x06\x04\0\0\0\0\0", 6); // SETTINGS
    check(&frame, b"\xff\xff\xff\0\0\0\0\0\x01", 0x00ff_ffff);
    check(&message, b"Z\0\0\0\x05", 1);
    check(&message, b"S\0\0\0\x04", 0);
    check(&message, b"S\0\0\0\x03", u32::MAX); // none: less than it counts
    check(&start, b"\0\0\0\x08\x04\xd2\x16\x2f", 0); // SSLRequest
    check(&OTHERS[0], b"\x21\0\0\0", 0x21);
    check(&OTHERS[1], b"\x10\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0", 0);
}

proptest! {
    #[test]
    fn payloads_are_reported_by_their_headers(nth in 0_usize..9, any in any::<u32>(), filler in any::<u8>()) {
        let row = FOLLOWED.iter().chain(&OTHERS).nth(nth).expect("nine rows");
        let length = any & most(row);
        let payload = length.wrapping_sub(u32::from(row.counted));
        check(row, &header(row, length, filler), payload);
    }

    /// Whatever limit a protocol has, what is less than the length counts lies beyond it.
    #[test]
    fn a_length_that_is_too_small_is_too_large(nth in 0_usize..9, any in any::<u8>(), filler in any::<u8>()) {
        let row = FOLLOWED.iter().chain(&OTHERS).nth(nth).expect("nine rows");
        prop_assume!(row.counted > 0);
        let length = u32::from(any % row.counted);
        prop_assert!(row.payload(&header(row, length, filler)) > u32::MAX - u32::from(row.counted));
    }
}
