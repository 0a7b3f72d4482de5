//! Paths: no panic, bounded templates, and the template of a template is itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::span::route::{OVERFLOW, Routes, template};

fuzz_target!(|input: &[u8]| {
    let path = String::from_utf8_lossy(input);
    let (mut once, mut twice) = (String::new(), String::new());
    template(&path, &mut once);
    template(&once, &mut twice);
    assert_eq!(once, twice);
    assert!(once.len() <= 260);
    let mut routes = Routes::new(1);
    assert_eq!(&**routes.route(1, &path), once);
    assert!([once.as_str(), OVERFLOW].contains(&&**routes.route(1, "/another")) || once == "/another");
});
