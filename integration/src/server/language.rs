//! Servers written in Python, Node, Go and Java: their standard HTTP/1 libraries.
//!
//! In: nothing. Out: running servers. Refuses to know their sources beyond the name.

use std::process::Command;

use super::{Features, KEPT, Server};
use crate::program;

/// Python's `http.server`; `model` is `threading` or `forking` (a process per connection, forked after accept).
///
/// # Errors
/// When it does not get ready.
pub fn python_http(model: &str) -> anyhow::Result<Server> {
    let mut command = Command::new("python3");
    command.arg(program::source("http_server.py")).arg(model);
    Server::start(&format!("python-{model}"), command, Features::full())
}

/// Python's asyncio streams.
///
/// # Errors
/// When it does not get ready.
pub fn python_asyncio() -> anyhow::Result<Server> {
    let mut command = Command::new("python3");
    command.arg(program::source("asyncio_server.py"));
    Server::start("python-asyncio", command, Features::full())
}

/// Node's `http`.
///
/// # Errors
/// When it does not get ready.
pub fn node() -> anyhow::Result<Server> {
    let mut command = Command::new("node");
    command.arg(program::source("server.js"));
    Server::start("node", command, Features { framings: KEPT, ..Features::full() })
}

/// Go's `net/http`.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn go() -> anyhow::Result<Server> {
    let command = Command::new(program::go("server")?);
    Server::start("go", command, Features { framings: KEPT, ..Features::full() })
}

/// golang.org/x/net/http2 in cleartext; also by `Upgrade`.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn http2_go() -> anyhow::Result<Server> {
    let mut command = Command::new(program::multiplex()?);
    command.arg("serve-http2");
    Server::start("http2-go", command, Features { framings: KEPT, ..Features::full() })
}

/// Node's `http2` in cleartext.
///
/// # Errors
/// When it does not get ready.
pub fn http2_node() -> anyhow::Result<Server> {
    let mut command = Command::new("node");
    command.arg(program::source("http2_server.js"));
    Server::start("http2-node", command, Features { framings: KEPT, ..Features::full() })
}

/// Java's `com.sun.net.httpserver`.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn java() -> anyhow::Result<Server> {
    let mut command = Command::new("java");
    // Nagle's algorithm would add 40 ms to every answer in two writes.
    command.args(["-Dsun.net.httpserver.nodelay=true", "-Xmx128m"]);
    // Compiler and collector threads would come between the handler's clock and its write.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    command.arg(program::java("Server")?).arg("Server");
    Server::start("java", command, Features { framings: KEPT, has_pipelining: false, ..Features::full() })
}
