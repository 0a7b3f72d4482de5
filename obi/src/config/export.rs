//! Section `export`: who gets spans, metrics and profiles over OTLP, and which spans.
//!
//! In: what the user wrote. Out: checked destinations. Refuses to know connections and encodings; the standard
//! variables that make a destination too are read in `otlp_environment`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::pyroscope::{self, PyroscopeDestination};
use super::remote_write::{self, RemoteWriteDestination};
use super::spool::Spool;
use super::value;

/// Section `export`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Export {
    /// Destinations for spans, metrics and profiles over OTLP, each with a queue of its own. Default: `[]`. Example:
    /// `[{endpoint: "http://collector:4317", protocol: grpc}]`. The standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`
    /// and its relatives) add one more, named `environment`.
    pub otlp: Vec<OtlpDestination>,
    /// Servers that take profiles as Grafana Pyroscope does (`/ingest`), each with a queue of its own. It takes OTLP as
    /// well, but has host and route as labels only this way. Default: `[]`. Example:
    /// `[{url: "http://pyroscope:4040"}]`.
    pub pyroscope: Vec<PyroscopeDestination>,
    /// Servers that take metrics by Prometheus's remote write (2.0, or 1.0 where they know only that), each with a
    /// queue of its own: everything that `/metrics` shows. Default: `[]`. Example:
    /// `[{url: "http://prometheus:9090/api/v1/write"}]`.
    pub remote_write: Vec<RemoteWriteDestination>,
    /// Keeps on the disk what destinations do not take: requests of all of them, over restarts, oldest first out.
    /// Default: `{bytes: 0}`, off: it waits in memory for `retry_for`. Example: `{bytes: 1 GiB}`.
    pub spool: Spool,
    /// Which spans are exported. Metrics always count all of them. Default: `{ratio: 1, parent_based: true}`.
    /// `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` set it too. Example: `{ratio: 0.1}`.
    pub sampling: Sampling,
    /// Time between two exports of metrics over OTLP, 1s to 1h. Default: `60s`. `OTEL_METRIC_EXPORT_INTERVAL`
    /// (milliseconds) sets it too. Example: `15s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 1_000, 3_600_000>")]
    pub metric_interval: Duration,
}

impl Default for Export {
    fn default() -> Self {
        Self {
            otlp: Vec::new(),
            pyroscope: Vec::new(),
            remote_write: Vec::new(),
            spool: Spool::default(),
            sampling: Sampling::default(),
            metric_interval: Duration::from_secs(60),
        }
    }
}

/// Key `export.sampling`: which spans are exported. Errors and the slowest span of each route in a minute always are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Share of traces, 0 to 1. Default: `1`. Example: `0.05`.
    #[serde(deserialize_with = "share")]
    pub ratio: f64,
    /// Do as the caller did where `traceparent` says it, and use `ratio` for traces that begin here only. Default:
    /// `true`. Example: `false`.
    pub parent_based: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { ratio: 1.0, parent_based: true }
    }
}

/// What a destination takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// Spans.
    Traces,
    /// Histograms and counts of all spans.
    Metrics,
    /// CPU profiles.
    Profiles,
    /// Logs of other programs, passed on as they came.
    Logs,
}

impl Signal {
    /// All, in the order of their lanes.
    pub const ALL: [Self; 4] = [Self::Traces, Self::Metrics, Self::Profiles, Self::Logs];

    /// As it is written in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Profiles => "profiles",
            Self::Logs => "logs",
        }
    }

    /// What `http/protobuf` appends to the base URL (OTLP specification, "OTLP/HTTP Request").
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
            Self::Profiles => "/v1development/profiles",
            Self::Logs => "/v1/logs",
        }
    }
}

/// How OTLP travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// gRPC over HTTP/2.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protobuf over HTTP/1.1 or, where TLS negotiates it, HTTP/2.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// How requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// As RFC 1952 says.
    Gzip,
}

