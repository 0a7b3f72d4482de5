//! Servers over TLS: nginx, Python with and without an event loop, Node, Go, whose TLS is its own, and Rust.
//!
//! In: certificates. Out: running servers. Refuses to know clients and what the agent can read.

use std::process::Command;

use super::nginx::{self, Files};
use super::{Features, KEPT, Server};
use crate::otlp::certificate::Certificates;
use crate::process::free_port;
use crate::program::{self, Build, Threads};

/// nginx with static files.
///
/// # Errors
/// When it does not get ready.
pub fn nginx(certificates: &Certificates) -> anyhow::Result<Server> {
    nginx_with(certificates, "")
}

/// nginx with static files that takes requests inside the handshake of a session that goes on (TLS 1.3, 0-RTT).
///
/// # Errors
/// When it does not get ready.
pub fn nginx_early(certificates: &Certificates) -> anyhow::Result<Server> {
    nginx_with(certificates, "ssl_protocols TLSv1.3; ssl_early_data on;")
}

fn nginx_with(certificates: &Certificates, directives: &str) -> anyhow::Result<Server> {
    let port = free_port()?;
    let (certificate, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    let listen = format!(
        "listen 127.0.0.1:{port} ssl reuseport; ssl_certificate {}; ssl_certificate_key {}; {directives}",
        certificate.display(),
        key.display()
    );
    nginx::files_at(Files::Sendfile, port, &listen)
}

/// nginx with static files, whose records the kernel makes, where it can and OpenSSL hands them over; only of one
/// `protocol`, as nginx calls it.
///
/// # Errors
/// When it does not get ready.
pub fn nginx_by_kernel(certificates: &Certificates, protocol: &str) -> anyhow::Result<Server> {
    // The kernel knows few ciphers.
    let directives = format!(
        "ssl_protocols {protocol}; ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256; \
         ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; ssl_conf_command Options KTLS;"
    );
    nginx_with(certificates, &directives)
}

/// A program in C with a thread for each connection, for [`crate::client::threads`].
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn threads(certificates: &Certificates) -> anyhow::Result<Server> {
    threads_of(certificates, Threads::Shared)
}

/// The same over this library.
///
/// # Errors
/// As [`threads`].
pub fn threads_of(certificates: &Certificates, library: Threads) -> anyhow::Result<Server> {
    let mut command = Command::new(program::threads(library)?);
    command.arg("serve");
    Server::start_encrypted("threads", command, certificates, Features { framings: KEPT, ..Features::full() })
}

/// Python's `http.server`, a thread per connection: blocking reads and writes. It ends connections without saying so in
/// TLS, which curl takes for an error: bodies that end with the connection are left out.
///
/// # Errors
/// When it does not get ready.
pub fn python_threads(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new("python3");
    command.arg(program::source("http_server.py")).arg("threading");
    let features = Features { framings: KEPT, has_pipelining: false, ..Features::full() };
    Server::start_encrypted("python-threading", command, certificates, features)
}

/// Python's asyncio streams: memory BIOs.
///
/// # Errors
/// When it does not get ready.
pub fn python_asyncio(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new("python3");
    command.arg(program::source("asyncio_server.py"));
    Server::start_encrypted("python-asyncio", command, certificates, Features::full())
}

/// Node's `https`: OpenSSL inside the executable, and a BIO of its own. With more to be sent than a socket's buffer of
/// 16 KiB takes, Node 20 stops its parser, feeds it what TLS has read already, takes that for an error (`HPE_PAUSED`)
/// and closes: pipelined responses have to be small.
///
/// # Errors
/// When it does not get ready.
pub fn node(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new("node");
    command.arg(program::source("server.js"));
    let features = Features { framings: KEPT, pipelined_sizes: &[0, 1, 700, 1_999], ..Features::full() };
    Server::start_encrypted("node", command, certificates, features)
}

/// Node's `http2`.
///
/// # Errors
/// When it does not get ready.
pub fn http2_node(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new("node");
    command.arg(program::source("http2_server.js"));
    Server::start_encrypted(
        "http2-node",
        command,
        certificates,
        Features { framings: KEPT, ..Features::full() },
    )
}

/// nginx with static files over HTTP/2.
///
/// # Errors
/// When it does not get ready.
pub fn http2_nginx(certificates: &Certificates) -> anyhow::Result<Server> {
    let port = free_port()?;
    let (certificate, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    let listen = format!(
        "listen 127.0.0.1:{port} ssl http2 reuseport; http2_max_concurrent_streams 4096; ssl_certificate {}; \
         ssl_certificate_key {};",
        certificate.display(),
        key.display()
    );
    nginx::files_at(Files::Sendfile, port, &listen)
}

/// Go's `net/http` over `crypto/tls`, built in this way; HTTP/2 where the client wants it.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn go(certificates: &Certificates, build: Build) -> anyhow::Result<Server> {
    go_with(certificates, build, &[])
}

/// The same with variables of the environment, see `server.go`.
///
/// # Errors
/// As [`go`].
pub fn go_with(
    certificates: &Certificates,
    build: Build,
    environment: &[(&str, &str)],
) -> anyhow::Result<Server> {
    let mut command = Command::new(program::go_built("server", build)?);
    command.envs(environment.iter().copied());
    let name = format!("go-{build:?}").to_lowercase();
    Server::start_encrypted(&name, command, certificates, Features { framings: KEPT, ..Features::full() })
}

/// axum over rustls, HTTP/1.1 and HTTP/2, with variables of the environment, see `rustls_peer.rs`.
///
/// # Errors
/// When it has not been built or does not get ready.
pub fn rustls(certificates: &Certificates, environment: &[(&str, &str)]) -> anyhow::Result<Server> {
    let mut command = Command::new(program::rustls_peer()?);
    command.arg("serve").envs(environment.iter().copied());
    // hyper refuses what HTTP does not have, and says nothing of a body's length where it sends none.
    Server::start_encrypted("rustls", command, certificates, Features { framings: KEPT, ..Features::full() })
}

/// The same without symbols.
///
/// # Errors
/// As [`rustls`].
pub fn rustls_stripped(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new(program::rustls_peer_stripped()?);
    command.arg("serve");
    let features = Features { framings: KEPT, ..Features::full() };
    Server::start_encrypted("rustls-stripped", command, certificates, features)
}

/// Netty over BoringSSL, whose library is deleted as soon as it is loaded.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn netty(certificates: &Certificates) -> anyhow::Result<Server> {
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    command.arg(program::java_with_packages("Netty")?).arg("Netty");
    let features = Features { framings: KEPT, has_pipelining: false, ..Features::full() };
    Server::start_encrypted("netty", command, certificates, features)
}
