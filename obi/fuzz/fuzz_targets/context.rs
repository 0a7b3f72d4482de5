//! Trace context headers: no panic; what is accepted follows the specification.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::cause::context::{parse_traceparent, valid_tracestate};

fuzz_target!(|input: &[u8]| {
    let header = String::from_utf8_lossy(input);
    if let Some(parent) = parse_traceparent(&header) {
        assert!(parent.trace_id != [0; 16] && parent.span_id != [0; 8] && parent.flags < 4);
        assert!(!header.trim().starts_with("ff"));
    }
    let state = valid_tracestate(&header);
    assert!(state.len() <= 512 && header.contains(state));
    assert_eq!(valid_tracestate(state), state);
});
