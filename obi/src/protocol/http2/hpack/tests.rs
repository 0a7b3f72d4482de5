//! Tests of the decoder: blocks in, fields out; an independent decoder with the whole history says what is right.

use super::*;
use crate::protocol::wire::header_block::{Coding, Encoder};
use proptest::prelude::*;

type Fields = Vec<(String, String)>;

const NAMES: [(Name, &str); Name::KEPT] = [
    (Name::Authority, ":authority"),
    (Name::Method, ":method"),
    (Name::Path, ":path"),
    (Name::Status, ":status"),
    (Name::Host, "host"),
    (Name::ContentType, "content-type"),
    (Name::ContentLength, "content-length"),
    (Name::UserAgent, "user-agent"),
    (Name::Traceparent, "traceparent"),
    (Name::Tracestate, "tracestate"),
    (Name::GrpcStatus, "grpc-status"),
    (Name::GrpcMessage, "grpc-message"),
    (Name::GrpcTimeout, "grpc-timeout"),
];

/// A value as a table keeps it.
fn shown(name: Name, value: &[u8]) -> String {
    let mut kept = Vec::new();
    keep(name, value, &mut kept);
    String::from_utf8_lossy(&kept).into_owned()
}

/// What the oracle's fields should come to: the first of each name.
fn expected(fields: &[(Vec<u8>, Vec<u8>)], name: Name) -> Option<String> {
    let mut found = fields.iter().filter(|field| Name::of(&field.0) == name);
    let first = found.next()?;
    let is_double = name == Name::Traceparent && found.next().is_some();
    Some(if is_double { String::new() } else { shown(name, &first.1) })
}

/// Compares all that is known with the oracle; returns how many fields are not known. Joined in the middle, the first
/// of several fields of one name may be among the unknown ones.
fn compare(head: &Head, oracle: &[(Vec<u8>, Vec<u8>)], is_whole: bool) -> u32 {
    for (name, _) in NAMES {
        let right = expected(oracle, name);
        match head.get(name) {
            Some(value) if is_whole || (name == Name::Traceparent && value.is_empty()) => {
                assert_eq!(Some(shown(name, value)), right, "{name:?}")
            }
            Some(value) => {
                let mut all = oracle.iter().filter(|field| Name::of(&field.0) == name);
                assert!(
                    all.any(|field| shown(name, &field.1) == shown(name, value)),
                    "{name:?} is {value:x?}"
                );
            }
            None => assert!(!is_whole || right.is_none(), "{name:?} should be {right:?}"),
        }
    }
    head.unknown()
}

#[test]
fn blocks_of_the_specification() {
    // RFC 7541 C.4: three requests on one connection, Huffman coded.
    let blocks: [&[u8]; 3] = [
        &[
            0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4,
            0xff,
        ],
        &[0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf],
        &[
            0x82, 0x87, 0x85, 0xbf, 0x40, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 0x89, 0x25,
            0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf,
        ],
    ];
    let (mut decoder, mut head) = (Decoder::default(), Head::default());
    for (block, path) in blocks.into_iter().zip(["/", "/", "/index.html"]) {
        assert_eq!(decoder.decode(block, &mut head), Ok(()));
        let known = [Name::Method, Name::Authority, Name::Path].map(|name| head.get(name).unwrap());
        assert_eq!(known, [b"GET".as_slice(), b"www.example.com", path.as_bytes()]);
        assert_eq!((head.unknown(), head.get(Name::Status), head.has(Name::Status)), (0, None, false));
    }
    // The same without the first block: what refers to it is not known, the rest is.
    let mut late = Decoder::default();
    late.decode(blocks[1], &mut head).unwrap();
    assert_eq!((head.get(Name::Authority), head.get(Name::Path), head.unknown()), (None, Some(&b"/"[..]), 1));
}

