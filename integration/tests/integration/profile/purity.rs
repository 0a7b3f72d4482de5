//! Samples and the requests they were taken in: a server with a thread per connection, two routes with a hot function
//! each.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::patience::patience;
use integration::seed::{note, seeded};
use integration::span::{Kind, Span};
use integration::stack::sampled::{self, Sampled};
use integration::stack::server::{HotServer, Route};

use super::truth::unix_ns;

const HERTZ: u32 = 199;
const LIMIT: Duration = Duration::from_secs(120);
const CLIENTS: usize = 4;
/// Requests between two looks, by one client.
const BATCH: usize = 50;
/// On one connection.
const KEPT: usize = 5;
/// In hot functions.
const SAMPLES: usize = 1_500;
/// Of the samples in a hot function, those in a span of its route.
const PURE: f64 = 0.99;

/// Asks for both routes in turns at random, on connections that are kept for a while.
fn requests(server: SocketAddr, routes: &[Route], mut rng: fastrand::Rng) {
    for _ in 0..BATCH / KEPT {
        let mut stream = TcpStream::connect(server).unwrap();
        for _ in 0..KEPT {
            let route = rng.choice(routes).unwrap();
            // From less than a look's distance to some of them.
            let rounds = rng.u32(100_000..12_000_000);
            // Written at once: the server takes what it reads for a request.
            let request = format!("GET {}?{rounds} HTTP/1.1\r\nhost: hot\r\n\r\n", route.path);
            stream.write_all(request.as_bytes()).unwrap();
            let (mut answer, mut read) = ([0; 256], 0);
            while !answer[..read].ends_with(b"ok") {
                let n = stream.read(&mut answer[read..]).unwrap();
                assert!(n > 0, "the server closes");
                read += n;
            }
        }
    }
}

fn hot<'a>(server: &'a HotServer, sample: &Sampled) -> Option<&'a str> {
    let route =
        server.routes.iter().find(|route| sample.frames.iter().any(|frame| frame.name == route.hot))?;
    Some(&route.path)
}

/// The agent's own program ran, in a call that moves bytes.
fn is_in_hook(sample: &Sampled) -> bool {
    sample.span.is_none() && sample.kernel.iter().any(|name| name.starts_with("bpf_prog_"))
}

/// What the samples of the server must be, and `others` of the clients.
///
/// A sample is refused a span when it carries the number of a request that has ended. For a thread that serves one
/// request after the other that is physically possible in one place only: inside the agent's hook at the send, between
/// the moment that becomes the end of the span and the moment, some microseconds later, at which the thread is marked
/// as serving nothing.
fn check(
    server: &HotServer,
    (samples, others): (&[Sampled], &[Sampled]),
    spans: &HashMap<(String, String), &Span>,
    outside: f64,
) {
    let (mut right, mut wrong, mut without, mut late) = (0, 0, 0, Vec::new());
    for sample in samples {
        let span = sample
            .span
            .as_ref()
            .map(|ids| *spans.get(ids).unwrap_or_else(|| panic!("{ids:?} is no span: {sample:?}")));
        if let Some(span) = span
            && !(span.start_unix_nano.get()..=span.end_unix_nano.get()).contains(&sample.time)
        {
            late.push((sample, span));
        }
        match (hot(server, sample), span) {
            (Some(path), Some(span)) if span.text("url.path") == Some(path) => right += 1,
            (Some(_), Some(_)) => wrong += 1,
            (Some(_), None) => without += 1,
            (None, _) => {}
        }
    }
    let elsewhere = samples.iter().filter(|sample| hot(server, sample).is_none());
    let elsewhere: Vec<&Sampled> = elsewhere.collect();
    let linked = elsewhere.iter().filter(|sample| sample.span.is_some()).count();
    let hooked: Vec<&Sampled> = samples.iter().chain(others).filter(|sample| is_in_hook(sample)).collect();
    hooked.iter().for_each(|sample| note(&format!("purity: in a hook: {}", sample.kernel.join(" < "))));
    let hooked = hooked.len();
    note(&format!(
        "purity: {right} hot samples in a span of their route, {wrong} of another, {without} in none; {} elsewhere, {linked} of \
         them in a span; {outside} refused for their time, {hooked} without a span inside a hook",
        elsewhere.len()
    ));
    assert!(late.is_empty(), "samples outside of their spans: {late:?}");
    assert_eq!(wrong, 0, "samples in spans of another route");
    assert!(f64::from(right) >= PURE * f64::from(right + without), "{without} of {right} have no span");
    assert!(
        outside <= hooked as f64,
        "{outside} samples carried a request that had ended, {hooked} explain it"
    );
}

#[test]
fn a_sample_belongs_to_the_request_that_its_thread_served() {
    let mut rng = seeded("purity");
    let config = Config::default().alone().set("profile", "enabled", true).set("profile", "frequency", HERTZ);
    let mut agent = Agent::start(config).unwrap();
    let begun = unix_ns();
    let server = HotServer::start(&mut rng).unwrap();
    let fetch =
        |agent: &Agent| sampled::fetch(agent.address(), &server.service, &(begun..unix_ns())).unwrap();
    let (limit, mut asked) = (Instant::now() + patience(LIMIT), 0);
    while fetch(&agent).iter().filter(|sample| hot(&server, sample).is_some()).count() < SAMPLES {
        assert!(Instant::now() < limit, "not enough samples");
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                let (own, address, routes) = (rng.fork(), server.address, &server.routes);
                scope.spawn(move || requests(address, routes, own));
            }
        });
        asked += CLIENTS * BATCH / KEPT * KEPT;
    }
    let is_own = |span: &&Span| span.kind == Kind::Server && span.service.name == server.service;
    let spans =
        agent.spans_until(LIMIT, |spans| spans.iter().filter(is_own).count() >= asked).unwrap().to_vec();
    let own: HashMap<(String, String), &Span> = spans
        .iter()
        .filter(is_own)
        .map(|span| ((span.trace_id.clone(), span.span_id.clone()), span))
        .collect();
    assert_eq!(own.len(), asked, "spans");
    // All requests have ended; what still waits for its span gets it.
    let unlinked = |samples: &[Sampled]| {
        samples.iter().filter(|sample| hot(&server, sample).is_some() && sample.span.is_none()).count()
    };
    let limit = Instant::now() + patience(LIMIT);
    let samples = loop {
        let samples = fetch(&agent);
        if unlinked(&samples) == 0 || Instant::now() > limit {
            break samples;
        }
        thread::sleep(Duration::from_millis(100));
    };
    let asking: BTreeSet<&str> = spans.iter().map(|span| span.service.name.as_str()).collect();
    let others: Vec<Sampled> = { asking.iter().filter(|service| **service != server.service) }
        .flat_map(|service| sampled::fetch(agent.address(), service, &(begun..unix_ns())).unwrap())
        .collect();
    let outside = [("outcome", "outside_span")];
    let metrics = agent.metrics_until(LIMIT, |metrics| {
        metrics.sum("obi_profile_links_total", &[("outcome", "linked")]) > 0.0
    });
    check(&server, (&samples, &others), &own, metrics.unwrap().sum("obi_profile_links_total", &outside));
}
