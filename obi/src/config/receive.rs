//! Section `receive`: what other programs may send us.
//!
//! In: what the user wrote. Out: checked addresses and secrets. Refuses to know sockets and what is sent.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::export::file;
use super::value;

/// Section `receive`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Receive {
    /// OTLP of other programs: spans of SDKs join what is captured, each event counts once; metrics and logs are passed
    /// on to the destinations in `export.otlp` as they are. Default: `{}`, which listens nowhere. Example:
    /// `{grpc: "127.0.0.1:4317", http: "127.0.0.1:4318"}`.
    pub otlp: OtlpReceiver,
}

/// Key `receive.otlp`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpReceiver {
    /// Address and port for OTLP over gRPC. One that is not loopback needs `token` and `cert_file`. Default: none.
    /// Example: `127.0.0.1:4317`.
    #[serde(deserialize_with = "listen")]
    pub grpc: Option<SocketAddr>,
    /// Address and port for OTLP over HTTP, as protobuf and as JSON. One that is not loopback needs `token` and
    /// `cert_file`. Default: none. Example: `127.0.0.1:4318`.
    #[serde(deserialize_with = "listen")]
    pub http: Option<SocketAddr>,
    /// Let spans of SDKs count as requests where their service is not captured: it runs elsewhere, is excluded, or its
    /// TLS or protocol is not read. A service of which one server span (or client span) was captured counts by what is
    /// captured alone, so it has to have the same `service.name` in both. Default: `false`, which shows such spans,
    /// passes them on and counts them nowhere. Example: `true`, for Java services with TLS of their own.
    pub count: bool,
    /// What senders have to say: `authorization: Bearer TOKEN`, at least 16 characters. Default: none. Example:
    /// `0f3bb1c8d5a94e27`, in `OTEL_EXPORTER_OTLP_HEADERS` of an SDK `authorization=Bearer%200f3bb1c8d5a94e27`.
    pub token: Token,
    /// PEM file with our certificate and those above it, an absolute path; with it both listeners speak TLS. Needs
    /// `key_file`. Default: none. Example: `/etc/obi/receive.pem`.
    #[serde(deserialize_with = "file")]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the key of `cert_file`. Default: none. Example: `/etc/obi/receive.key`.
    #[serde(deserialize_with = "file")]
    pub key_file: Option<PathBuf>,
}

impl OtlpReceiver {
    /// Whether anything is listened on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.grpc.is_some() || self.http.is_some()
    }
}

/// A secret that senders must know. Nothing shows it.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct Token(Option<String>);

impl Token {
    /// It, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Token(set)" } else { "Token(none)" })
    }
}

/// Shorter ones can be guessed.
const TOKEN_LEAST: usize = 16;

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "16 to 512 visible characters without spaces";
        let written = Option::<String>::deserialize(deserializer)
            .map_err(|_| D::Error::custom(format_args!("is not valid, expected {EXPECTED}, in quotes")))?;
        let is_good = |token: &String| {
            (TOKEN_LEAST..=512).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match written {
            Some(token) if !is_good(&token) => {
                Err(D::Error::custom(format_args!("is not valid, expected {EXPECTED}")))
            }
            written => Ok(Self(written)),
        }
    }
}

/// Without capture there is nothing to do but what others send.
pub(super) fn is_idle(receive: &Receive, captures: bool) -> Option<(String, String)> {
    let problem = "lets the agent see nothing, expected an address in receive.otlp beside it";
    (!captures && !receive.otlp.is_on()).then(|| ("capture.enabled".to_owned(), problem.to_owned()))
}

/// The first contradiction between keys: a key's path and what is wrong with its value.
pub(super) fn contradiction(receive: &Receive) -> Option<(String, String)> {
    let otlp = &receive.otlp;
    let refuse = |key: &str, problem: &str| Some((format!("receive.otlp.{key}"), problem.to_owned()));
    match (&otlp.cert_file, &otlp.key_file) {
        (Some(_), None) => return refuse("key_file", "is missing, expected the key of `cert_file`"),
        (None, Some(_)) => return refuse("cert_file", "is missing, expected the certificate of `key_file`"),
        _ => {}
    }
    if otlp.grpc.is_some() && otlp.grpc == otlp.http && otlp.grpc.is_some_and(|address| address.port() != 0) {
        return refuse("http", "is the address of `grpc` as well, expected another port");
    }
    let is_open = |address: &Option<SocketAddr>| address.is_some_and(|address| !address.ip().is_loopback());
    if is_open(&otlp.grpc) || is_open(&otlp.http) {
        let name = if is_open(&otlp.grpc) { "grpc" } else { "http" };
        if otlp.token.get().is_none() {
            return refuse(name, "is not loopback, expected a `token` that senders have to say beside it");
        }
        if otlp.cert_file.is_none() {
            return refuse(name, "is not loopback, expected a `cert_file` beside it: the token is a secret");
        }
    }
    None
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    const EXPECTED: &str = "an address with a port, such as 127.0.0.1:4317";
    let written = value::text(deserializer, EXPECTED)?;
    let refuse = |_| D::Error::custom(format_args!("is not valid, expected {EXPECTED}"));
    written.parse().map(Some).map_err(refuse)
}
