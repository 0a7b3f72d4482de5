//! Tests of methods: calls in, `rpc.method` and the mark of streams out.

use proptest::prelude::*;

use super::*;

const OK: Option<Code> = Some(Code::OK);

fn service(id: u32) -> Service {
    Service { name: format!("service-{id}"), id, ..Service::default() }
}

fn assign(calls: &mut Calls, id: u32, path: &str, status: Option<Code>, rpc: Rpc<'_>) -> (String, bool) {
    let mut method: Arc<str> = "used".into();
    let call = Call { service: &service(id), side: SpanKind::Server, path, status, rpc };
    let streams = calls.assign(call, &mut method);
    (method.to_string(), streams)
}

/// Messages both ways.
fn counted(request: u32, response: u32) -> Rpc<'static> {
    Rpc { request_messages: Some(request), response_messages: Some(response), ..Rpc::default() }
}

#[test]
fn methods_are_what_was_called() {
    let check = |path: &str, status, expected: &str| {
        let found = assign(&mut Calls::default(), 1, path, status, counted(1, 1));
        assert_eq!(found, (expected.to_owned(), false), "{path}");
    };
    check("/shop.Cart/Add", OK, "shop.Cart/Add");
    check("/Cart/Add", None, "Cart/Add");
    check("/api/shop.Cart/Add", OK, "api/shop.Cart/Add");
    check("/shop.Cart/Add", Some(Code::UNIMPLEMENTED), OTHER);
    for path in ["", "/", "//", "/Add", "/Cart/", "//Add", "shop.Cart/Add", "/Cart/A d", "/Cart/\u{e4}", "*"]
    {
        check(path, OK, OTHER);
    }
    check(&format!("/Cart/{}", "a".repeat(MAX_BYTES)), OK, OTHER);
}

#[test]
fn one_call_marks_its_method_as_streaming() {
    let check = |status, rpc: Rpc<'_>, streams: bool| {
        let mut calls = Calls::default();
        let one = |calls: &mut Calls, path| assign(calls, 1, path, status, rpc).1;
        assert_eq!(one(&mut calls, "/a.B/C"), streams, "{status:?} {rpc:?}");
        let plain = |calls: &mut Calls, id, path| assign(calls, id, path, OK, counted(1, 1)).1;
        assert_eq!(plain(&mut calls, 1, "/a.B/C"), streams, "from then on: {rpc:?}");
        assert!(
            !plain(&mut calls, 1, "/a.B/D") && !plain(&mut calls, 2, "/a.B/C"),
            "another method or service"
        );
    };
    let failed = Some(Code::CANCELLED);
    check(OK, counted(1, 1), false);
    check(OK, counted(2, 1), true);
    check(OK, counted(1, 2), true);
    check(OK, counted(0, 1), true);
    check(OK, counted(1, 0), true);
    check(failed, counted(1, 0), false);
    check(failed, counted(0, 0), false);
    check(failed, counted(7, 0), true);
    check(failed, counted(1, 7), true);
    check(None, counted(0, 0), false);
    check(OK, Rpc::default(), false);
    // What has no name of its own says something only of itself.
    let mut calls = Calls::default();
    let unknown = |calls: &mut Calls, rpc| assign(calls, 1, "", None, rpc);
    assert_eq!(unknown(&mut calls, counted(1, 9)), (OTHER.to_owned(), true));
    assert_eq!(unknown(&mut calls, counted(1, 1)), (OTHER.to_owned(), false));
}

#[test]
fn inventing_methods_takes_no_room_from_those_that_work() {
    let mut calls = Calls::default();
    let denied = Code::of_name("PERMISSION_DENIED");
    let mut known = std::collections::HashSet::new();
    for n in 0..10_000 {
        known.insert(assign(&mut calls, 1, &format!("/x.Y/M{n}"), denied, counted(1, 0)).0);
    }
    assert_eq!(known.len(), UNPROVEN + 1, "and the one that stands for the others");
    for n in 0..METHODS - UNPROVEN {
        let path = format!("/shop.Cart/M{n}");
        assert_eq!(assign(&mut calls, 1, &path, OK, counted(1, 1)).0, path[1..]);
    }
    assert_eq!(assign(&mut calls, 1, "/shop.Cart/Late", OK, counted(1, 1)).0, OTHER);
    assert_eq!(assign(&mut calls, 2, "/shop.Cart/Late", OK, counted(1, 1)).0, "shop.Cart/Late");
    calls.forget(1);
    assert_eq!((calls.n_methods, calls.services.len()), (1, 1));
    assert_eq!(assign(&mut calls, 1, "/shop.Cart/Late", OK, counted(1, 1)).0, "shop.Cart/Late");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn methods_of_all_services_are_bounded(
        seen in prop::collection::vec((0..40_u32, "/[a-c]{0,2}/[a-z]{0,2}", prop::option::of(0..20_u32)), 0..300),
    ) {
        let mut calls = Calls::default();
        for (id, path, status) in seen {
            let (name, _) = assign(&mut calls, id, &path, status.map(Code::of_number), Rpc::default());
            prop_assert!(name == OTHER || name == path[1..]);
        }
        let held: usize = calls.services.values().map(|methods| methods.known.len()).sum();
        prop_assert_eq!(held, calls.n_methods);
        for methods in calls.services.values() {
            let unproven = methods.known.values().filter(|method| !method.has_succeeded).count();
            prop_assert_eq!(unproven, methods.n_unproven);
        }
    }
}
