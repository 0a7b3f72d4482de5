//! The store with its links and choices: what goes in comes out, is bounded, and is never linked wrongly.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::profile::choose::{Filter, Pace};
use crate::profile::join::{EXPORT_WAIT, Ended, Linked};
use crate::span::{Instance, Service};

const ALL: Filter = Filter {
    kind: SampleKind::Cpu,
    start: 0,
    end: u64::MAX,
    service: None,
    version: None,
    route: None,
    span_id: None,
    trace_id: None,
    pid: None,
    pace: None,
};

fn taken(time: u64, exchange: u64, pid: u32, places: &[u64]) -> RawSample<'_, u64> {
    let (kind, value) = (SampleKind::Cpu, 10);
    RawSample {
        kind,
        value,
        time,
        exchange,
        by_runtime: false,
        pid,
        tid: pid,
        cpu: 0,
        comm: [0; 16],
        places,
        end: 0,
        wait: None,
    }
}

fn ended(exchange: u64, start: u64, end: u64, route: &str) -> Ended {
    Ended {
        exchange,
        start,
        end,
        trace_id: [7; 16],
        span_id: exchange.to_be_bytes(),
        route: route.into(),
        service: Arc::new(Service { name: "shop".to_owned(), id: 1, ..Service::default() }),
        is_server: true,
        is_booked: false,
        is_shared: false,
        continues: None,
    }
}

fn origin(pid: u32, name: &str) -> Arc<Origin> {
    let service = Arc::new(Service { name: name.to_owned(), ..Service::default() });
    Arc::new(Origin { pid, service, ..Origin::default() })
}

/// What a store with a single process without a name takes for it.
fn one_origin() -> usize {
    let mut store = Store::new(1 << 20);
    store.push(taken(1, 0, 1, &[1]));
    store.origins.bytes()
}

/// Times of the samples that a filter wants.
fn times(store: &Store<u64>, filter: &Filter) -> Vec<u64> {
    store.choose(filter).samples.iter().map(|sample| sample.time).collect()
}

#[test]
fn a_sample_is_linked_only_inside_its_span() {
    let mut store = Store::new(1 << 20);
    for time in [99, 100, 150, 200, 201] {
        store.push(taken(time, 5, 1, &[1]));
    }
    store.push(taken(160, 6, 1, &[1]));
    assert_eq!(store.ended(&ended(5, 100, 200, "/a")).of(SampleKind::Cpu), (3, 30));
    assert_eq!((store.counts().linked, store.counts().outside), (3, 2));
    assert_eq!(times(&store, &Filter { span_id: Some(5_u64.to_be_bytes()), ..ALL }), [100, 150, 200]);
    // The number may not be used for another span.
    assert_eq!(store.ended(&ended(5, 0, 1_000, "/a")), Linked::default());
    assert_eq!(times(&store, &Filter { trace_id: Some([7; 16]), ..ALL }), [100, 150, 200]);
    // A span of minutes is linked when it comes.
    assert_eq!(store.ended(&ended(6, 0, 60_000_000_000, "/b")).of(SampleKind::Cpu), (1, 10));
    assert_eq!(times(&store, &Filter { route: Some("/b".to_owned()), ..ALL }), [160]);
}

/// Of a loop that had other requests open: only what its runtime says is a span's; its route's CPU time is all of it.
#[test]
fn what_may_be_another_requests_is_not_linked() {
    let mut store = Store::new(1 << 20);
    for (time, by_runtime) in [(100, false), (110, true), (120, false), (300, true)] {
        store.push(RawSample { by_runtime, ..taken(time, 5, 1, &[1]) });
    }
    let span = Ended { is_shared: true, ..ended(5, 100, 200, "/a") };
    assert_eq!(store.ended(&span).of(SampleKind::Cpu), (3, 30));
    let counts = store.counts();
    assert_eq!((counts.linked, counts.outside, counts.ambiguous), (1, 1, 2));
    assert_eq!(times(&store, &Filter { span_id: Some(5_u64.to_be_bytes()), ..ALL }), [110]);
}

