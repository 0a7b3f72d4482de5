//! What a span says of the process it came from.

use std::collections::BTreeMap;

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::plan::Call;
use integration::server::language;
use integration::shape::Shape;
use integration::span;
use serde_json::Value;

use crate::gate::{self, Barrier};

/// A server that forks for every connection: one service, and each process an instance of its own.
#[test]
fn a_fork_is_an_instance_of_its_own() {
    const CALLS: usize = 3;
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let server = language::python_http("forking").unwrap();
    let barrier = Barrier::start();
    for _ in 0..CALLS {
        client::call(Kind::Python, &server.address, &[Call::new(Shape::default())], 1).unwrap();
    }
    let is_ours = |span: &&span::Span| span.kind == span::Kind::Server && span.service.name == server.service;
    agent.spans_until(gate::PATIENCE, |spans| spans.iter().filter(is_ours).count() >= CALLS).unwrap();
    assert!(barrier.pass(&mut agent));
    let mut instances = BTreeMap::new();
    for span in agent.spans().unwrap().iter().filter(is_ours) {
        let text =
            |name: &str| span.resource.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        assert_eq!(span.resource["process.pid"], span.pid, "{:?}", span.resource);
        assert_eq!(
            ["telemetry.sdk.language", "process.runtime.name", "os.type"].map(text),
            ["python", "cpython", "linux"]
        );
        for present in ["host.name", "host.arch", "process.executable.path", "process.executable.name"] {
            assert!(!text(present).is_empty(), "{present} of {:?}", span.resource);
        }
        instances.insert(span.pid, text("service.instance.id"));
    }
    let mut ids: Vec<&String> = instances.values().collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), ids[0].len()), (instances.len(), 36), "{instances:?}");
    assert!(instances.len() > 1, "the server forks: {instances:?}");
}