#[test]
fn what_no_encoder_makes_is_refused() {
    let check = |block: &[u8]| {
        assert_eq!(Decoder::default().decode(block, &mut Head::default()), Err(Malformed), "{block:x?}");
    };
    check(&[0x80]);
    check(&[0xff]);
    check(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    check(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    check(&[0x44]);
    check(&[0x44, 0x05, b'/']);
    check(&[0x44, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    check(&[0x44, 0x81, 0x18]);
    check(&[0x00, 0x81, 0xff, 0x00]);
}

#[test]
fn no_secret_is_kept() {
    let fields = [
        (":path", "/a;s=secret?t=secret"),
        (":authority", "me:secret@host"),
        ("cookie", "secret"),
        ("authorization", "secret"),
        ("x-token", "secret"),
    ];
    let (mut encoder, mut decoder, mut head) = (Encoder::new(1), Decoder::default(), Head::default());
    decoder.decode(&encoder.encode(&fields, Coding::Eager), &mut head).unwrap();
    // As indices, from the table.
    decoder.decode(&encoder.encode(&fields, Coding::Eager), &mut head).unwrap();
    assert_eq!(head.get(Name::Path), Some(&b"/a;s=REDACTED?t=REDACTED"[..]));
    assert_eq!(head.get(Name::Authority), Some(&b"host"[..]));
    assert!(!format!("{decoder:?}").contains(&format!("{:?}", b"secret").replace(['[', ']'], "")));
}

/// Random fields, of names that matter and others, with values that come again and others.
fn blocks() -> impl Strategy<Value = Vec<Fields>> {
    let name = prop_oneof![
        4 => prop::sample::select(NAMES.map(|(_, name)| name.to_owned()).to_vec()),
        2 => prop::sample::select(vec!["cookie".to_owned(), "x-a".into(), "x-a-long-name-of-its-own".into()]),
        1 => "[a-z-]{1,40}",
    ];
    let value = prop_oneof![
        3 => prop::sample::select(vec!["/", "200", "GET", "500", "a", ""]).prop_map(str::to_owned),
        2 => "/[a-z]{1,3}\\?[a-z]{1,2}=[0-9]{1,4}",
        2 => "[ -~]{0,60}",
        1 => "[a-z]{300,900}",
    ];
    prop::collection::vec(prop::collection::vec((name, value), 0..10), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every value is that of an independent decoder; joined anywhere, every known value is too.
    #[test]
    fn equal_to_the_oracle_and_never_wrong(
        blocks in blocks(),
        seed: u64,
        coding in prop::sample::select(vec![Coding::Random, Coding::Eager, Coding::Selective, Coding::Plain]),
        sizes in prop::collection::vec((0_usize..40, 0_usize..9_000), 0..4),
        join in 0_usize..40,
        gap in 0_usize..40,
    ) {
        let (mut encoder, mut oracle) = (Encoder::new(seed), loona_hpack::Decoder::new());
        let (mut whole, mut late, mut gapped) = (Decoder::default(), Decoder::default(), Decoder::default());
        let mut head = Head::default();
        for (nth, fields) in blocks.iter().enumerate() {
            if let Some((_, bytes)) = sizes.iter().find(|size| size.0 == nth) && !fields.is_empty() {
                encoder.resize(*bytes);
            }
            let block = encoder.encode(fields, coding);
            let right = oracle.decode(&block).unwrap();
            prop_assert_eq!(right.len(), fields.len());
            whole.decode(&block, &mut head).unwrap();
            prop_assert_eq!(compare(&head, &right, true), 0);
            if nth >= join {
                late.decode(&block, &mut head).unwrap();
                compare(&head, &right, false);
            }
            if nth == gap {
                gapped.forget();
            } else {
                gapped.decode(&block, &mut head).unwrap();
                compare(&head, &right, nth < gap);
            }
        }
    }

    /// Bytes that no encoder made do no harm.
    #[test]
    fn any_bytes_are_survived(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let (mut decoder, mut head) = (Decoder::default(), Head::default());
        for block in blocks {
            let _ = decoder.decode(&block, &mut head);
            prop_assert!(decoder.capacity() < 200_000);
        }
    }
}
