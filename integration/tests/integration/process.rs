//! What processes do with sockets: fork, share, duplicate, live in another namespace, live briefly.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::load;
use integration::namespace::Namespace;
use integration::patience::patience;
use integration::plan::{Address, Call, ConnectionPlan, Plan, ServerPlan, Serving};
use integration::process::{Program, READY};
use integration::seed::seeded;
use integration::server::shape::{self, ShapeServer, every_way};
use integration::server::{Features, Server, service};
use integration::shape::Shape;

use crate::gate;

#[track_caller]
fn check_serving(serving: Serving) {
    let mut rng = seeded(&format!("process {serving:?}"));
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", ServerPlan { serving, ..every_way(rng.u64(..)) }).unwrap();
    let mut ledger = Ledger::default();
    let calls = load::calls(&mut rng, &Features::full(), Kind::Shape, 300);
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 20);
    gate::assert_exact(&mut agent, &ledger);
}

#[test]
fn forked_after_accept() {
    check_serving(Serving::Fork);
}

#[test]
fn moved_to_another_descriptor() {
    check_serving(Serving::Dup2);
}

#[test]
fn workers_that_share_a_port() {
    let mut rng = seeded("process reuseport");
    let mut agent = Agent::start(Config::default()).unwrap();
    let name = service("workers");
    let plan = ServerPlan { reuse_port: true, ..every_way(1) };
    let first = ShapeServer::start_as("worker", &name, plan.clone()).unwrap();
    let plan = ServerPlan { address: first.server.address.clone(), ..plan };
    let others: Vec<ShapeServer> =
        (0..3).map(|_| ShapeServer::start_as("worker", &name, plan.clone()).unwrap()).collect();
    let mut ledger = Ledger::default();
    for _ in 0..5 {
        let calls = load::calls(&mut rng, &Features::full(), Kind::Shape, 80);
        gate::call(&mut ledger, Kind::Shape, &first.server, &calls, 20);
    }
    let busy = others.iter().filter(|worker| !worker.truths().unwrap().is_empty()).count();
    assert!(busy > 0, "the kernel gave every connection to one worker");
    gate::assert_exact(&mut agent, &ledger);
}