/// What runs when a call was answered works for the request that has called; the sample may come before that is known.
#[test]
fn what_goes_on_with_an_answer_belongs_to_the_request() {
    let mut store = Store::new(1 << 20);
    let by_runtime = |time, exchange| RawSample { by_runtime: true, ..taken(time, exchange, 1, &[1]) };
    store.push(by_runtime(100, 5));
    store.push(by_runtime(160, 6));
    store.push(by_runtime(170, 5));
    let call = Ended { is_server: false, is_shared: true, continues: Some(5), ..ended(6, 120, 150, "GET") };
    assert_eq!(store.ended(&call), Linked::default());
    store.push(by_runtime(180, 6));
    let request = Ended { is_shared: true, ..ended(5, 90, 200, "/a") };
    assert_eq!(store.ended(&request).of(SampleKind::Cpu), (4, 40));
    assert_eq!(times(&store, &Filter { span_id: Some(5_u64.to_be_bytes()), ..ALL }), [100, 160, 170, 180]);
    assert_eq!((store.counts().linked, store.counts().outside, store.counts().ambiguous), (4, 0, 0));
}

#[test]
fn filters_hold_together() {
    let mut store = Store::new(1 << 20);
    for (time, pid) in [(10, 1), (20, 2), (30, 1), (40, 2)] {
        let (_, asks) = store.push(taken(time, time, pid, &[1]));
        assert_eq!(asks, time <= 20, "each process is asked for once");
    }
    store.is_called(1, origin(1, "shop"));
    store.is_called(2, origin(2, "cart"));
    let check = |filter: Filter, expected: &[u64]| assert_eq!(times(&store, &filter), expected, "{filter:?}");
    check(ALL, &[10, 20, 30, 40]);
    check(Filter { start: 20, end: 40, ..ALL }, &[20, 30]);
    check(Filter { service: Some("shop".to_owned()), ..ALL }, &[10, 30]);
    check(Filter { service: Some("cart".to_owned()), start: 30, ..ALL }, &[40]);
    check(Filter { pid: Some(2), end: 40, ..ALL }, &[20]);
    check(Filter { route: Some(String::new()), ..ALL }, &[]);
}

#[test]
fn slow_requests_are_those_of_their_own_route() {
    let mut store = Store::new(1 << 20);
    let second = 1_000_000_000;
    // Hundred requests of each route, few of which are sampled. /b is as slow as the tail of /a.
    for (base, route, usual) in [(0, "/a", 10), (1_000, "/b", 1_000)] {
        for request in 1..=100_u64 {
            let duration = if request > 95 { 10 * usual } else { usual };
            let exchange = base + request;
            if request % 16 == 0 {
                store.push(taken(second, exchange, 1, &[exchange]));
            }
            store.ended(&ended(exchange, second - 1, second + duration * 1_000_000, route));
        }
    }
    store.push(taken(second, 0, 1, &[3]));
    let of = |pace| {
        let chosen = store.choose(&Filter { pace: Some(pace), end: 100 * second, ..ALL });
        let mut exchanges: Vec<_> = chosen.samples.iter().map(|sample| sample.stack.places[0]).collect();
        exchanges.sort_unstable();
        exchanges
    };
    assert_eq!(of(Pace::Slow), [96, 1_096]);
    assert_eq!(of(Pace::Rest).len(), 10);
}

#[test]
fn an_export_waits_for_spans_but_not_for_ever() {
    let mut store = Store::new(1 << 20);
    let second = 1_000_000_000;
    store.push(taken(second, 0, 1, &[1]));
    store.push(taken(2 * second, 9, 1, &[1]));
    store.push(taken(3 * second, 0, 1, &[1]));
    store.push(taken(4 * second, 8, 1, &[1]));
    let check = |store: &mut Store<u64>, now: u64, all, expected: &[(u64, bool)]| {
        let chosen = store.export(now, all);
        let found: Vec<_> = chosen.samples.iter().map(|s| (s.time / second, s.served.is_some())).collect();
        assert_eq!(found, expected);
        assert!(chosen.samples.iter().all(|sample| (chosen.start..chosen.end).contains(&sample.time)));
    };
    check(&mut store, 5 * second, false, &[(1, false), (3, false)]);
    store.ended(&ended(8, 0, 5 * second, "/a"));
    check(&mut store, 10 * second, false, &[(4, true)]);
    check(&mut store, 10 * second, false, &[]);
    check(&mut store, 2 * second + EXPORT_WAIT, false, &[(2, false)]);
    store.ended(&ended(9, 0, 40 * second, "/a"));
    assert_eq!(
        times(&store, &Filter { route: Some("/a".to_owned()), ..ALL }).len(),
        2,
        "linked for who looks"
    );
    check(&mut store, 100 * second, false, &[]);
    store.push(taken(101 * second, 7, 1, &[1]));
    check(&mut store, 101 * second, true, &[(101, false)]);
}

