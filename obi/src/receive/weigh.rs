//! What a message comes to in memory, before it is decoded.
//!
//! In: bytes of an OTLP request. Out: its items and the bytes that decoding it takes, or that it is none. Two bytes
//! of an empty span become hundreds, so looking after the decoding would be too late. Allocates nothing, and refuses
//! to know what the fields mean.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::Kind;

/// What a request comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight {
    /// Spans, points or records.
    pub items: u64,
    /// Memory of its decoded form, about.
    pub bytes: u64,
}

/// A message: what one of it takes beside its content, whether it is an item, and its fields that are messages. Or a
/// text of which there may be many: its bytes are no fields.
struct Shape {
    size: u64,
    is_item: bool,
    is_text: bool,
    fields: &'static [(u32, &'static Shape)],
}

const fn group(size: u64, fields: &'static [(u32, &'static Shape)]) -> Shape {
    Shape { size, is_item: false, is_text: false, fields }
}

const fn item(size: u64, fields: &'static [(u32, &'static Shape)]) -> Shape {
    Shape { size, is_item: true, is_text: false, fields }
}

/// A text in a list.
static TEXT: Shape = Shape { size: 32, is_item: false, is_text: true, fields: &[] };
/// A message without lists.
static LEAF: Shape = group(32, &[]);
static VALUE: Shape = group(64, &[(5, &LIST), (6, &MAP)]);
static LIST: Shape = group(24, &[(1, &VALUE)]);
static MAP: Shape = group(24, &[(1, &ATTRIBUTE)]);
static ATTRIBUTE: Shape = group(128, &[(2, &VALUE)]);
static RESOURCE: Shape = group(128, &[(1, &ATTRIBUTE), (3, &group(128, &[(3, &TEXT), (4, &TEXT)]))]);
static SCOPE: Shape = group(128, &[(3, &ATTRIBUTE)]);

static SPAN: Shape = item(
    384,
    &[
        (9, &ATTRIBUTE),
        (11, &group(96, &[(3, &ATTRIBUTE)])),
        (13, &group(160, &[(4, &ATTRIBUTE)])),
        (15, &LEAF),
    ],
);
static TRACES: Shape =
    group(0, &[(1, &group(256, &[(1, &RESOURCE), (2, &group(256, &[(1, &SCOPE), (2, &SPAN)]))]))]);

static RECORD: Shape = item(384, &[(5, &VALUE), (6, &ATTRIBUTE)]);
static LOGS: Shape =
    group(0, &[(1, &group(256, &[(1, &RESOURCE), (2, &group(256, &[(1, &SCOPE), (2, &RECORD)]))]))]);

static EXEMPLAR: Shape = group(160, &[(7, &ATTRIBUTE)]);
static NUMBER: Shape = item(160, &[(7, &ATTRIBUTE), (5, &EXEMPLAR)]);
static EXPLICIT: Shape = item(288, &[(9, &ATTRIBUTE), (8, &EXEMPLAR)]);
static EXPONENTIAL: Shape =
    item(416, &[(1, &ATTRIBUTE), (8, &group(64, &[])), (9, &group(64, &[])), (11, &EXEMPLAR)]);
static SUMMARY: Shape = item(160, &[(7, &ATTRIBUTE), (6, &LEAF)]);
static METRIC: Shape = group(
    256,
    &[
        (5, &group(64, &[(1, &NUMBER)])),
        (7, &group(64, &[(1, &NUMBER)])),
        (9, &group(64, &[(1, &EXPLICIT)])),
        (10, &group(64, &[(1, &EXPONENTIAL)])),
        (11, &group(64, &[(1, &SUMMARY)])),
        (12, &ATTRIBUTE),
    ],
);
static METRICS: Shape =
    group(0, &[(1, &group(256, &[(1, &RESOURCE), (2, &group(256, &[(1, &SCOPE), (2, &METRIC)]))]))]);

