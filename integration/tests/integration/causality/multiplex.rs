//! Goroutines over HTTP/2 and gRPC: who reads frames, who handles a stream and who sends are different ones.

use std::process::Command;
use std::time::Duration;

use integration::causality;
use integration::process::{READY, run};
use integration::program;
use integration::seed::note;
use rustix::process::Signal;

use super::{Agent, Config, Listening, PROBING, clients, gate, listening, n_requests, reasons};

fn start(command: &str, arguments: &[&str]) -> Listening {
    let mut program = Command::new(program::multiplex().unwrap());
    program.arg(command).args(arguments);
    listening(command, program)
}

/// Ids of requests by so many clients at once, on two connections.
fn ask(protocol: &str, port: u16, kinds: &[&str], clients: usize) -> Vec<String> {
    let mut command = Command::new(program::multiplex().unwrap());
    command.args(["cause-ask", protocol, &port.to_string(), &clients.to_string()]);
    command.arg(n_requests().div_ceil(clients).to_string()).args(kinds);
    run("cause-ask", command, Duration::from_secs(300)).unwrap()
}

/// None has another's parent; `floor` of a hundred have their own. All ends are paired.
#[track_caller]
fn check(clients: &[(usize, bool)], protocol: &str, kinds: &[&str], floor: usize) {
    for &(clients, agent_last) in clients {
        let early = (!agent_last).then(|| Agent::start(Config::default()).unwrap());
        let back = start("cause-back", &[protocol]);
        let files = tempfile::tempdir().unwrap();
        let log = files.path().join("log");
        let port = back.address.port().to_string();
        let front = start("cause-front", &[protocol, &port, log.to_str().unwrap()]);
        let mut agent = early.unwrap_or_else(|| Agent::start(Config::default()).unwrap());
        agent.await_probes(&["multiplex"], PROBING).unwrap();
        let ids = ask(protocol, front.address.port(), kinds, clients);
        let mut program = front.program;
        program.signal(Signal::TERM).unwrap();
        assert_eq!(program.wait(READY).unwrap().code, 0);
        let barrier = gate::Barrier::start();
        assert!(barrier.pass(&mut agent), "the agent does not show what has passed");
        let truth = causality::read_file(&log).unwrap();
        let spans = agent.spans().unwrap();
        let score = causality::score(&truth, spans);
        let pairs = causality::pairs(ids.iter().chain(truth.keys()).map(String::as_str), spans);
        note(&format!(
            "causality {protocol}, {kinds:?}, {clients} clients, agent last {agent_last}: {score} {:?}; pairs {pairs:?}",
            reasons(spans, &front.service)
        ));
        assert_eq!((score.wrong, score.missing), (0, 0), "{protocol} {kinds:?} by {clients}: {score}");
        assert!(score.right * 100 >= score.calls() * floor, "{protocol} {kinds:?} by {clients}: {score}");
        assert_eq!((pairs.unknown, pairs.wrong), (0, 0), "{protocol} {kinds:?} by {clients}: {pairs:?}");
    }
}

/// What requests make before they are answered, by goroutines of their own.
const OWN: [&str; 3] = ["sequence", "fan", "nested"];

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn goroutines_over_http2() {
        check(clients(), "h2c", &OWN, 99);
        check(&[(16, true)], "h2", &OWN, 99);
    }

    /// Goroutines that work for many requests, and for none any more, belong to no request.
    #[test]
    fn goroutines_over_http2_that_outlive_requests() {
        let kinds = ["sequence", "fan", "nested", "worker", "after"];
        check(&[(3, true), (64, false)], "h2c", &kinds, 50);
        check(&[(3, false), (64, true)], "grpc", &kinds, 50);
    }

    #[test]
    fn goroutines_over_grpc() {
        check(clients(), "grpc", &OWN, 99);
        check(&[(16, true)], "grpcs", &OWN, 99);
    }
}
