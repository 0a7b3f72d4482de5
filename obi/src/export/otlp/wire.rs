//! Protobuf fields, written straight into a buffer.
//!
//! In: field numbers and values. Out: bytes as the protobuf encoding prescribes. Refuses to know what they mean.
//! Spans are encoded with these, without making the generated types' tree of small allocations first; tests decode
//! them with the generated types.

/// A length-delimited field.
pub(super) const LENGTH: u8 = 2;

/// Bytes of `value` as a varint.
#[inline]
pub(super) fn varint_len(value: u64) -> usize {
    // Seven bits per byte, at least one byte.
    (((value | 1).ilog2() + 7) / 7) as usize
}

#[inline]
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_bits(value) | 0x80);
        value >>= 7;
    }
    out.push(low_bits(value));
}

#[inline]
fn low_bits(value: u64) -> u8 {
    (value & 0x7f) as u8
}

/// Tag of a field below 16.
#[inline]
pub(super) const fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// A text or bytes field.
#[inline]
pub(super) fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(tag(field, LENGTH));
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A text or bytes field that is left out when empty.
#[inline]
pub(super) fn bytes_unless_empty(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    if !value.is_empty() {
        bytes(out, field, value);
    }
}

/// A number field as varint.
#[inline]
pub(super) fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(tag(field, 0));
    varint(out, value);
}

/// A `fixed64` field.
#[inline]
pub(super) fn fixed64(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(tag(field, 1));
    out.extend_from_slice(&value.to_le_bytes());
}

/// Bytes of a text or bytes field.
#[inline]
fn bytes_len(length: usize) -> usize {
    1 + varint_len(length as u64) + length
}

/// A `KeyValue` field with a text value.
#[inline]
pub(super) fn text_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: &str) {
    attribute(out, field, key, bytes_len(value.len()));
    bytes(out, 1, value.as_bytes());
}

/// A `KeyValue` field with a whole number.
#[inline]
pub(super) fn number_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: i64) {
    let value = value.cast_unsigned();
    attribute(out, field, key, 1 + varint_len(value));
    number(out, 3, value);
}

/// A `KeyValue` field with yes or no.
#[inline]
pub(super) fn bool_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: bool) {
    attribute(out, field, key, 2);
    number(out, 2, value.into());
}

/// Everything of a `KeyValue` up to its `AnyValue`, which has `value_len` bytes.
#[inline]
fn attribute(out: &mut Vec<u8>, field: u8, key: &str, value_len: usize) {
    out.push(tag(field, LENGTH));
    varint(out, (bytes_len(key.len()) + bytes_len(value_len)) as u64);
    bytes(out, 1, key.as_bytes());
    out.push(tag(2, LENGTH));
    varint(out, value_len as u64);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::encoding::{encode_varint, encoded_len_varint};

    use super::*;

    proptest! {
        #[test]
        fn varints_are_prosts(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            varint(&mut ours, value);
            encode_varint(value, &mut theirs);
            prop_assert_eq!(varint_len(value), encoded_len_varint(value));
            prop_assert_eq!(ours, theirs);
        }
    }
}
