//! pprof there and back, alone and by way of OTLP.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use integration::otlp::profile_rules;
use obi::export::otlp::profile as otlp;
use obi::export::pprof::{DecodeError, decode, encode, merged};
use proptest::prelude::*;

use super::otlp::data;
use super::selection::{content, counted, random};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost(seed: u64, n_samples in 0_usize..150) {
        let selection = random(seed, n_samples);
        let bytes = encode(&selection);
        prop_assert_eq!(content(&decode(&bytes).unwrap()), content(&selection));
        prop_assert_eq!(encode(&random(seed, n_samples)), bytes);
    }

    #[test]
    fn both_formats_say_the_same(seed: u64, n_samples in 1_usize..150) {
        let selection = random(seed, n_samples);
        let there = decode(&encode(&otlp::decode(&otlp::encode(&selection)[0].bytes).unwrap())).unwrap();
        prop_assert_eq!(content(&there), content(&selection));
        let back = otlp::decode(&otlp::encode(&decode(&encode(&selection)).unwrap())[0].bytes).unwrap();
        prop_assert_eq!(content(&back), content(&selection));
    }

    #[test]
    fn any_bytes_are_a_selection_or_an_error(seed: u64, places in proptest::collection::vec(any::<(u16, u8)>(), 1..8)) {
        let mut bytes = plain(&encode(&random(seed, 5)));
        for (place, value) in places {
            let place = usize::from(place) % bytes.len();
            bytes[place] = value;
        }
        if let Ok(selection) = decode(&bytes) {
            // Whatever was read can be written, in the other format too.
            prop_assert!(decode(&encode(&selection)).is_ok());
            for request in otlp::encode(&selection) {
                prop_assert_eq!(profile_rules::violations(&data(&request.bytes)), Vec::<String>::new());
            }
        }
    }
}

fn plain(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    plain
}

#[test]
fn uncompressed_is_read_too() {
    let selection = random(4, 10);
    assert_eq!(content(&decode(&plain(&encode(&selection))).unwrap()), content(&selection));
}

#[test]
fn merging_keeps_stacks_and_spans() {
    let selection = random(6, 100);
    let read = decode(&merged(&selection)).unwrap();
    assert!(read.samples.len() < selection.samples.len());
    let sum = |samples: &[obi::profile::Sample], linked: bool| -> u64 {
        let chosen = samples.iter().filter(|sample| sample.link.is_some() == linked);
        counted(chosen)
    };
    for linked in [false, true] {
        assert_eq!(sum(&read.samples, linked), sum(&selection.samples, linked));
    }
}

#[test]
fn a_bomb_is_refused() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; 1 << 20];
    (0..65).for_each(|_| encoder.write_all(&zeros).unwrap());
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    assert!(matches!(decode(&bomb), Err(DecodeError::TooLarge)));
    let truncated = &encode(&random(1, 50))[..100];
    assert!(matches!(decode(truncated), Err(DecodeError::Gzip(_))));
    assert!(matches!(decode(b""), Err(DecodeError::UnknownType)));
    assert!(matches!(decode(b"\xff\xff"), Err(DecodeError::Message(_))));
}
