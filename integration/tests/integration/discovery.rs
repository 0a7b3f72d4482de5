//! Which processes are watched: include and exclude by service, executable and port.

use std::process::Command;
use std::thread;
use std::time::Duration;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::plan::{Address, Call, ServerPlan};
use integration::server::shape::ShapeServer;
use integration::server::{language, nginx};
use integration::shape::Shape;
use serde_json::{Value, json};

use crate::gate::{self, Barrier};

fn port(address: &Address) -> u16 {
    match address {
        Address::Tcp(address) | Address::Multipath(address) => address.port(),
        Address::Unix(path) => panic!("{} has no port", path.display()),
    }
}

/// Two servers; `rule` (made from the first one) decides. Only the first, or only the second, has spans.
#[track_caller]
fn check(list: &str, rule: impl Fn(&ShapeServer) -> Value, is_first_watched: bool) {
    let first = ShapeServer::start("first", ServerPlan::default()).unwrap();
    let second = language::python_http("threading").unwrap();
    let mut rules = vec![rule(&first)];
    let barrier = Barrier::start();
    if list == "include" {
        rules.push(json!({"service": "barrier-*"}));
    }
    let mut agent = Agent::start(Config::default().set("discover", list, rules)).unwrap();
    let mut ledger = Ledger::default();
    for server in [&first.server, &second] {
        let calls: Vec<Call> = (0..20).map(|_| Call::new(Shape::default())).collect();
        let done = client::call(Kind::Python, &server.address, &calls, 2).unwrap();
        // The client's own spans are another matter.
        for truth in &done.truths {
            if (server.service == first.server.service) == is_first_watched {
                ledger.expect(&Shape::default(), truth, integration::span::Kind::Server, &server.service);
            }
        }
    }
    agent.spans_until(gate::PATIENCE, |spans| ledger.is_complete(spans)).unwrap();
    assert!(barrier.pass(&mut agent), "the agent does not show a request of a watched process");
    let spans = agent.spans().unwrap();
    ledger.compare(spans).assert_exact();
    let ignored = if is_first_watched { &second.service } else { &first.server.service };
    assert_eq!(spans.iter().filter(|span| &span.service.name == ignored).count(), 0, "{ignored} is watched");
}

#[test]
fn include_by_port() {
    check("include", |server| json!({"port": port(&server.server.address)}), true);
}

#[test]
fn exclude_by_service() {
    check("exclude", |server| json!({"service": server.server.service}), false);
}

/// `start` runs `exec curl`, which lives for some milliseconds, in a process of which something else was decided; on a
/// machine where nothing else goes on. All are seen.
#[track_caller]
fn check_short_lived(start: &str) {
    const PROGRAMS: usize = 40;
    let server = nginx::files(nginx::Files::Sendfile).unwrap();
    let Address::Tcp(address) = &server.address else { panic!("nginx listens on TCP") };
    let service = integration::server::service("short-lived");
    let rule = json!({"service": service, "executable": "*/curl"});
    let mut agent = Agent::start(Config::default().set("discover", "include", [rule])).unwrap();
    let script = format!("{start} curl --silent --fail --output /dev/null http://{address}/plain/1024");
    for _ in 0..PROGRAMS {
        // Longer than the agent sleeps where nothing happens.
        thread::sleep(Duration::from_millis(150));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("OTEL_SERVICE_NAME", &service);
        assert!(command.status().unwrap().success());
    }
    let spans = agent.spans_until(gate::PATIENCE, |spans| spans.len() >= PROGRAMS).unwrap();
    assert_eq!(spans.iter().filter(|span| span.service.name == service).count(), PROGRAMS);
}

#[test]
fn a_program_that_is_run_at_once() {
    check_short_lived("exec");
}

/// By then the kernel knows that it is to ignore the process.
#[test]
fn a_program_that_takes_the_place_of_one_that_is_not_watched() {
    check_short_lived("sleep 0.15; exec");
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn a_program_that_a_shell_forks() {
        check_short_lived("sleep 0.15;");
    }

    #[test]
    fn exclude_by_port() {
        check("exclude", |server| json!({"port": port(&server.server.address)}), false);
    }

    #[test]
    fn include_by_executable() {
        check("include", |_| json!({"executable": "*/shape_server"}), true);
    }

    #[test]
    fn include_by_service() {
        check("include", |server| json!({"service": server.server.service}), true);
    }
}