#[test]
fn losses_are_reported_with_the_time_they_fall_in() {
    let mut store = Store::<u64>::new(1 << 20);
    for (time, n) in [(10, 0), (20, 3), (30, 4), (20 + SECOND, 5)] {
        store.lose(SampleKind::Cpu, time, n);
    }
    assert_eq!(store.choose(&Filter { end: 100, ..ALL }).lost, 7);
    assert_eq!(store.choose(&ALL).lost, 12);
    assert_eq!(store.export(SECOND, false).lost, 7);
    assert_eq!(store.export(3 * SECOND, false).lost, 5);
    assert_eq!(store.export(4 * SECOND, false).lost, 0);
}

/// What a process was called at the time of a sample, whichever of sample, exec and name is reported first.
#[test]
fn samples_around_an_exec_belong_to_the_program_of_their_time() {
    let mut store = Store::new(1 << 20);
    assert!(store.push(taken(10, 0, 7, &[1])).1);
    store.is_called(7, origin(7, "before"));
    // Taken in the next program, but read before the exec was reported.
    assert!(!store.push(taken(40, 0, 7, &[2])).1);
    assert!(store.renews(7, 30), "what it is now has to be said again");
    // And one of the former program that was still waiting for its places.
    assert!(!store.push(taken(20, 0, 7, &[3])).1);
    assert!(!store.push(taken(50, 0, 7, &[4])).1);
    store.is_called(7, origin(7, "after"));
    let names = |store: &Store<u64>| -> Vec<(u64, String)> {
        let chosen = store.choose(&ALL);
        chosen.samples.iter().map(|sample| (sample.time, sample.origin.service.name.to_string())).collect()
    };
    let mut found = names(&store);
    found.sort_unstable();
    let expected = [(10, "before"), (20, "before"), (40, "after"), (50, "after")];
    assert_eq!(found, expected.map(|(time, name)| (time, name.to_owned())));
    store.forget(30 + UNDER_WAY + 1);
    assert_eq!(names(&store).len(), 4);
}

#[derive(Debug, Clone)]
enum Step {
    Push { exchange: u64, pid: u32, stack: u64, depth: usize, value: u64 },
    End { exchange: u64, back: u64 },
    Called(u32),
    Renewed(u32, u64),
    Export,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u64..9, 1_u32..5, 0_u64..20, 0_usize..40, 0_u64..4)
            .prop_map(|(exchange, pid, stack, depth, value)| Step::Push { exchange, pid, stack, depth, value }),
        2 => (1_u64..9, 0_u64..50).prop_map(|(exchange, back)| Step::End { exchange, back }),
        1 => (1_u32..5).prop_map(Step::Called),
        1 => (1_u32..5, 0_u64..50).prop_map(|(pid, back)| Step::Renewed(pid, back)),
        1 => Just(Step::Export),
    ]
}

