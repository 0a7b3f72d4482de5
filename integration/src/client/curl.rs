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

/// What curl writes after each transfer. It cannot tell an absent header from an empty one, so no handler time.
const REPORT: &str = r#"{\"id\":\"ID\",\"status\":%{http_code},\"request_bytes\":SIZE,\"response_bytes\":%{size_download},\"handler_ns\":null,\"started_ns\":0,\"ended_ns\":0}\n"#;

/// Makes `calls`, at most 300 of them: one after the other, over HTTP/2 at the same time.
///
/// # Errors
/// When curl fails or does not report every call.
pub(super) fn call(kind: Kind, address: &Address, calls: &[Call]) -> anyhow::Result<Done> {
    let folder = tempfile::tempdir()?;
    let mut config = String::new();
    for call in calls {
        section(&mut config, folder.path(), address, call, kind == Kind::CurlHttp2)?;
    }
    let file = folder.path().join("curl.conf");
    fs::write(&file, config)?;
    let mut command = Command::new("curl");
    command.arg("--disable").arg("--config").arg(&file);
    if kind == Kind::CurlHttp2 {
        // curl before 8.0 cannot use a connection of this kind twice: each transfer opens its own.
        let most = calls.len().to_string();
        command.args(["--no-progress-meter", "--parallel", "--parallel-immediate", "--parallel-max", &most]);
    }
    super::report(kind.name(), command, calls.len())
}

/// Adds one transfer to the configuration file.
fn section(
    config: &mut String,
    folder: &Path,
    address: &Address,
    call: &Call,
    is_http2: bool,
) -> anyhow::Result<()> {
    let shape = &call.shape;
    if !config.is_empty() {
        config.push_str("next\n");
    }
    config.push_str("silent\nshow-error\npath-as-is\noutput = /dev/null\nmax-time = 60\n");
    let url = format!("http://{}{}", address.host(), shape.target(&call.id));
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
    if is_http2 {
        config.push_str("http2-prior-knowledge\n");
    } else if shape.request_framing == RequestFraming::Chunked {
        config.push_str("header = \"transfer-encoding: chunked\"\n");
    }
    let report = REPORT.replace("ID", &call.id).replace("SIZE", &shape.request_bytes.to_string());
    writeln!(config, "write-out = \"{report}\"")?;
    Ok(())
}
