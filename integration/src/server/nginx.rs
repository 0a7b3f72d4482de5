//! nginx: static files with and without sendfile, over TCP and a unix socket, and a reverse proxy in front.
//!
//! In: nothing. Out: running servers. nginx overwrites its environment, so its service name is the name of its
//! (copied) executable. Refuses to know clients.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::{Features, KEPT, REQUEST_FRAMINGS, Server, service};
use crate::patience::patience;
use crate::plan::Address;
use crate::process::{Program, READY, free_port};
use crate::span::Kind;

/// Sizes of the static files.
const SIZES: &[u64] = &[0, 1, 17, 1024, 4096, 65_536, 300_000];

/// Which nginx.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// With `sendfile on`.
    Sendfile,
    /// With `sendfile off`.
    Buffered,
}

/// How a reverse proxy reaches its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// Over TCP.
    Tcp,
    /// Over a unix socket.
    Unix,
}

/// What a static nginx honours.
#[must_use]
pub fn features() -> Features {
    Features {
        statuses: &[200, 200, 200, 204, 304, 404, 503],
        sizes: SIZES,
        framings: KEPT,
        request_framings: REQUEST_FRAMINGS,
        has_body_always: false,
        has_clock: false,
        ..Features::full()
    }
}

/// Static files, two workers that share the port by `SO_REUSEPORT`; also on a unix socket at [`unix_address`], and
/// under `/plain/SIZE` without anything of the protocol.
///
/// # Errors
/// When it does not get ready.
pub fn files(how: Files) -> anyhow::Result<Server> {
    let port = free_port()?;
    files_at(how, port, &format!("listen 127.0.0.1:{port} reuseport;"))
}

/// The same, listening on `port` as the directives in `listen` say.
pub(super) fn files_at(how: Files, port: u16, listen: &str) -> anyhow::Result<Server> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("file");
    fs::create_dir(&root)?;
    for &size in SIZES {
        fs::write(root.join(size.to_string()), vec![b'b'; usize::try_from(size)?])?;
    }
    let socket = folder.path().join("socket");
    let name = match how {
        Files::Sendfile => "nginx-sendfile",
        Files::Buffered => "nginx-buffered",
    };
    let mut block = format!(
        "{listen} listen unix:{}; root {}; sendfile {};\n",
        socket.display(),
        folder.path().display(),
        if how == Files::Sendfile { "on" } else { "off" },
    );
    block.push_str(&format!("location /plain/ {{ alias {}/; }}\n", root.display()));
    block.push_str(&locations());
    start(name, folder, &format!("server {{\n{block}}}\n"), port, features())
}

/// The unix socket of a static nginx.
#[must_use]
pub fn unix_address(server: &Server) -> Address {
    Address::Unix(server.file("socket"))
}

/// A reverse proxy before `upstream`, with kept-alive upstream connections.
///
/// # Errors
/// When it does not get ready.
pub fn proxy(upstream: &Server, over: Upstream) -> anyhow::Result<Server> {
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let (name, to) = match (over, &upstream.address) {
        (Upstream::Tcp, Address::Tcp(address)) => ("nginx-proxy-tcp", address.to_string()),
        _ => ("nginx-proxy-unix", format!("unix:{}", upstream.file("socket").display())),
    };
    // A retry would make two upstream requests of one; failures must show instead.
    let blocks = format!(
        "upstream back {{ server {to}; keepalive 16; }}\n\
         server {{\nlisten 127.0.0.1:{port} reuseport; sendfile on;\n\
         location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header connection \"\";\n\
         proxy_next_upstream off; }}\n}}\n"
    );
    let mut server = start(name, folder, &blocks, port, upstream.features)?;
    server.behind.push((Kind::Client, server.service.clone()));
    server.behind.extend(upstream.roles());
    Ok(server)
}

/// A proxy at `port` that has all of `to` below `/obi`: that path is taken away on the way, or with `is_kept` left
/// there.
///
/// # Errors
/// When it does not get ready.
pub fn below(port: u16, to: SocketAddr, is_kept: bool) -> anyhow::Result<Server> {
    let rest = if is_kept { "" } else { "/" };
    let blocks = format!(
        "server {{\nlisten 127.0.0.1:{port} reuseport;\nlocation /obi/ {{ proxy_pass http://{to}{rest}; }}\n}}\n"
    );
    start("nginx-below", tempfile::tempdir()?, &blocks, port, features())
}

