//! One HTTP GET, enough to ask the agent and Prometheus.
//!
//! In: a port of this machine and a path. Out: status and body. HTTP/1.0, so that no body is chunked.
//! Refuses to know what is fetched.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::patience::patience;

const TIMEOUT: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// `Content-Type`, empty when absent.
    pub content_type: String,
    /// `Content-Security-Policy`, empty when absent.
    pub policy: String,
    /// Body.
    pub body: String,
}

/// Fetches `path` from `address`; `accept` is the `Accept` header.
///
/// # Errors
/// When the connection fails or the answer is no HTTP.
pub fn get(address: SocketAddr, path: &str, accept: &str) -> anyhow::Result<Answer> {
    let (answer, body) = ask(address, path, accept)?;
    Ok(Answer { body: String::from_utf8(body).context("body is not UTF-8")?, ..answer })
}

/// Fetches `path`, whose body need not be text.
///
/// # Errors
/// When the connection fails, the answer is no HTTP or its status not 200.
pub fn bytes(address: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let (answer, body) = ask(address, path, "*/*")?;
    if answer.status != 200 {
        bail!("{address}{path} answered {}: {}", answer.status, String::from_utf8_lossy(&body));
    }
    Ok(body)
}

/// An answer, and its body apart.
fn ask(address: SocketAddr, path: &str, accept: &str) -> anyhow::Result<(Answer, Vec<u8>)> {
    let timeout = patience(TIMEOUT);
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\naccept: {accept}\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(&bytes).context("parse answer")? else {
        bail!("{address}{path} answered with half a head: {}", bytes.escape_ascii());
    };
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map_or_else(String::new, |header| String::from_utf8_lossy(header.value).into_owned())
    };
    let status = response.code.context("a whole head has a status")?;
    let (content_type, policy) = (header("content-type"), header("content-security-policy"));
    Ok((Answer { status, content_type, policy, body: String::new() }, bytes.split_off(length)))
}

/// Fetches `path` and parses its JSON.
///
/// # Errors
/// When fetching fails, the status is not 200 or the body is no such JSON.
pub fn json<T: serde::de::DeserializeOwned>(address: SocketAddr, path: &str) -> anyhow::Result<T> {
    let answer = get(address, path, "application/json")?;
    if answer.status != 200 {
        bail!("{address}{path} answered {}: {}", answer.status, answer.body);
    }
    serde_json::from_str(&answer.body).with_context(|| format!("parse {address}{path}: {:.200}", answer.body))
}

/// Percent-encodes a query value.
#[must_use]
pub fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