/// Values within values: prost decodes no more.
const DEPTH: u32 = 100;
/// Packed numbers take up to eight bytes for one.
const GROWTH: u64 = 8;

/// Weighs a request; `None` when it is no message of protobuf.
#[must_use]
pub fn weigh(kind: Kind, bytes: &[u8]) -> Option<Weight> {
    let shape = match kind {
        Kind::Traces => &TRACES,
        Kind::Metrics => &METRICS,
        Kind::Logs => &LOGS,
    };
    let mut weight = Weight::default();
    add(shape, bytes, DEPTH, &mut weight)?;
    let content = bytes.len() as u64;
    weight.bytes += if kind == Kind::Metrics { content * GROWTH } else { content };
    Some(weight)
}

fn add(shape: &Shape, mut bytes: &[u8], depth: u32, weight: &mut Weight) -> Option<()> {
    weight.bytes += shape.size;
    weight.items += u64::from(shape.is_item);
    if shape.is_text {
        return Some(());
    }
    let bytes = &mut bytes;
    while !bytes.is_empty() {
        let (field, wire) = decode_key(bytes).ok()?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, field, bytes, DecodeContext::default()).ok()?;
            continue;
        }
        let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
        let content = bytes.split_off(..length)?;
        if let Some((_, inner)) = shape.fields.iter().find(|(number, _)| *number == field) {
            add(inner, content, depth.checked_sub(1)?, weight)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_messages_weigh_what_they_become() {
        let check = |kind, bytes: &[u8], expected: Option<(u64, u64)>| {
            assert_eq!(weigh(kind, bytes).map(|weight| (weight.items, weight.bytes)), expected, "{bytes:?}");
        };
        check(Kind::Traces, &[], Some((0, 0)));
        check(Kind::Traces, &[0x0a, 0], Some((0, 258)));
        // A resource, a scope, three empty spans.
        check(
            Kind::Traces,
            &[0x0a, 8, 0x12, 6, 0x12, 0, 0x12, 0, 0x12, 0],
            Some((3, 256 + 256 + 3 * 384 + 10)),
        );
        check(Kind::Logs, &[0x0a, 4, 0x12, 2, 0x12, 0], Some((1, 256 + 256 + 384 + 6)));
        // Entities of a resource (`entity_refs`), named by texts that are no messages: as the SDK of Java sends them.
        let entity = [&[0x1a, 12][..], b"service.name", &[0x22, 2], b"os"].concat();
        let resource = [&[0x1a, entity.len() as u8][..], &entity].concat();
        let group = [&[0x0a, resource.len() as u8][..], &resource].concat();
        let bytes = [&[0x0a, group.len() as u8][..], &group].concat();
        check(Kind::Traces, &bytes, Some((0, 256 + 128 + 128 + 2 * 32 + bytes.len() as u64)));
        // Lengths beyond the end, keys that are none.
        check(Kind::Traces, &[0x0a, 9, 0x12], None);
        check(Kind::Traces, &[0xff], None);
        check(Kind::Traces, &[0x0a], None);
    }

    /// An attribute whose value is so many lists of lists.
    fn nested(depth: usize) -> Vec<u8> {
        let field = |number: u8, content: &[u8]| {
            let mut out = vec![number << 3 | 2];
            prost::encoding::encode_varint(content.len() as u64, &mut out);
            out.extend_from_slice(content);
            out
        };
        let value = (0..depth).fold(Vec::new(), |inner, _| field(5, &field(1, &inner)));
        let span = field(2, &field(9, &field(2, &value)));
        field(1, &field(2, &span))
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        assert!(weigh(Kind::Traces, &nested(40)).is_some());
        assert!(weigh(Kind::Traces, &nested(60)).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for kind in Kind::ALL {
                if let Some(weight) = weigh(kind, &bytes) {
                    prop_assert!(weight.bytes <= 416 * bytes.len() as u64 + 8 * bytes.len() as u64);
                }
            }
        }
    }
}
