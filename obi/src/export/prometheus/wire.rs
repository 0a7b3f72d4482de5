//! Protobuf's wire format, as much as a metric needs.
//!
//! In: field numbers and values. Out: bytes appended. Refuses to know messages. Messages made by prost hold every label
//! of every series in a string of its own; these bytes are written straight from the snapshot.

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;

/// Appends a number.
pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn key(out: &mut Vec<u8>, field: u32, kind: u32) {
    varint(out, u64::from(field << 3 | kind));
}

/// A `uint32`, `uint64` or enumeration field, or a non-negative `int64`.
pub(super) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    key(out, field, VARINT);
    varint(out, value);
}

/// A `sint32` field.
pub(super) fn signed(out: &mut Vec<u8>, field: u32, value: i64) {
    number(out, field, zigzag(value));
}

/// A `double` field.
pub(super) fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    key(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A `string` or `bytes` field.
pub(super) fn text(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    key(out, field, LENGTH_DELIMITED);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A message or packed field, whose bytes `write` appends.
pub(super) fn message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, field, LENGTH_DELIMITED);
    let start = out.len();
    // Nearly all are shorter than 128 bytes, whose length is one byte; for the others the bytes move.
    out.push(0);
    write(out);
    let length = out.len() - start - 1;
    if let Ok(length @ 0..0x80) = u8::try_from(length) {
        out[start] = length;
        return;
    }
    let mut prefix = Vec::with_capacity(10);
    varint(&mut prefix, length as u64);
    out.splice(start..=start, prefix);
}

/// Appends a signed number of a packed field.
pub(super) fn packed_signed(out: &mut Vec<u8>, value: i64) {
    varint(out, zigzag(value));
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}