/// Which buckets durations go out in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Histograms {
    /// The bounds that the semantic conventions advise.
    Explicit,
    /// Bounds of the data's own: Prometheus's native histograms.
    Exponential,
}

impl Histograms {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Explicit, Self::Exponential];
}

/// An item of `export.otlp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpDestination {
    /// What it is called in metrics and logs. Default: host and port of its endpoint. Example: `tempo`.
    pub name: String,
    /// Base URL; `http` is plain, `https` is TLS. With `http/protobuf`, `/v1/traces`, `/v1/metrics`,
    /// `/v1development/profiles` and `/v1/logs` are appended to its path. Default: none. Example:
    /// `http://collector:4318`.
    #[serde(deserialize_with = "url")]
    pub endpoint: Option<String>,
    /// URL for spans, used as it is. Default: made of `endpoint`. Example: `https://tempo:4318/otlp/v1/traces`.
    #[serde(deserialize_with = "url")]
    pub traces_endpoint: Option<String>,
    /// URL for metrics, used as it is. Default: made of `endpoint`. Example: `https://mimir/otlp/v1/metrics`.
    #[serde(deserialize_with = "url")]
    pub metrics_endpoint: Option<String>,
    /// URL for profiles, used as it is. Default: made of `endpoint`. Example:
    /// `https://pyroscope:4040/v1development/profiles`.
    #[serde(deserialize_with = "url")]
    pub profiles_endpoint: Option<String>,
    /// URL for logs that others send us, used as it is. Default: made of `endpoint`. Example:
    /// `https://loki:3100/otlp/v1/logs`.
    #[serde(deserialize_with = "url")]
    pub logs_endpoint: Option<String>,
    /// Some of `traces`, `metrics`, `profiles` and `logs`. Logs are those that `receive.otlp` takes. Profiles go out
    /// while `profile` is on; a destination that does not know them, as the Collector without its feature gate
    /// `service.profilesSupport`, is asked again every ten minutes. Default: all. Example: `[traces]`.
    pub signals: Vec<Signal>,
    /// `grpc` or `http/protobuf`. Default: `http/protobuf`. Example: `grpc`.
    pub protocol: Protocol,
    /// Buckets of durations in metrics: `explicit` or `exponential` (native histograms). Default: `explicit`. Example:
    /// `exponential`.
    pub histograms: Histograms,
    /// Headers (gRPC: metadata) of every request. Default: `{}`. Example: `{authorization: "Bearer abc"}`.
    pub headers: Headers,
    /// `none` or `gzip`. Default: `none`. Example: `gzip`, where the way is long or paid for.
    pub compression: Compression,
    /// How long a request may take, 100ms to 5m. Default: `10s`. Example: `30s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 100, 300_000>")]
    pub timeout: Duration,
    /// PEM file with the authorities that the server's certificate must come from, an absolute path. Default: those
    /// of the system. Example: `/etc/obi/ca.pem`.
    #[serde(deserialize_with = "file")]
    pub ca_file: Option<PathBuf>,
    /// PEM file with our certificate, for servers that ask for one; needs `key_file`. Default: none. Example:
    /// `/etc/obi/client.pem`.
    #[serde(deserialize_with = "file")]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the key of `cert_file`. Default: none. Example: `/etc/obi/client.key`.
    #[serde(deserialize_with = "file")]
    pub key_file: Option<PathBuf>,
    /// Spans, or points of metrics, that may wait for this destination, 512 to 10000000; more are counted as lost.
    /// Default: `100000`. Example: `500000`.
    #[serde(deserialize_with = "value::number::<_, 512, 10_000_000>")]
    pub queue_items: u32,
    /// Memory that they may take, 4 MiB to 2 GiB. Default: `32 MiB`. Example: `128 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 4_194_304, 2_147_483_648>")]
    pub queue_bytes: u32,
    /// Spans, or points of metrics, in one request, 1 to 100000; a request is below 4 MiB in any case. Default: `8192`.
    /// Example: `512`.
    #[serde(deserialize_with = "value::number::<_, 1, 100_000>")]
    pub batch_items: u32,
    /// How long the first span of a request waits for others, 0ms to 1m. Default: `1s`. Example: `5s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 0, 60_000>")]
    pub batch_delay: Duration,
    /// How long a request is tried again while the destination asks for that or cannot be reached, 0s to 1h. Then its
    /// content is counted as lost. Default: `5m`. Example: `30s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 0, 3_600_000>")]
    pub retry_for: Duration,
}