/// The same addresses and ports on both ends, at the same time, in two namespaces: two connections, not one.
#[test]
fn the_same_addresses_in_two_namespaces() {
    let mut agent = Agent::start(Config::default()).unwrap();
    let address = Address::loopback(8080);
    let namespaces = [(); 2].map(|()| Namespace::make().unwrap());
    let mut ledger = Ledger::default();
    let servers = namespaces.each_ref().map(|namespace| {
        let plan = ServerPlan { address: address.clone(), ..every_way(3) };
        let command = namespace.inside(shape::command(&plan).unwrap());
        Server::start("namespaced", command, Features::full()).unwrap()
    });
    let mut connection = ConnectionPlan::new(&address, Vec::new());
    connection.source = Some(([127, 0, 0, 1], 40_000).into());
    let sides = namespaces.each_ref().map(|_| {
        // Slow enough that both connections live at the same time.
        let calls: Vec<Call> =
            (0..30).map(|_| Call::new(Shape { delay: 10_000, ..Shape::default() })).collect();
        Plan {
            seed: 0,
            concurrency: 1,
            rate: 0,
            connections: vec![ConnectionPlan { calls, ..connection.clone() }],
        }
    });
    let done = thread::scope(|scope| {
        let threads: Vec<_> = namespaces
            .iter()
            .zip(&sides)
            .map(|(namespace, plan)| {
                scope.spawn(|| client::follow_in(plan, |command| namespace.inside(command)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    for ((done, plan), server) in done.iter().zip(&sides).zip(&servers) {
        ledger.enter(&plan.connections[0].calls, done, &server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
}

/// Programs that send their first request at once and are gone 300 ms later.
#[test]
fn clients_that_live_briefly() {
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", ServerPlan::default()).unwrap();
    let mut ledger = Ledger::default();
    let calls: Vec<Call> = (0..40).map(|_| Call::new(Shape { delay: 280_000, ..Shape::default() })).collect();
    let done = thread::scope(|scope| {
        let threads: Vec<_> = calls
            .chunks(10)
            .map(|part| {
                let address = &server.server.address;
                scope.spawn(move || {
                    let one =
                        |call| client::call(Kind::Shape, address, std::slice::from_ref(call), 1).unwrap();
                    part.iter().map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for done in &done {
        ledger.enter(&calls, done, &server.server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
}

/// Clients of which nothing is left when the agent looks, with few and with many variables in their environment. A rule
/// asks for the path of their executable.
#[test]
fn clients_that_are_gone_before_anybody_looks() {
    let rules = serde_json::json!([{"executable": "*/shape_*"}, {"executable": "/usr/bin/*"}, {"executable": "*/python*"}]);
    let mut agent = Agent::start(Config::default().set("discover", "include", rules)).unwrap();
    let server = ShapeServer::start("shape", ServerPlan::default()).unwrap();
    let mut ledger = Ledger::default();
    let called = agent.stopped(|| {
        [0, 1_000, 10_000, 25_000].map(|n_bytes| {
            let calls = vec![Call::new(Shape::default())];
            let plan = Plan {
                seed: 1,
                concurrency: 1,
                rate: 0,
                connections: vec![ConnectionPlan::new(&server.server.address, calls)],
            };
            // In the order of their names: this one comes before the one that matters.
            let surrounded = |mut command: Command| {
                command.env_clear().env("A", "x".repeat(n_bytes));
                command
            };
            (client::follow_in(&plan, surrounded).unwrap(), plan)
        })
    });
    for (done, plan) in called.unwrap() {
        ledger.enter(&plan.connections[0].calls, &done, &server.server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
}

/// Servers that are called the moment they listen, and killed the moment they have answered.
#[test]
fn servers_that_live_briefly() {
    let mut agent = Agent::start(Config::default()).unwrap();
    let mut ledger = Ledger::default();
    for _ in 0..20 {
        let server = ShapeServer::start("brief", ServerPlan::default()).unwrap();
        let calls = [Call::new(Shape::default())];
        gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 1);
    }
    gate::assert_exact(&mut agent, &ledger);
}

/// `strace` of one thread of the agent: the calls that name a file.
struct FileCalls {
    program: Program,
    folder: tempfile::TempDir,
}

impl FileCalls {
    /// Returns when the thread called `name` is traced.
    fn of(agent: &Agent, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
        let is_it = |task: &Path| std::fs::read_to_string(task.join("comm")).unwrap().trim() == name;
        let task = tasks.map(|task| task.unwrap().path()).find(|task| is_it(task)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-qq", "-e", "trace=%file", "-e", "signal=none", "-p"]).arg(task.file_name().unwrap());
        command.arg("-o").arg(folder.path().join("calls"));
        let program = Program::spawn("strace", command).unwrap();
        let begun = Instant::now();
        while std::fs::read_to_string(task.join("status")).unwrap().contains("TracerPid:\t0\n") {
            assert!(
                begun.elapsed() < patience(READY) && program.is_running().unwrap(),
                "{name} is not traced"
            );
            thread::yield_now();
        }
        Self { program, folder }
    }

    fn finish(mut self) -> String {
        self.program.signal(rustix::process::Signal::INT).unwrap();
        self.program.wait(patience(READY)).unwrap();
        std::fs::read_to_string(self.folder.path().join("calls")).unwrap()
    }
}

/// Fifty new processes a second, each of which must be known by its name. All capture hangs on the pipeline's thread:
/// what it would open belongs to other programs, which could keep it waiting.
#[test]
fn the_pipeline_opens_no_file() {
    const CALLERS: usize = 5;
    const PACE: Duration = Duration::from_millis(100);
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", ServerPlan::default()).unwrap();
    let traces = ["pipeline", "processes"].map(|name| FileCalls::of(&agent, name));
    let calls: Vec<Call> = (0..250).map(|_| Call::new(Shape::default())).collect();
    let call = |calls: &[Call]| {
        let one = |call| {
            let begun = Instant::now();
            let done = client::call(Kind::Shape, &server.server.address, std::slice::from_ref(call), 1);
            thread::sleep(PACE.saturating_sub(begun.elapsed()));
            done.unwrap()
        };
        calls.iter().map(one).collect::<Vec<_>>()
    };
    let done = thread::scope(|scope| {
        let parts = calls.chunks(calls.len() / CALLERS);
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| call(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let mut ledger = Ledger::default();
    for done in &done {
        ledger.enter(&calls, done, &server.server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
    let [pipeline, processes] = traces.map(FileCalls::finish);
    assert!(
        processes.lines().count() > calls.len(),
        "the thread that may wait opens what there is: {processes}"
    );
    assert_eq!(pipeline, "");
    assert!(agent.metric_value("obi_late_processes_total", &[]).unwrap() < 1.0);
}
