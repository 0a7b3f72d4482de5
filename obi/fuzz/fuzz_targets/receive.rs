//! OTLP in: weighing and decoding of all kinds and formats. No panic; what is decoded is within its budget, which is
//! given back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::receive::budget::Budget;
use obi::receive::decode::Body;
use obi::receive::{Format, Kind, weigh};

const BUDGET: usize = 4 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else { return };
    let budget = Budget::new(BUDGET);
    let format = if first & 1 == 0 { Format::Protobuf } else { Format::Json };
    let bytes = bytes.to_vec().into();
    let body = Body { bytes, format, budget: &budget, host: "here", finds_requests: true };
    match Kind::ALL[usize::from(first >> 1) % 3] {
        Kind::Traces => {
            if let Ok(decoded) = body.spans() {
                for received in &decoded.batch.spans {
                    let span = &received.span;
                    assert!(span.trace_id != [0; 16] && span.span_id != [0; 8] && span.end >= span.start);
                    let mut n_bytes = 0;
                    span.attributes(|name, value| n_bytes += name.len() + value.to_string().len());
                    assert!(n_bytes <= 64 << 10);
                }
                assert!(budget.used() <= BUDGET as u64);
            }
        }
        kind => {
            if let Ok((bytes, n_items, _share)) = body.passed(kind) {
                assert_eq!(weigh(kind, &bytes).map(|weight| weight.items), Some(n_items));
            }
        }
    }
    assert_eq!(budget.used(), 0);
});
