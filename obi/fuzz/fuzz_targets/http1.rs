//! Heads: no panic, bounded texts, and what was truncated still has an outcome.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::protocol::Version;
use obi::protocol::http1::{Parsed, RequestText, parse_request, parse_response, terminate_truncated};

fuzz_target!(|input: &[u8]| {
    let mut text = RequestText::default();
    if let Parsed::Whole(request) = parse_request(input, &mut text) {
        assert!(request.path.len() <= 2048 && request.query.len() <= 2048 && request.host.len() <= 255);
        assert_ne!(request.version, Version::Http2);
        for parameter in request.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let cut = request.query.len() == 2048;
            assert!(cut || parameter == "REDACTED" || parameter.ends_with("=REDACTED"), "{parameter}");
        }
    }
    if let Parsed::Whole(response) = parse_response(input) {
        assert!(response.status.is_some_and(|status| (100..=999).contains(&status)));
    }
    let mut head = input.to_vec();
    terminate_truncated(&mut head);
    assert_ne!(parse_request(&head, &mut text), Parsed::Incomplete);
});
