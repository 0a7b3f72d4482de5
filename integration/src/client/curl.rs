//! curl: many URLs in one invocation, over kept-alive connections.
//!
//! In: calls. Out: what curl says of each. Refuses to know the agent.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Done, Kind};
use crate::plan::{Address, Call};
use crate::shape::RequestFraming;

/// What curl writes after each transfer. An absent header looks like an empty one, so no handler time.
const REPORT: &str = r#"{\"id\":\"ID\",\"status\":%{http_code},\"request_bytes\":SIZE,\"response_bytes\":%{size_download},\"handler_ns\":null,\"started_ns\":0,\"ended_ns\":0}\n"#;

/// Runs curl on each file in a folder, several at a time.
const EACH: &str = r#"printf '%s\n' "$1"/*.conf | xargs -P 8 -n 1 curl --disable --config"#;

/// Makes `calls` one after the other.
///
/// # Errors
/// When curl fails or does not report every call.
pub(super) fn call(kind: Kind, address: &Address, tls: bool, calls: &[Call]) -> anyhow::Result<Done> {
    let folder = tempfile::tempdir()?;
    // By prior knowledge, curl 7.88 sends its preface anew over a kept connection: it gets a process for each call.
    let at_once = if kind == Kind::Http2Curl && !tls { 1 } else { calls.len().max(1) };
    for (number, part) in calls.chunks(at_once).enumerate() {
        let mut config = String::new();
        for call in part {
            section(&mut config, folder.path(), &Target { kind, address, tls }, call)?;
            config.push_str(match kind {
                Kind::Http2Curl if !tls => "http2-prior-knowledge\n",
                // In TLS the protocol is agreed on.
                Kind::Http2Curl | Kind::UpgradeCurl => "http2\n",
                _ => "http1.1\n",
            });
        }
        fs::write(folder.path().join(format!("{number:04}.conf")), config)?;
    }
    let mut command = Command::new("sh");
    command.args(["-c", EACH, "sh"]).arg(folder.path());
    super::report(kind.name(), command, calls.len())
}

/// Who is asked, and how.
#[derive(Debug)]
struct Target<'a> {
    kind: Kind,
    address: &'a Address,
    tls: bool,
}

/// Adds one transfer to the configuration file.
fn section(config: &mut String, folder: &Path, target: &Target<'_>, call: &Call) -> anyhow::Result<()> {
    let Target { kind, address, tls } = *target;
    let shape = &call.shape;
    if !config.is_empty() {
        config.push_str("next\n");
    }
    config.push_str("silent\nshow-error\npath-as-is\noutput = /dev/null\nmax-time = 60\n");
    let scheme = if tls { "https" } else { "http" };
    if tls {
        config.push_str("insecure\n");
    }
    let url = format!("{scheme}://{}{}", address.host(), shape.target(&call.id));
    writeln!(config, "url = \"{url}\"")?;
    if let Address::Unix(path) = address {
        writeln!(config, "unix-socket = \"{}\"", path.display())?;
    }
    match shape.method.as_str() {
        "HEAD" => config.push_str("head\n"),
        method => writeln!(config, "request = {method}")?,
    }
    if shape.request_framing != RequestFraming::None {
        let body = folder.join(shape.request_bytes.to_string());
        if !body.exists() {
            fs::write(&body, vec![b'q'; usize::try_from(shape.request_bytes)?])?;
        }
        writeln!(config, "data-binary = \"@{}\"", body.display())?;
    }
    if shape.request_framing == RequestFraming::Chunked && kind == Kind::Curl {
        config.push_str("header = \"transfer-encoding: chunked\"\n");
    }
    let report = REPORT.replace("ID", &call.id).replace("SIZE", &shape.request_bytes.to_string());
    writeln!(config, "write-out = \"{report}\"")?;
    Ok(())
}
