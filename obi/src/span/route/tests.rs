//! Paths and the routes they must get.

use std::sync::Arc;

use proptest::prelude::*;

use super::state::StateError;
use super::*;
use crate::span::{Service, SpanKind};

/// Routes of one service's GET requests.
struct Learner(Routes);

impl Learner {
    fn new(limit: usize) -> Self {
        Self(Routes::new(limit))
    }

    fn ask(&mut self, service: u32, method: &'static str, path: &str, status: u16) -> String {
        let service = Service { name: format!("s{service}"), id: service, ..Service::default() };
        let (side, status) = (SpanKind::Server, Some(status));
        let mut route = Arc::from("left over");
        self.0.assign(Request { service: &service, side, method, path, status }, &mut route);
        route.to_string()
    }

    fn get(&mut self, path: &str) -> String {
        self.ask(1, "GET", path, 200)
    }
}

fn check(path: &str, expected: &str) {
    assert_eq!(Learner::new(10).get(path), expected, "`{path}`");
}

#[test]
fn words_stay() {
    for path in [
        "",
        "/",
        "*",
        "/a",
        "/a/",
        "//",
        "/api/v1/users",
        "/v1beta1/x",
        "/oauth2/token",
        "/base64",
        "/utf8",
        "/md5",
        "/sha256",
        "/ipv4",
        "/index.html",
        "/.well-known/openid-configuration",
        "/a%20b",
        "/caf%C3%A9",
        "/café",
        "/getUserAccountDetailsByIdentifier",
        "/Some-Long-Title-With-Many-Words-In-It",
        "/decade",
        "/facade",
        "/API_KEYS",
        "/~root",
        "/{id}",
        "/s3cr3t",
        "/2fa/setup",
        "/deadbeef",
    ] {
        check(path, path);
    }
}