impl Default for OtlpDestination {
    fn default() -> Self {
        Self {
            name: String::new(),
            endpoint: None,
            traces_endpoint: None,
            metrics_endpoint: None,
            profiles_endpoint: None,
            logs_endpoint: None,
            signals: Signal::ALL.to_vec(),
            protocol: Protocol::Http,
            histograms: Histograms::Explicit,
            headers: Headers::default(),
            compression: Compression::None,
            timeout: Duration::from_secs(10),
            ca_file: None,
            cert_file: None,
            key_file: None,
            queue_items: 100_000,
            queue_bytes: 32 << 20,
            batch_items: 8_192,
            batch_delay: Duration::from_secs(1),
            retry_for: Duration::from_secs(300),
        }
    }
}

impl OtlpDestination {
    /// The URL to which a signal goes: its own as it is, or the base, which `http/protobuf` extends by the signal's
    /// path. `None` when the destination does not take it.
    #[must_use]
    pub fn url(&self, signal: Signal) -> Option<String> {
        let own = match signal {
            Signal::Traces => &self.traces_endpoint,
            Signal::Metrics => &self.metrics_endpoint,
            Signal::Profiles => &self.profiles_endpoint,
            Signal::Logs => &self.logs_endpoint,
        };
        if !self.signals.contains(&signal) {
            return None;
        }
        let base = || match (self.protocol, self.endpoint.as_deref()?) {
            (Protocol::Grpc, base) => Some(base.to_owned()),
            (Protocol::Http, base) => Some(format!("{}{}", base.trim_end_matches('/'), signal.path())),
        };
        own.clone().or_else(base)
    }

    /// What it is called: `name`, else host and port of its first endpoint.
    #[must_use]
    pub fn label(&self) -> String {
        let first = || Signal::ALL.into_iter().find_map(|signal| self.url(signal)).unwrap_or_default();
        if self.name.is_empty() {
            let url = first();
            let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
            rest.split('/').next().unwrap_or_default().to_owned()
        } else {
            self.name.clone()
        }
    }
}

/// The first contradiction between keys: a key's path and what is wrong with its value.
pub(super) fn contradiction(export: &Export) -> Option<(String, String)> {
    let mut seen: Vec<(String, Signal)> = Vec::new();
    for (index, destination) in export.otlp.iter().enumerate() {
        let key = |name: &str| format!("export.otlp[{index}].{name}");
        if destination.signals.is_empty() {
            return Some((
                key("signals"),
                "is empty, expected some of traces, metrics, profiles, logs".to_owned(),
            ));
        }
        for signal in &destination.signals {
            if destination.url(*signal).is_none() {
                // Taken by default, but not where the others have URLs of their own.
                if matches!(signal, Signal::Profiles | Signal::Logs) && destination.signals.len() > 1 {
                    continue;
                }
                let problem = format!(
                    "is missing, expected a URL here or in `{}_endpoint`, such as http://collector:4318",
                    signal.name()
                );
                return Some((key("endpoint"), problem));
            }
            let lane = (destination.label(), *signal);
            if seen.contains(&lane) {
                let problem = format!(
                    "is used twice: `{}` gets {} already, expected another name",
                    lane.0,
                    signal.name()
                );
                return Some((key("name"), problem));
            }
            seen.push(lane);
        }
        match (&destination.cert_file, &destination.key_file) {
            (Some(_), None) => {
                return Some((key("key_file"), "is missing, expected the key of `cert_file`".to_owned()));
            }
            (None, Some(_)) => {
                return Some((
                    key("cert_file"),
                    "is missing, expected the certificate of `key_file`".to_owned(),
                ));
            }
            _ => {}
        }
    }
    let mut labels: Vec<String> = seen.into_iter().map(|(label, _)| label).collect();
    for (index, destination) in export.pyroscope.iter().enumerate() {
        let is_taken = labels.contains(&destination.label());
        if let Some((key, problem)) = pyroscope::contradiction(destination, is_taken) {
            return Some((format!("export.pyroscope[{index}].{key}"), problem));
        }
        labels.push(destination.label());
    }
    for (index, destination) in export.remote_write.iter().enumerate() {
        let is_taken = labels.contains(&destination.label());
        if let Some((key, problem)) = remote_write::contradiction(destination, is_taken) {
            return Some((format!("export.remote_write[{index}].{key}"), problem));
        }
        labels.push(destination.label());
    }
    None
}

