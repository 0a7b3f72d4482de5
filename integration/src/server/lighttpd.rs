//! lighttpd: static files over TLS by any of the libraries that it has modules for.
//!
//! In: certificates, which library. Out: a running server. Refuses to know clients and what the agent can read.

use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::{Features, KEPT, Server, service};
use crate::otlp::certificate::Certificates;
use crate::patience::patience;
use crate::plan::Address;
use crate::process::{Program, READY, free_port};
use crate::shape::RequestFraming;

/// Sizes of the files.
const SIZES: &[u64] = &[0, 1, 17, 1024, 4096, 65_536, 300_000];

/// Static files over TLS of this module of lighttpd's, such as `gnutls`.
///
/// # Errors
/// When it does not get ready.
pub fn files(certificates: &Certificates, module: &str) -> anyhow::Result<Server> {
    let (folder, port, name) = (tempfile::tempdir()?, free_port()?, format!("lighttpd-{module}"));
    for &size in SIZES {
        fs::write(folder.path().join(size.to_string()), vec![b'b'; usize::try_from(size)?])?;
    }
    let text = format!(
        "server.modules = (\"mod_rewrite\", \"mod_{module}\")\n\
         server.document-root = \"{0}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
         server.max-keep-alive-requests = 100000\nserver.errorlog = \"/dev/stderr\"\n\
         url.rewrite-once = (\"^/e/[0-9a-f]+/200/length/([0-9]+)$\" => \"/$1\")\n\
         ssl.engine = \"enable\"\nssl.pemfile = \"{1}\"\nssl.privkey = \"{2}\"\n",
        folder.path().display(),
        certificates.path("server.pem").display(),
        certificates.path("server.key").display(),
    );
    let file = folder.path().join("lighttpd.conf");
    fs::write(&file, text)?;
    let service = service(&name);
    let mut command = Command::new("lighttpd");
    command.arg("-D").arg("-f").arg(&file).env("OTEL_SERVICE_NAME", &service);
    let program = Program::spawn(&name, command)?;
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if !program.is_running()? || begun.elapsed() > patience(READY) {
            bail!("{name} did not get ready: {}", program.stderr()?);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let features = Features {
        statuses: &[200],
        sizes: SIZES,
        framings: &KEPT[..1],
        methods: &["GET", "GET", "HEAD"],
        request_framings: &[RequestFraming::None],
        has_body_always: false,
        has_clock: false,
        ..Features::full()
    };
    let address = Address::loopback(port);
    Ok(Server { name, service, address, features, behind: Vec::new(), program, files: folder })
}