/// The server in front of a gRPC server at `upstream`, a port of IPv4 loopback, and its port.
///
/// # Errors
/// When it does not get ready.
pub fn grpc_proxy(upstream: u16) -> anyhow::Result<(Server, u16)> {
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    // A second try would make two calls of one.
    let blocks = format!(
        "upstream back {{ server 127.0.0.1:{upstream}; keepalive 16; }}\n\
         server {{\nlisten 127.0.0.1:{port} http2 reuseport;\n\
         location / {{ grpc_pass grpc://back; grpc_next_upstream off; }}\n}}\n"
    );
    let mut server = start("nginx-grpc", folder, &blocks, port, features())?;
    server.behind.push((Kind::Client, server.service.clone()));
    Ok((server, port))
}

/// Static files over cleartext HTTP/2.
///
/// # Errors
/// When it does not get ready.
pub fn http2() -> anyhow::Result<Server> {
    let port = free_port()?;
    let listen = format!("listen 127.0.0.1:{port} http2 reuseport; http2_max_concurrent_streams 4096;");
    files_at(Files::Buffered, port, &listen)
}

/// One location per status and framing. The mirror makes nginx read a request body before it answers; static files
/// refuse all but GET with 405, which is then answered as if it had been GET.
fn locations() -> String {
    let mut text = String::new();
    let path = |rest: &str| format!("location ~ \"^/e/[0-9a-f]+/{rest}\"");
    let sized = r"(?<size>\d+)$";
    for (framing, folder) in [("length", "file"), ("chunked", "filtered")] {
        let _ = writeln!(
            text,
            "{} {{ rewrite ^ /{folder}/$size last; }}",
            path(&format!("200/{framing}/{sized}"))
        );
        for status in [404, 503] {
            let place = path(&format!("{status}/{framing}/{sized}"));
            let _ = writeln!(text, "{place} {{ error_page {status} /{folder}/$size; return {status}; }}");
        }
    }
    for status in [204, 304] {
        let _ = writeln!(text, "{} {{ return {status}; }}", path(&format!("{status}/")));
    }
    text.push_str(
        "location /file/ { internal; mirror /mirror; mirror_request_body on; error_page 405 =200 $uri; }\n\
         location ~ \"^/filtered/(?<size>\\d+)$\" { internal; mirror /mirror; mirror_request_body on;\n\
         error_page 405 =200 $uri; sub_filter never ever; sub_filter_types *; try_files /file/$size =500; }\n\
         location = /mirror { internal; return 204; }\n",
    );
    text
}

fn start(name: &str, folder: TempDir, blocks: &str, port: u16, features: Features) -> anyhow::Result<Server> {
    let service = service(name);
    let executable = folder.path().join(&service);
    fs::copy("/usr/sbin/nginx", &executable).context("copy /usr/sbin/nginx (package nginx-light)")?;
    let file = folder.path().join("nginx.conf");
    fs::write(&file, configuration(folder.path(), blocks))?;
    let mut command = Command::new(&executable);
    command.arg("-c").arg(&file).arg("-e").arg("stderr").env("OTEL_SERVICE_NAME", &service);
    let program = Program::spawn(name, command)?;
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if !program.is_running()? || begun.elapsed() > patience(READY) {
            bail!("{name} did not get ready: {}", program.stderr()?);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let (address, behind) = (Address::loopback(port), Vec::new());
    Ok(Server { name: name.to_owned(), service, address, features, behind, program, files: folder })
}

fn configuration(folder: &Path, blocks: &str) -> String {
    let folder = folder.display();
    let mut text =
        format!("user root; daemon off; worker_processes 2; pid {folder}/pid; error_log stderr error;\n");
    text.push_str("events { worker_connections 4096; }\nhttp {\naccess_log off; default_type text/plain;\n");
    text.push_str("client_max_body_size 16m; keepalive_requests 1000000; keepalive_timeout 120s;\n");
    text.push_str("large_client_header_buffers 4 64k; tcp_nodelay on;\n");
    for part in ["client_body", "proxy"] {
        let _ = writeln!(text, "{part}_temp_path {folder}/{part};");
    }
    text + blocks + "}\n"
}