proptest! {
    #[test]
    fn it_stays_in_its_bounds_and_accounts_for_everything(
        steps in proptest::collection::vec(step(), 0..300),
        limit in 500_usize..20_000,
    ) {
        let mut store = Store::new(limit);
        let (mut pushed, mut exported, mut held_back) = (0_u64, 0_u64, Vec::new());
        for (now, step) in (1_u64..).zip(steps) {
            match step {
                Step::Push { exchange, pid, stack, depth, value } => {
                    pushed += 1;
                    let places = vec![stack; depth];
                    store.push(RawSample { value, ..taken(now, exchange, pid, &places) });
                }
                Step::End { exchange, back } => {
                    store.ended(&ended(exchange, now.saturating_sub(back), now, "/r"));
                    // An answer under way must not upset the accounts.
                    held_back.push(store.choose(&ALL));
                }
                Step::Called(pid) => store.is_called(pid, origin(pid, "x")),
                Step::Renewed(pid, back) => _ = store.renews(pid, now.saturating_sub(back)),
                Step::Export => exported += store.export(now, now % 2 == 0).samples.len() as u64,
            }
            prop_assert!(store.bytes <= limit);
            prop_assert!(store.bytes + store.origins.bytes() <= limit || store.samples.is_empty());
            let counts = store.counts();
            let held = store.samples.len() as u64;
            prop_assert_eq!((counts.kept, counts.kept), (pushed, counts.evicted + held));
        }
        exported += store.export(u64::MAX, true).samples.len() as u64;
        prop_assert_eq!(exported + store.counts().unexported, pushed);
        let chosen = store.choose(&ALL);
        for sample in &chosen.samples {
            if let Some(served) = &sample.served {
                prop_assert!((served.start..=served.end).contains(&sample.time));
            }
        }
        // The accounts come to nothing when everything has gone.
        store.limit = 0;
        store.push(taken(1_000, 0, 1, &[]));
        prop_assert_eq!((store.bytes, store.stacks.len(), store.samples.len()), (0, 0, 0));
    }
}

/// A quiet machine fills the store for hours: what is older than it is to be held goes by itself.
#[test]
fn old_samples_go_although_there_is_room() {
    let mut store = Store::new(1 << 20).keeping(Duration::from_nanos(100));
    for time in [0, 50, 100, 150] {
        store.push(taken(time, 0, 7, &[time]));
    }
    let mut check = |now: u64, expected: usize| {
        store.forget(now);
        let (n, bytes) = store.size();
        assert_eq!(n, expected, "at {now}");
        bytes
    };
    let full = check(100, 4);
    assert!(check(101, 3) < full);
    check(200, 2);
    check(1_000, 0);
    assert_eq!(store.counts().evicted, 4);
}

/// Where each sample is of another process, who they are takes more than the samples do.
#[test]
fn who_processes_are_is_part_of_the_bound() {
    let limit = 64 << 10;
    let mut store = Store::new(limit);
    for pid in 1..1_000 {
        let (_, asks) = store.push(taken(pid.into(), 0, pid, &[1]));
        assert!(asks);
        let mut instance = Instance::default();
        instance.attributes.text("container.id", &"c".repeat(1_000));
        store.is_called(pid, Arc::new(Origin { pid, instance: Arc::new(instance), ..Origin::default() }));
        assert!(store.size().1 <= limit, "{:?} of {limit}", store.size());
    }
    let n = store.size().0;
    assert!((40..64).contains(&n), "{n} processes with a kilobyte each in {limit} bytes");
    store.limit = 0;
    store.push(taken(1_000, 0, 1, &[]));
    assert_eq!((store.origins.bytes(), store.samples.len()), (0, 0));
}

