//! Paths: no panic, bounded routes, and the route of a route is itself.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use obi::span::route::{OVERFLOW, Request, Routes};
use obi::span::{Service, SpanKind};

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let service = Service::default();
    let ask = |routes: &mut Routes, path: &str| {
        let mut route: Arc<str> = Arc::from("");
        let side = SpanKind::Server;
        routes
            .assign(Request { service: &service, side, method: "GET", path, status: Some(200) }, &mut route);
        assert!(route.len() <= 250);
        route
    };
    let mut routes = Routes::new(10);
    // Many paths in one input, so that places are found to vary.
    for path in text.split('\n') {
        ask(&mut routes, path);
        assert!(routes.count(0, SpanKind::Server) <= 10);
    }
    let mut restored = Routes::new(10);
    restored.restore(&routes.state()).expect("we wrote it");
    let path = text.lines().next().unwrap_or("");
    let mut fresh = Routes::new(1);
    let once = ask(&mut fresh, path);
    assert!([&*once, OVERFLOW].contains(&&*ask(&mut fresh, &once)));
});
