//! Five services in a row, each on another runtime, none of which passes a trace header on.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::Command;

use integration::process::free_port;
use integration::program::{self, Build};
use integration::seed::note;
use integration::span::{Kind, Span};

use super::nginx::start_nginx;
use super::{
    Agent, Config, Front, Listening, PROBING, ask, ask_by, gate, interpreter, listening, node, start,
};

/// nginx, which hands every request on.
fn first(folder: &tempfile::TempDir, port: u16, next: &Listening) -> Listening {
    let path = folder.path().display();
    let text = format!(
        "user root; daemon off; worker_processes 1; pid {path}/pid; error_log stderr crit;\n\
         events {{ worker_connections 4096; }}\nhttp {{ access_log off; keepalive_requests 1000000;\n\
         proxy_temp_path {path}/proxy; client_body_temp_path {path}/body;\n\
         upstream next {{ server {}; keepalive 64; }}\n\
         server {{ listen 127.0.0.1:{port}; location / {{\n\
         proxy_pass http://next; proxy_http_version 1.1; proxy_set_header connection ''; }} }} }}\n",
        next.address
    );
    start_nginx(folder, &text, port)
}

/// A line for each span, below its parent.
fn tree(spans: &[&Span]) -> String {
    let mut text = String::new();
    let by_id: HashMap<&str, &Span> = spans.iter().map(|span| (span.span_id.as_str(), *span)).collect();
    for span in spans {
        let parents = std::iter::successors(Some(*span), |it| {
            by_id.get(it.parent_span_id.as_deref()?).copied().filter(|parent| parent.span_id != it.span_id)
        });
        let depth = parents.take(spans.len() + 1).count() - 1;
        let evidence = span.text("obi.parent.evidence").unwrap_or("-");
        let name = &span.service.name;
        let _ = writeln!(text, "{:width$}{:?} {name} ({evidence})", "", span.kind, width = 2 * depth);
    }
    text
}

/// Each request is one trace: the client's call, and of every service its span below the call that sent it, and its
/// call below that. The last one's own calls have other paths.
#[test]
fn five_runtimes_are_one_trace() {
    const CLIENTS: usize = 8;
    let files = tempfile::tempdir().unwrap();
    let log = files.path().join("log");
    let back = start("back.py", &[]);
    let tomcat = Front::Tomcat.start(&back, &log);
    let port = |next: &Listening| next.address.port().to_string();
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", program::python_packages().unwrap());
    python.arg(program::source("causality").join("chain.py")).arg(port(&tomcat));
    let python = listening("chain.py", python);
    let mut go = Command::new(program::go_built("chain", Build::Plain).unwrap());
    go.arg(port(&python));
    let go = listening("chain", go);
    let mut javascript = Command::new("node");
    javascript.arg(program::source("causality").join("chain.js")).arg(port(&go));
    let javascript = listening("chain.js", javascript);
    let nginx = first(&files, free_port().unwrap(), &javascript);
    let mut agent = Agent::start(Config::default()).unwrap();
    let probed = [&nginx.service, &node(), "/go-chain-plain", &interpreter(), "/uvloop/loop."];
    agent.await_probes(&probed, PROBING).unwrap();
    // The first request that nginx makes is not known.
    ask(nginx.address, &["first"], 3);
    let ids = ask_by(nginx.address, &["chain"], CLIENTS);
    assert!(gate::Barrier::start().pass(&mut agent), "the agent does not show what has passed");
    let services = [&nginx, &javascript, &go, &python, &tomcat].map(|it| it.service.as_str());
    let spans = agent.spans().unwrap();
    let mut whole = 0;
    for id in &ids {
        let path = format!("/chain/{id}");
        let of_path: Vec<&Span> = spans.iter().filter(|it| it.text("url.path") == Some(&path)).collect();
        let find = |kind, service: Option<&str>| {
            let mut found = of_path.iter().filter(|it| it.kind == kind).filter(|it| {
                service.map_or(!services.contains(&&*it.service.name), |name| it.service.name == name)
            });
            let one = *found.next().unwrap_or_else(|| panic!("{kind:?} of {service:?}: {}", tree(&of_path)));
            assert!(found.next().is_none(), "{kind:?} of {service:?} twice: {}", tree(&of_path));
            one
        };
        let mut chain = vec![find(Kind::Client, None)];
        for (nth, service) in services.iter().enumerate() {
            chain.push(find(Kind::Server, Some(service)));
            if nth + 1 < services.len() {
                chain.push(find(Kind::Client, Some(service)));
            }
        }
        assert_eq!(chain.len(), of_path.len(), "{path}: {}", tree(&of_path));
        let own = |it: &Span| (it.trace_id.clone(), Some(it.span_id.clone()));
        let named = |it: &Span| (it.trace_id.clone(), it.parent_span_id.clone());
        // A parent that is known is the right one.
        for pair in chain.windows(2).filter(|pair| pair[1].parent_span_id.is_some()) {
            assert_eq!(named(pair[1]), own(pair[0]), "{path}: {}", tree(&of_path));
        }
        whole += usize::from(chain.windows(2).all(|pair| named(pair[1]) == own(pair[0])));
        if id == &ids[ids.len() / 2] {
            note(&format!("one request through five runtimes:\n{}", tree(&chain)));
        }
    }
    note(&format!("chain: {whole} of {} requests are one trace", ids.len()));
    assert!(whole * 100 >= ids.len() * 98, "{whole} of {}", ids.len());
}