#[test]
fn identifiers_are_one_variable() {
    check("/users/42/orders/7", "/users/{id}/orders/{id}");
    check("/page-2", "/page-{id}");
    check("/reports/2024-01-05.pdf", "/reports/{id}-{id}-{id}.pdf");
    check("/reports/2024-01-05", "/reports/{id}");
    check("/reports/2024-01-05T10:00:00Z", "/reports/{id}");
    check("/tiles/3.5,7", "/tiles/{id}");
    check("/files/123.json", "/files/{id}.json");
    check("/order-12345", "/order-{id}");
    check("/user12345", "/{id}");
    check("/x/0af76519-16cd-43dd-8448-eb211c80319c/y", "/x/{id}/y");
    check("/x/0AF76519-16CD-43DD-8448-EB211C80319C", "/x/{id}");
    check("/x/0af7651916cd43dd8448eb211c80319c", "/x/{id}");
    check("/x/abcdefabcdefabcd", "/x/{id}");
    check("/commit/3f2a9c8", "/commit/{id}");
    check("/app.3f2a9c8b7d.js", "/app.{id}.js");
    check("/x/01ARZ3NDEKTSV4RRFFQ69G5FAV", "/x/{id}");
    check("/watch/dQw4w9WgXcQ", "/watch/{id}");
    check("/t/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "/t/{id}");
    check("/t/dGhpc19pc19hX3Rlc3Q-MTIz_NDU2", "/t/{id}");
    check("/mail/bob@example.com", "/mail/{id}");
    check("/@bob", "/{id}");
    check("/a;jsessionid=REDACTED/b;v=1", "/a/b");
}

#[test]
fn odd_paths_have_a_route() {
    check("nonsense", "*");
    check("a/b", "*");
    check(&"/a".repeat(12), &"/a".repeat(12));
    check(&"/a".repeat(13), &format!("{}/*", "/a".repeat(12)));
    check(&format!("/a/{}", "z".repeat(400)), "/a/*");
}

fn name(nth: usize) -> String {
    ["al", "bo", "ca", "di", "el", "fa", "gu", "ho"][nth % 8].to_owned()
        + ["ra", "se", "ti"][nth / 8 % 3]
        + &"n".repeat(nth / 24)
}

#[test]
fn names_are_learned_and_words_beside_them_stay() {
    let mut routes = Learner::new(100);
    routes.ask(1, "POST", "/users/alse", 200);
    for nth in 0..20 {
        assert_eq!(routes.get("/users/popular"), "/users/popular");
        routes.get(&format!("/users/{}", name(nth)));
        routes.get(&format!("/users/{}/orders/{nth}", name(nth)));
    }
    for (path, expected) in [
        ("/users/zoe", "/users/{id}"),
        ("/users/zoe/orders/7", "/users/{id}/orders/{id}"),
        ("/users/42", "/users/{id}"),
        ("/users/alra", "/users/{id}"),
        ("/users/popular", "/users/popular"),
        ("/users/me", "/users/me"),
        ("/users/search", "/users/search"),
    ] {
        assert_eq!(routes.get(path), expected, "{path}");
    }
    assert_eq!(routes.ask(1, "POST", "/users/alse", 200), "/users/{id}", "all methods learn together");
}

#[test]
fn a_large_interface_is_no_variable() {
    let mut routes = Learner::new(1000);
    let paths: Vec<_> = (0..90).map(|nth| format!("/{}", name(nth))).collect();
    // A busy interface: its words have long been seen when a further one comes.
    for (nth, path) in paths.iter().enumerate() {
        for known in &paths[..nth] {
            assert_eq!(routes.get(known), *known);
            routes.get(known);
        }
        assert_eq!(routes.get(path), *path);
    }
}

#[test]
fn what_does_not_exist_teaches_nothing() {
    let mut routes = Learner::new(100);
    routes.get("/users/42");
    for status in [404, 405] {
        let mut check = |method, path: &str, expected: &str| {
            assert_eq!(routes.ask(1, method, path, status), expected, "{method} {path} {status}");
        };
        check("GET", "/users/43", "/users/{id}");
        check("GET", "/users", "");
        check("GET", "/users/alice", "");
        check("POST", "/users/43", "");
        check("GET", "/wp-admin.php", "");
    }
    assert_eq!(routes.0.count(1, SpanKind::Server), 1);
}

#[test]
fn routes_are_shared_and_bounded() {
    let mut routes = Learner::new(2);
    assert_eq!(routes.get("/a/1"), "/a/{id}");
    assert_eq!(routes.get("/a/2"), "/a/{id}");
    assert_eq!(routes.get("/b"), "/b");
    assert_eq!(routes.get("/c"), OVERFLOW);
    assert_eq!(routes.get("/b"), "/b");
    assert_eq!(routes.ask(2, "GET", "/c", 200), "/c");
    routes.0.forget(1);
    assert_eq!(routes.get("/c"), "/c");
    // What is merged makes room again.
    let mut routes = Learner::new(20);
    for nth in 0..200 {
        routes.get(&format!("/users/{}", name(nth)));
    }
    assert_eq!(routes.get("/users/somebody"), "/users/{id}");
    assert_eq!(routes.0.count(1, SpanKind::Server), 1);
}

#[test]
fn sides_are_kept_apart() {
    let mut routes = Routes::new(1);
    let service = Service { id: 1, ..Service::default() };
    for (side, path) in [(SpanKind::Server, "/a"), (SpanKind::Client, "/b")] {
        let mut route = Arc::from("");
        routes
            .assign(Request { service: &service, side, method: "GET", path, status: Some(200) }, &mut route);
        assert_eq!(&*route, path);
    }
}

#[test]
fn configured_patterns_win_and_teach_nothing() {
    let mut routes = Learner::new(10);
    assert_eq!(routes.get("/users/alice"), "/users/alice");
    routes.0.configure(Patterns::new(&["/users/{name}"]).unwrap(), 1);
    assert_eq!(routes.get("/users/alice"), "/users/{name}");
    assert_eq!(routes.ask(1, "GET", "/users/bob", 404), "/users/{name}");
    assert_eq!(routes.get("/users"), OVERFLOW, "the new bound holds");
    routes.0.configure(Patterns::default(), 10);
    assert_eq!(routes.get("/users/alice"), "/users/alice", "what was learned has stayed");
}

#[test]
fn a_broken_state_is_refused() {
    let check = |text: &str, expected: fn(&StateError) -> bool| {
        let mut routes = Routes::new(10);
        let error = routes.restore(text.as_bytes()).unwrap_err();
        assert!(expected(&error), "{text}: {error}");
        assert_eq!(routes.nodes(), 0);
    };
    check("", |error| matches!(error, StateError::Invalid(_)));
    check("{\"version\":1,\"trees\":[{}]}", |error| matches!(error, StateError::Invalid(_)));
    check("{\"version\":2,\"forest\":[]}", |error| matches!(error, StateError::Version(2)));
    let deep = format!("{}{}{}", "{\"v\":".repeat(20), "{}", "}".repeat(20));
    let deep = format!("{{\"version\":1,\"trees\":[{{\"service\":\"s\",\"root\":{deep}}}]}}");
    check(&deep, |error| matches!(error, StateError::Depth));
}

proptest! {
    #[test]
    fn routes_are_bounded_and_routes_of_themselves(
        path in "/?[a-zA-Z0-9/;=%@._{}é-]{0,300}",
        any in "\\PC{0,300}",
    ) {
        for path in [path, any] {
            let mut routes = Learner::new(10);
            let once = routes.get(&path);
            let twice = routes.get(&once);
            prop_assert_eq!(&once, &twice);
            prop_assert!(once.len() <= MAX_BYTES + OVERFLOW.len());
        }
    }

    #[test]
    fn numbers_and_ids_never_make_routes(number in any::<u64>(), uuid in any::<u128>(), hash in any::<[u64; 2]>()) {
        let uuid = format!("{uuid:032x}");
        let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
        let path = format!("/n/{number}/u/{uuid}/h/{:016x}{:016x}/w", hash[0], hash[1]);
        prop_assert_eq!(Learner::new(1).get(&path), "/n/{id}/u/{id}/h/{id}/w");
    }
}
