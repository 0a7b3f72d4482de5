//! A `Span` message, read where it lies (opentelemetry-proto, `trace.proto`).
//!
//! In: its bytes. Out: its fields, as texts and numbers of those bytes. What SDKs send day by day is read without a
//! copy of any text. Of anything else (fields that come twice, lists, fields of later versions, damage) the generated
//! type's decoder has the word. Refuses to know what the fields mean.

use std::borrow::Cow;

use opentelemetry_proto::tonic::common::v1::any_value::Value as Generated;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue};
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use prost::bytes::Buf as _;
use prost::encoding::WireType::{LengthDelimited, SixtyFourBit, ThirtyTwoBit, Varint};
use prost::encoding::{decode_key, decode_varint};

use super::{SHOWN_ATTRIBUTES, cut};
use crate::span::sdk::Value;

/// Room for the attributes of a span, at first.
const ATTRIBUTES: usize = 16;

/// What a span says of itself. What is missing is empty or 0.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fields<'a> {
    pub(super) trace_id: &'a [u8],
    pub(super) span_id: &'a [u8],
    pub(super) parent_span_id: &'a [u8],
    pub(super) trace_state: &'a str,
    pub(super) flags: u32,
    pub(super) name: &'a str,
    pub(super) kind: i32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) attributes: Vec<(&'a str, Any<'a>)>,
    /// Of its status.
    pub(super) code: i32,
    pub(super) message: &'a str,
}

/// The value of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Any<'a> {
    /// None, or of a kind that is not shown.
    None,
    Text(&'a str),
    Bool(bool),
    Int(i64),
    Double(f64),
    /// So many.
    Bytes(usize),
    List(&'a ArrayValue),
    /// A map of so many.
    Map(usize),
}

impl<'a> Fields<'a> {
    /// Of a span that holds nothing unusual; `None` of any other, be it valid or not.
    pub(super) fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Self { attributes: Vec::with_capacity(ATTRIBUTES), ..Self::default() };
        let mut seen = 0_u32;
        while !bytes.is_empty() {
            let (number, wire) = decode_key(&mut bytes).ok()?;
            let bit = 1_u32.checked_shl(number)?;
            if !matches!(number, 9 | 11 | 13) {
                if seen & bit != 0 {
                    return None;
                }
                seen |= bit;
            }
            match (number, wire) {
                (1, LengthDelimited) => fields.trace_id = content(&mut bytes)?,
                (2, LengthDelimited) => fields.span_id = content(&mut bytes)?,
                (3, LengthDelimited) => fields.trace_state = text(&mut bytes)?,
                (4, LengthDelimited) => fields.parent_span_id = content(&mut bytes)?,
                (5, LengthDelimited) => fields.name = text(&mut bytes)?,
                (6, Varint) => fields.kind = enumeration(&mut bytes)?,
                (7, SixtyFourBit) => fields.start = bytes.try_get_u64_le().ok()?,
                (8, SixtyFourBit) => fields.end = bytes.try_get_u64_le().ok()?,
                (9, LengthDelimited) => fields.attributes.push(attribute(content(&mut bytes)?)?),
                // What was left out: attributes, events, links.
                (10 | 12 | 14, Varint) => {
                    decode_varint(&mut bytes).ok()?;
                }
                // Passed on, if they are valid.
                (11, LengthDelimited) => drop(Event::decode(content(&mut bytes)?).ok()?),
                (13, LengthDelimited) => drop(Link::decode(content(&mut bytes)?).ok()?),
                (15, LengthDelimited) => (fields.code, fields.message) = status(content(&mut bytes)?)?,
                (16, ThirtyTwoBit) => fields.flags = bytes.try_get_u32_le().ok()?,
                _ => return None,
            }
        }
        Some(fields)
    }

    /// Of any span.
    pub(super) fn of(sent: &'a Sent) -> Self {
        let attributes = sent.attributes.iter().map(|it| (&*it.key, Any::of(it.value.as_ref())));
        let status = sent.status.as_ref();
        Self {
            trace_id: &sent.trace_id,
            span_id: &sent.span_id,
            parent_span_id: &sent.parent_span_id,
            trace_state: &sent.trace_state,
            flags: sent.flags,
            name: &sent.name,
            kind: sent.kind,
            start: sent.start_time_unix_nano,
            end: sent.end_time_unix_nano,
            attributes: attributes.collect(),
            code: status.map_or(0, |status| status.code),
            message: status.map_or("", |status| &status.message),
        }
    }

    /// Whether its sender calls it an error.
    pub(super) fn is_error(&self) -> bool {
        self.code == StatusCode::Error as i32
    }
}

