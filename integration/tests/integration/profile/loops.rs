//! Samples and the requests they were taken in, where one thread serves many at once: two routes with a hot function
//! each, whose requests take turns.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::patience::patience;
use integration::process::{Program, READY};
use integration::program::{self, Build};
use integration::seed::note;
use integration::server::service;
use integration::span::Span;
use integration::stack::sampled::{self, Sampled};

use super::truth::unix_ns;
use crate::tls::PROBING;

const HERTZ: u32 = 199;
const LIMIT: Duration = Duration::from_secs(120);
const CLIENTS: usize = 8;
/// Of each client, between two looks.
const BATCH: usize = 60;
/// In hot functions.
const SAMPLES: usize = 600;

/// Asks for both routes at random.
fn requests(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).unwrap();
    for _ in 0..BATCH {
        let path = if fastrand::bool() { "/a" } else { "/b" };
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: hot\r\n\r\n").as_bytes()).unwrap();
        let (mut answer, mut read) = ([0; 1024], 0);
        while !answer[..read].ends_with(b"ok") {
            let n = stream.read(&mut answer[read..]).unwrap();
            assert!(n > 0, "the server closes");
            read += n;
        }
    }
}

/// The route whose function ran.
fn hot(sample: &Sampled) -> Option<&'static str> {
    let runs = |name: &str| {
        let guests = sample.guests.iter().map(|guest| &guest.name);
        sample.frames.iter().map(|frame| &frame.name).chain(guests).any(|it| it.contains(name))
    };
    [("burn_a", "/a"), ("burn_b", "/b")].into_iter().find(|(name, _)| runs(name)).map(|(_, path)| path)
}

/// No sample is in a span of the other route; at least `floor` of a hundred are in one of their own.
#[track_caller]
fn check(mut command: Command, probed: &str, floor: usize) {
    let config = Config::default().alone().set("profile", "enabled", true).set("profile", "frequency", HERTZ);
    let mut agent = Agent::start(config).unwrap();
    let begun = unix_ns();
    let service = service("hot-loop");
    command.env("OTEL_SERVICE_NAME", &service);
    let mut program = Program::spawn("hot-loop", command).unwrap();
    let port: u16 = program.await_line("ready ", READY).unwrap().parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    agent.await_probes(&[probed], PROBING).unwrap();
    // What is proven while the program runs is proven by now.
    requests(address);
    let fetch = || sampled::fetch(agent.address(), &service, &(begun..unix_ns())).unwrap();
    let from = unix_ns();
    let is_counted = |sample: &&Sampled| sample.time > from && hot(sample).is_some();
    let (limit, mut asked) = (Instant::now() + patience(LIMIT), BATCH);
    while fetch().iter().filter(is_counted).count() < SAMPLES {
        assert!(Instant::now() < limit, "not enough samples");
        thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(|| requests(address)))));
        asked += CLIENTS * BATCH;
    }
    let is_own = |span: &&Span| span.kind == integration::span::Kind::Server && span.service.name == service;
    let spans =
        agent.spans_until(LIMIT, |spans| spans.iter().filter(is_own).count() >= asked).unwrap().to_vec();
    let paths: HashMap<(&str, &str), &str> = spans
        .iter()
        .filter(is_own)
        .map(|it| ((&*it.trace_id, &*it.span_id), it.text("url.path").unwrap_or_default()))
        .collect();
    let score = |samples: &[Sampled]| {
        let (mut right, mut wrong, mut without) = (0, 0, 0);
        for sample in samples.iter().filter(is_counted) {
            let path = sample.span.as_ref().map(|(trace, span)| paths.get(&(&**trace, &**span)).copied());
            match path {
                None => without += 1,
                Some(path) if path == hot(sample) => right += 1,
                Some(_) => wrong += 1,
            }
        }
        (right, wrong, without)
    };
    // Spans have ended; samples of them find them within a moment.
    let limit = Instant::now() + patience(Duration::from_secs(10));
    let (right, wrong, without) = loop {
        let agent_samples = sampled::fetch(agent.address(), &service, &(begun..unix_ns())).unwrap();
        let (right, wrong, without) = score(&agent_samples);
        if right * 100 >= floor * (right + without) || Instant::now() > limit {
            break (right, wrong, without);
        }
        thread::sleep(Duration::from_millis(100));
    };
    let ambiguous = agent.metrics().unwrap().sum("obi_profile_links_total", &[("outcome", "ambiguous")]);
    note(&format!(
        "loop of {probed}: {right} hot samples in a span of their route, {wrong} of another, {without} in none; \
         {ambiguous} ambiguous"
    ));
    assert_eq!(wrong, 0, "samples in spans of another route, {right} right");
    assert!(right * 100 >= floor * (right + without), "{right} of {} have a span", right + without);
}

fn script(interpreter: &str, name: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(program::source(name));
    command
}

#[test]
fn samples_of_asyncio_belong_to_the_task_that_ran() {
    check(script("python3", "hot_loop.py"), &crate::causality::interpreter(), 95);
}

#[test]
fn samples_of_greenlets_belong_to_their_requests() {
    let mut command = script("python3", "hot_loop.py");
    command.arg("gevent").env("PYTHONPATH", program::python_packages().unwrap());
    check(command, "/greenlet/_greenlet.", 95);
}

#[test]
fn samples_of_goroutines_belong_to_their_requests() {
    check(Command::new(program::go_built("hot_loop", Build::Plain).unwrap()), "go-hot_loop-plain", 95);
}

/// The first of four turns is in a callback; behind promises another request may go on.
#[test]
fn samples_of_node_belong_to_the_callback_that_ran() {
    check(script("node", "hot_loop.js"), &crate::causality::node(), 15);
}