#[test]
fn samples_of_kept_traces_outlive_the_others() {
    let sample = size_of::<StoredSample<u64>>();
    let mut store = Store::new(20 * sample + one_origin()).with_room_for_traces(1 << 16);
    store.keep_traces(&[[7; 16]]);
    let fill = |store: &mut Store<u64>, from: u64| {
        for time in from..from + 100 {
            store.push(taken(time, 0, 1, &[9]));
        }
    };
    for time in [10, 11] {
        store.push(taken(time, 5, 1, &[1]));
    }
    store.push(taken(12, 6, 1, &[2]));
    store.ended(&ended(5, 0, 20, "/a"));
    store.ended(&Ended { trace_id: [8; 16], ..ended(6, 0, 20, "/a") });
    store.is_called(1, origin(1, "shop"));
    fill(&mut store, 100);
    let of_trace = Filter { trace_id: Some([7; 16]), ..ALL };
    assert_eq!(times(&store, &of_trace), [10, 11]);
    assert_eq!(times(&store, &Filter { span_id: Some(5_u64.to_be_bytes()), ..ALL }), [10, 11]);
    assert_eq!(times(&store, &Filter { trace_id: Some([8; 16]), ..ALL }), [0; 0]);
    assert_eq!(&*store.choose(&of_trace).samples[0].origin.service.name, "shop");
    assert!(store.stacks().any(|stack| *stack.places == [1]), "its places are known while it is held");
    let (bytes, refused) = store.kept_usage();
    assert!(bytes > 0 && refused == 0);
    // The same again is no change; without it everything goes.
    store.keep_traces(&[[7; 16], [9; 16]]);
    assert_eq!(times(&store, &of_trace).len(), 2);
    store.keep_traces(&[]);
    assert_eq!((times(&store, &of_trace).len(), store.kept_usage()), (0, (0, 0)));
    assert!(store.stacks().all(|stack| *stack.places != [1]));
}

#[test]
fn samples_of_kept_traces_that_find_no_room_are_counted() {
    let mut store = Store::new(40 * size_of::<StoredSample<u64>>() + one_origin()).with_room_for_traces(600);
    store.keep_traces(&[[7; 16]]);
    for time in 0..10 {
        store.push(taken(time, 5, 1, &[1]));
    }
    store.ended(&ended(5, 0, 20, "/a"));
    for time in 100..200 {
        store.push(taken(time, 0, 1, &[9]));
    }
    let (bytes, refused) = store.kept_usage();
    let stayed = times(&store, &Filter { trace_id: Some([7; 16]), ..ALL }).len() as u64;
    assert!(bytes <= 600 && stayed > 0, "{bytes} {stayed}");
    assert_eq!(stayed + refused, 10);
}

proptest! {
    #[test]
    fn nothing_is_left_whatever_is_kept(steps in prop::collection::vec((0_u8..4, 1_u64..6), 1..60)) {
        let mut store = Store::new(8 * size_of::<StoredSample<u64>>() + one_origin()).with_room_for_traces(2_000);
        let mut time = 0;
        for (what, n) in steps {
            time += 1;
            match what {
                0 => drop(store.push(taken(time, n, 1, &[n]))),
                1 => drop(store.ended(&Ended { trace_id: [n as u8; 16], ..ended(n, 0, time, "/a") })),
                2 => store.keep_traces(&[[n as u8; 16], [1; 16]]),
                _ => store.keep_traces(&[]),
            }
        }
        store.keep_traces(&[]);
        while store.oldest().is_some() {
            store.evict();
        }
        prop_assert_eq!((store.bytes, store.stacks().count(), store.kept_usage().0), (0, 0, 0));
    }
}

#[test]
fn versions_are_reported_apart() {
    use crate::span::{Instance, Resource};
    let resource = |version: &str| {
        let mut resource = Resource::default();
        resource.text("service.version".to_owned(), version);
        resource
    };
    let of = |pid: u32, service: Resource, instance: Resource| {
        let service =
            Arc::new(Service { name: "shop".to_owned(), attributes: service, ..Service::default() });
        let instance = Arc::new(Instance { attributes: instance });
        Arc::new(Origin { pid, service, instance, ..Origin::default() })
    };
    let mut store = Store::new(1 << 20);
    for (pid, time) in [(1, 10), (2, 20), (3, 30)] {
        store.push(taken(time, 0, pid, &[1]));
    }
    store.is_called(1, of(1, resource("1"), Resource::default()));
    // What the process says of itself counts.
    store.is_called(2, of(2, resource("1"), resource("2")));
    store.is_called(3, of(3, Resource::default(), Resource::default()));
    let check = |version: Option<&str>, expected: &[u64]| {
        let filter = Filter { end: 100, version: version.map(str::to_owned), ..Filter::default() };
        assert_eq!(times(&store, &filter), expected, "{version:?}");
    };
    check(None, &[10, 20, 30]);
    check(Some("1"), &[10]);
    check(Some("2"), &[20]);
    check(Some("3"), &[]);
}