impl<'a> Any<'a> {
    /// Of a value by its generated type.
    pub(super) fn of(value: Option<&'a AnyValue>) -> Self {
        match value.and_then(|value| value.value.as_ref()) {
            Some(Generated::StringValue(text)) => Self::Text(text),
            Some(Generated::BoolValue(yes)) => Self::Bool(*yes),
            Some(Generated::IntValue(number)) => Self::Int(*number),
            Some(Generated::DoubleValue(number)) => Self::Double(*number),
            Some(Generated::BytesValue(bytes)) => Self::Bytes(bytes.len()),
            Some(Generated::ArrayValue(list)) => Self::List(list),
            Some(Generated::KvlistValue(map)) => Self::Map(map.values.len()),
            _ => Self::None,
        }
    }

    /// As it is shown: what is long is cut.
    pub(super) fn shown(self) -> Option<Value<'a>> {
        let made = |text: String| Some(Value::Text(Cow::Owned(text)));
        match self {
            Self::None => None,
            Self::Text(text) => Some(Value::Text(Cow::Borrowed(cut(text)))),
            Self::Bool(yes) => Some(Value::Bool(yes)),
            Self::Int(number) => Some(Value::Int(number)),
            Self::Double(number) => made(number.to_string()),
            Self::Bytes(n_bytes) => made(format!("{n_bytes} bytes")),
            Self::Map(n_values) => made(format!("{n_values} values")),
            Self::List(list) => {
                let parts = list.values.iter().take(SHOWN_ATTRIBUTES);
                let parts = parts.filter_map(|part| Self::of(Some(part)).shown());
                let parts: Vec<String> = parts.map(|part| part.to_string()).collect();
                made(cut(&format!("[{}]", parts.join(", "))).to_owned())
            }
        }
    }
}

/// A length, and so many bytes.
pub(super) fn content<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    bytes.split_off(..length)
}

fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    str::from_utf8(content(bytes)?).ok()
}

/// The low half of a number, as protobuf has it of enumerations.
fn enumeration(bytes: &mut &[u8]) -> Option<i32> {
    let number = decode_varint(bytes).ok()?;
    Some((number & u64::from(u32::MAX)).try_into().map_or(0, u32::cast_signed))
}

fn attribute(mut bytes: &[u8]) -> Option<(&str, Any<'_>)> {
    let (mut key, mut value) = (None, None);
    while !bytes.is_empty() {
        match decode_key(&mut bytes).ok()? {
            (1, LengthDelimited) if key.is_none() => key = Some(text(&mut bytes)?),
            (2, LengthDelimited) if value.is_none() => value = Some(scalar(content(&mut bytes)?)?),
            _ => return None,
        }
    }
    Some((key.unwrap_or_default(), value.unwrap_or(Any::None)))
}

/// One value that is no list and no map.
fn scalar(mut bytes: &[u8]) -> Option<Any<'_>> {
    if bytes.is_empty() {
        return Some(Any::None);
    }
    let value = match decode_key(&mut bytes).ok()? {
        (1, LengthDelimited) => Any::Text(text(&mut bytes)?),
        (2, Varint) => Any::Bool(decode_varint(&mut bytes).ok()? != 0),
        (3, Varint) => Any::Int(decode_varint(&mut bytes).ok()?.cast_signed()),
        (4, SixtyFourBit) => Any::Double(bytes.try_get_f64_le().ok()?),
        (7, LengthDelimited) => Any::Bytes(content(&mut bytes)?.len()),
        _ => return None,
    };
    bytes.is_empty().then_some(value)
}