/// Headers of requests. Their values are secrets: nothing shows them.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Checks names and values; on failure, the name of the bad header.
    pub(super) fn checked(pairs: BTreeMap<String, String>) -> Result<Self, String> {
        let bad = pairs.iter().find(|(name, value)| {
            http::HeaderName::try_from(name.as_str()).is_err()
                || http::HeaderValue::try_from(value.as_str()).is_err()
        });
        match bad {
            Some((name, _)) => Err(name.clone()),
            None => Ok(Self(pairs)),
        }
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.0.keys()).finish()
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = BTreeMap::<String, String>::deserialize(deserializer).map_err(|_| {
            D::Error::custom("is not valid, expected headers such as {authorization: \"Bearer abc\"}")
        })?;
        Self::checked(pairs).map_err(|name| {
            D::Error::custom(format_args!(
                "is not valid, expected headers that HTTP allows; `{name}` or its value is none"
            ))
        })
    }
}

/// Whether OTLP can go there.
pub(super) fn is_url(text: &str) -> bool {
    let uri = text.parse::<http::Uri>().ok();
    uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && uri.query().is_none()
    })
}

pub(super) fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    const EXPECTED: &str = "an http or https URL without user and query, such as http://collector:4318";
    let written = value::text(deserializer, EXPECTED)?;
    let refuse = || D::Error::custom(format_args!("is not valid, expected {EXPECTED}"));
    if is_url(&written) { Ok(Some(written)) } else { Err(refuse()) }
}

pub(super) fn file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    const EXPECTED: &str = "an absolute path, such as /etc/obi/ca.pem";
    let path = PathBuf::from(value::text(deserializer, EXPECTED)?);
    let refuse = || D::Error::custom(format_args!("is not valid, expected {EXPECTED}"));
    path.is_absolute().then_some(Some(path)).ok_or_else(refuse)
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let refuse = || D::Error::custom("is not valid, expected a number from 0 to 1, such as 0.1");
    let number = f64::deserialize(deserializer).map_err(|_| refuse())?;
    if (0.0..=1.0).contains(&number) { Ok(number) } else { Err(refuse()) }
}

/// A time from `MIN` to `MAX` milliseconds, with a unit: `500ms`, `10s`, `5m`, `1h`.
pub(super) fn period<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let expected = format!("a time from {} to {}, such as 10s", shown(MIN), shown(MAX));
    let written = value::text(deserializer, &expected)?;
    let milliseconds = milliseconds(&written).filter(|time| (MIN..=MAX).contains(time));
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| D::Error::custom(format_args!("is not valid, expected {expected}")))
}

fn milliseconds(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

fn shown(milliseconds: u64) -> String {
    match milliseconds {
        ms if ms % 3_600_000 == 0 && ms > 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 && ms > 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

pub(super) fn write_period<S: Serializer>(period: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(u64::try_from(period.as_millis()).unwrap_or(u64::MAX)))
}
