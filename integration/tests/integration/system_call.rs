//! Each way to read and to write on its own: when one of them is wrong, this names it.

use std::thread;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::hook::HookSet;
use integration::load;
use integration::plan::{Address, Call, ConnectionPlan, Plan, Segmentation, ServerPlan};
use integration::script;
use integration::seed::seeded;
use integration::server::Features;
use integration::server::shape::ShapeServer;
use integration::shape::{RequestFraming, Shape};
use integration::span::{Kind, Span};
use integration::wire::{Connection, Listener, ReadMode, Stream, WriteMode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::write;
use rustix::pipe::{SpliceFlags, pipe, splice};

use crate::gate;

/// Both ends read by `read` and write by `write`, one request at a time and pipelined.
fn run(agent: &mut Agent, rng: &mut fastrand::Rng, read: ReadMode, write: WriteMode) -> Option<String> {
    let (reads, writes) = (vec![read], vec![write]);
    let plan = ServerPlan {
        seed: rng.u64(..),
        reads: reads.clone(),
        writes: writes.clone(),
        batch: true,
        ..ServerPlan::default()
    };
    let server = ShapeServer::start("shape", plan).unwrap();
    let connections = [1, 5]
        .iter()
        .map(|depth| {
            let calls = (0..60).map(|_| Call::new(load::odd_shape(rng, &Features::full()))).collect();
            ConnectionPlan {
                depth: *depth,
                segmentation: Segmentation::Whole,
                reads: reads.clone(),
                writes: writes.clone(),
                ..ConnectionPlan::new(&server.server.address, calls)
            }
        })
        .collect();
    let mut ledger = Ledger::default();
    let plan = Plan { seed: rng.u64(..), concurrency: 2, rate: 0, connections };
    gate::follow(&mut ledger, &server.server, &plan);
    let report = gate::report(agent, &ledger);
    (!report.is_exact()).then(|| format!("{read:?} and {write:?}: {report}"))
}

/// Room for the thousands of tiny pieces that a head of some kilobytes becomes when it is read byte by byte.
fn config() -> Config {
    Config::default().alone().set("capture", "ring_bytes", 16 << 20)
}

#[test]
fn every_way_to_read() {
    let mut rng = seeded("every way to read");
    let mut agent = Agent::start(config()).unwrap();
    let wrong: Vec<String> =
        ReadMode::ALL.iter().filter_map(|read| run(&mut agent, &mut rng, *read, WriteMode::Write)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_way_to_write() {
    let mut rng = seeded("every way to write");
    let mut agent = Agent::start(config()).unwrap();
    let wrong: Vec<String> =
        WriteMode::ALL.iter().filter_map(|write| run(&mut agent, &mut rng, ReadMode::Read, *write)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The agent cannot read what goes from a socket into a pipe; that it went is known, and each such exchange is
/// counted.
#[track_caller]
fn check_spliced(set: HookSet, kept: bool) {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    const EACH: u32 = 8;
    let mut agent = Agent::start(Config::default().alone().set("capture", "hooks", set.name())).unwrap();
    let listener = Listener::bind(&Address::loopback(0), false).unwrap();
    let connect = || {
        let client = Stream::connect(&Address::loopback(listener.port().unwrap()), None).unwrap();
        (client, listener.accept().unwrap())
    };
    let (outlet, inlet) = pipe().unwrap();
    let (mut ends, mut calls) = (connect(), Vec::new());
    for _ in 0..EACH {
        if !kept {
            ends = connect();
        }
        let call = Call::new(Shape::default());
        let request: Vec<u8> =
            script::request(&call, "spliced").into_iter().flat_map(|piece| piece.bytes).collect();
        write(&ends.0, &request).unwrap();
        let moved = splice(&ends.1, None, &inlet, None, request.len(), SpliceFlags::empty()).unwrap();
        assert_eq!(rustix::io::read(&outlet, &mut vec![0; moved]).unwrap(), request.len());
        write(&ends.1, ANSWER).unwrap();
        let n = ends.0.read(ReadMode::Read, &mut [0; 256], &mut fastrand::Rng::new()).unwrap();
        assert_eq!(n, ANSWER.len());
        calls.push(call);
    }
    drop(ends);
    let is_ours = |span: &Span, call: &Call| {
        span.kind == Kind::Client && span.request_id() == Some(&call.id) && span.status == "unset"
    };
    let all = |spans: &[Span]| calls.iter().all(|call| spans.iter().any(|span| is_ours(span, call)));
    let spans = agent.spans_until(gate::PATIENCE, all).unwrap();
    assert!(all(spans), "{set}: clients");
    let service = spans.iter().find(|span| is_ours(span, &calls[0])).unwrap().service.name.clone();
    // Other tests of this process may serve at the same time; no request of theirs is hidden from its reader.
    let labels = [("side", "server"), ("reason", "request_unseen"), ("service_name", service.as_str())];
    let lost = |metrics: &Exposition| metrics.sum("obi_lost_total", &labels);
    let counted = agent.metrics_until(gate::PATIENCE, |metrics| lost(metrics) >= f64::from(EACH)).unwrap();
    assert_eq!(lost(&counted), f64::from(EACH), "{set}, kept: {kept}");
}

#[test]
fn a_request_that_is_spliced_out_of_its_socket_is_counted() {
    check_spliced(HookSet::Socket, false);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn requests_that_are_spliced_out_of_their_socket_are_counted() {
        for (set, kept) in [(HookSet::Socket, true), (HookSet::Syscall, false)] {
            check_spliced(set, kept);
        }
    }

    /// The first call on a connection may end after the network has ended that: here it begins after a reset as well.
    #[test]
    fn a_request_that_is_read_after_the_reset() {
        for set in [HookSet::Socket, HookSet::Syscall] {
            let mut agent =
                Agent::start(Config::default().alone().set("capture", "hooks", set.name())).unwrap();
            let listener = Listener::bind(&Address::loopback(0), false).unwrap();
            let client = Stream::connect(&Address::loopback(listener.port().unwrap()), None).unwrap();
            let accepted = listener.accept().unwrap();
            let call = Call::new(Shape::default());
            let resets = client.duplicate().unwrap();
            let mut connection = Connection::new(client, &[ReadMode::Read], &[WriteMode::Write], 0);
            connection.write(&script::request(&call, "late")).unwrap();
            drop(connection);
            resets.reset().unwrap();
            poll(&mut [PollFd::new(&accepted, PollFlags::ERR)], None).unwrap();
            let n = accepted.read(ReadMode::Read, &mut [0; 4096], &mut fastrand::Rng::new()).unwrap();
            assert!(n > 0, "the kernel keeps what had come before the reset");
            drop(accepted);
            let is_it = |span: &Span| {
                span.kind == Kind::Server
                    && span.request_id() == Some(&call.id)
                    && span.pid == std::process::id()
            };
            let spans = agent.spans_until(gate::PATIENCE, |spans| spans.iter().any(is_it)).unwrap();
            let span = spans.iter().find(|span| is_it(span)).unwrap_or_else(|| panic!("{set} shows no span"));
            assert_eq!(
                (span.status.as_str(), span.number("http.response.status_code")),
                ("error", None),
                "{set}"
            );
        }
    }

    /// Hook sets that learn of a call when it is over see the answer first, and nothing of the connection before it.
    #[test]
    fn an_answer_that_comes_while_its_request_is_being_sent() {
        const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        for set in [HookSet::Socket, HookSet::Syscall] {
            let mut agent =
                Agent::start(Config::default().alone().set("capture", "hooks", set.name())).unwrap();
            let listener = Listener::bind(&Address::loopback(0), false).unwrap();
            let client = Stream::connect(&Address::loopback(listener.port().unwrap()), None).unwrap();
            let accepted = listener.accept().unwrap();
            let upload =
                Shape { method: "POST".into(), request_framing: RequestFraming::Length, ..Shape::default() };
            // More than the sockets hold: the call ends when the server has read most of it.
            let first = Call::new(Shape { request_bytes: 64 << 20, ..upload });
            let second = Call::new(Shape::default());
            let bytes = |call: &Call| -> Vec<u8> {
                script::request(call, "early").into_iter().flat_map(|piece| piece.bytes).collect()
            };
            let (upload, next) = (bytes(&first), bytes(&second));
            thread::scope(|scope| {
                let upload = &upload;
                let sender = client.duplicate().unwrap();
                let sending = scope.spawn(move || assert_eq!(write(&sender, upload).unwrap(), upload.len()));
                let read = |stream: &Stream, n: usize| {
                    let mut bytes = vec![0; n];
                    let mut filled = 0;
                    while filled < n {
                        let more = stream
                            .read(ReadMode::Read, &mut bytes[filled..], &mut fastrand::Rng::new())
                            .unwrap();
                        assert!(more > 0, "ended after {filled} of {n} bytes");
                        filled += more;
                    }
                    bytes
                };
                read(&accepted, 100);
                write(&accepted, ANSWER).unwrap();
                assert_eq!(read(&client, ANSWER.len()), ANSWER);
                assert!(!sending.is_finished(), "all of it fits into the sockets");
                read(&accepted, upload.len() - 100);
                sending.join().unwrap();
                write(&client, &next).unwrap();
                read(&accepted, next.len());
                write(&accepted, ANSWER).unwrap();
                assert_eq!(read(&client, ANSWER.len()), ANSWER);
            });
            drop((client, accepted));
            let of = |spans: &[Span], call: &Call| -> Vec<(String, Option<u64>)> {
                let is_it = |span: &&Span| span.kind == Kind::Client && span.request_id() == Some(&call.id);
                let reported = |span: &Span| (span.status.clone(), span.number("http.response.status_code"));
                spans.iter().filter(is_it).map(reported).collect()
            };
            let both = |spans: &[Span]| [&first, &second].iter().all(|call| !of(spans, call).is_empty());
            let spans = agent.spans_until(gate::PATIENCE, both).unwrap();
            for call in [&first, &second] {
                assert_eq!(of(spans, call), [("unset".to_owned(), Some(200))], "{set}: {call:?}");
            }
        }
    }
}