fn status(mut bytes: &[u8]) -> Option<(i32, &str)> {
    let (mut code, mut message) = (None, None);
    while !bytes.is_empty() {
        match decode_key(&mut bytes).ok()? {
            (2, LengthDelimited) if message.is_none() => message = Some(text(&mut bytes)?),
            (3, Varint) if code.is_none() => code = Some(enumeration(&mut bytes)?),
            _ => return None,
        }
    }
    Some((code.unwrap_or_default(), message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{KeyValue, KeyValueList};
    use opentelemetry_proto::tonic::trace::v1::Status;
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Option<Generated>> {
        prop_oneof![
            6 => "\\PC{0,12}".prop_map(|text| Some(Generated::StringValue(text))),
            2 => any::<i64>().prop_map(|number| Some(Generated::IntValue(number))),
            1 => any::<f64>().prop_map(|number| Some(Generated::DoubleValue(number))),
            1 => any::<bool>().prop_map(|yes| Some(Generated::BoolValue(yes))),
            1 => proptest::collection::vec(any::<u8>(), 0..4).prop_map(|it| Some(Generated::BytesValue(it))),
            1 => Just(None),
        ]
    }

    fn list_or_map() -> impl Strategy<Value = Generated> {
        let value = value().prop_map(|value| AnyValue { value });
        let map = |value: AnyValue| KeyValue { value: Some(value), ..KeyValue::default() };
        proptest::collection::vec(value, 0..3).prop_flat_map(move |values| {
            prop_oneof![
                Just(Generated::ArrayValue(ArrayValue { values: values.clone() })),
                Just(Generated::KvlistValue(KeyValueList { values: values.into_iter().map(map).collect() })),
            ]
        })
    }

    fn pair(value: impl Strategy<Value = Option<Generated>>) -> impl Strategy<Value = KeyValue> {
        let value = value.prop_map(|value| AnyValue { value });
        ("[a-z.]{0,9}", proptest::option::weighted(0.9, value)).prop_map(|(key, value)| KeyValue {
            key,
            value,
            ..KeyValue::default()
        })
    }

    prop_compose! {
        /// A span as SDKs send it.
        fn span()(
            (trace_id, span_id, parent_span_id) in (any::<[u8; 16]>(), any::<[u8; 8]>(), any::<[u8; 8]>()),
            (name, trace_state) in ("\\PC{0,9}", "[a-z=;]{0,9}"),
            (kind, flags) in (0..6, any::<u32>()),
            (start_time_unix_nano, end_time_unix_nano, dropped_links_count) in any::<(u64, u64, u32)>(),
            attributes in proptest::collection::vec(pair(value()), 0..9),
            (code, message) in (0..3, "\\PC{0,9}"),
            has_status: bool,
            (events, links) in (0..3_usize, 0..3_usize),
        ) -> Sent {
            let event = Event { name: "cache miss".to_owned(), ..Event::default() };
            Sent {
                trace_id: trace_id.to_vec(),
                span_id: span_id.to_vec(),
                parent_span_id: parent_span_id.to_vec(),
                name, trace_state, kind, flags, start_time_unix_nano, end_time_unix_nano, attributes,
                dropped_links_count,
                events: vec![event; events],
                links: vec![Link { flags, ..Link::default() }; links],
                status: has_status.then_some(Status { code, message }),
                ..Sent::default()
            }
        }
    }

    /// What is read is what the generated type's decoder reads. Debug, since a number may be none.
    fn check(bytes: &[u8]) {
        if let Some(read) = Fields::read(bytes) {
            let decoded = Sent::decode(bytes).expect("what was read is valid");
            assert_eq!(format!("{read:?}"), format!("{:?}", Fields::of(&decoded)));
        }
    }

    proptest! {
        #[test]
        fn what_sdks_send_is_read_where_it_lies(sent in span()) {
            let bytes = sent.encode_to_vec();
            prop_assert!(Fields::read(&bytes).is_some());
            check(&bytes);
        }

        #[test]
        fn damage_is_read_as_the_generated_decoder_does(
            sent in span(),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
            length: proptest::sample::Index,
        ) {
            let mut bytes = sent.encode_to_vec();
            prop_assume!(!bytes.is_empty());
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            check(&bytes);
            check(&bytes[..length.index(bytes.len())]);
        }

        #[test]
        fn the_unusual_is_left_to_it(sent in span(), other in span(), value in list_or_map()) {
            // Two spans in a row are one, whose later fields hold.
            let twice = [sent.encode_to_vec(), other.encode_to_vec()].concat();
            check(&twice);
            let mut sent = sent;
            let value = Some(AnyValue { value: Some(value) });
            sent.attributes.push(KeyValue { key: "list".to_owned(), value, ..KeyValue::default() });
            prop_assert!(Fields::read(&sent.encode_to_vec()).is_none());
        }
    }
}
