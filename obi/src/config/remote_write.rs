//! An item of `export.remote_write`: a server that takes metrics as Prometheus sends them on.
//!
//! In: what the user wrote. Out: a checked destination. Refuses to know requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::export::{Headers, OtlpDestination, file, period, url, write_period};
use super::value;

/// Which buckets of durations go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Buckets {
    /// Series `_bucket`, `_sum` and `_count`.
    Classic,
    /// Native histograms where there are some, classic ones elsewhere.
    Native,
    /// Both.
    Both,
}

/// An item of `export.remote_write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteWriteDestination {
    /// What it is called in metrics and logs. Default: host and port of its URL. Example: `mimir`.
    pub name: String,
    /// Where requests go, used as it is. Default: none. Example: `http://prometheus:9090/api/v1/write`.
    #[serde(deserialize_with = "url")]
    pub url: Option<String>,
    /// Headers of every request. Default: `{}`. Example: `{X-Scope-OrgID: team-a}`.
    pub headers: Headers,
    /// Labels of every series that does not have them itself. Default: `job` is `obi`, `instance` is the name of this
    /// machine; an empty text takes one of them away. Example: `{cluster: eu-1, instance: node-7}`.
    #[serde(deserialize_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Buckets of durations: `classic`, `native` (the receiver must take native histograms) or `both`. Default:
    /// `classic`. Example: `native`.
    pub histograms: Buckets,
    /// Time between two writes, 1s to 1h. Default: `15s`. Example: `60s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 1_000, 3_600_000>")]
    pub interval: Duration,
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
    /// Memory that waiting requests, packed, may take, 4 MiB to 2 GiB; more are counted as lost. Default: `32 MiB`.
    /// Example: `128 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 4_194_304, 2_147_483_648>")]
    pub queue_bytes: u32,
    /// How long a request is tried again while the server asks for that or cannot be reached, 0s to 1h. Then its
    /// samples are counted as lost. Default: `5m`. Example: `30s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 0, 3_600_000>")]
    pub retry_for: Duration,
}

impl Default for RemoteWriteDestination {
    fn default() -> Self {
        Self {
            name: String::new(),
            url: None,
            headers: Headers::default(),
            labels: BTreeMap::new(),
            histograms: Buckets::Classic,
            interval: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            ca_file: None,
            cert_file: None,
            key_file: None,
            queue_bytes: 32 << 20,
            retry_for: Duration::from_secs(300),
        }
    }
}

impl RemoteWriteDestination {
    /// What it is called: `name`, else host and port.
    #[must_use]
    pub fn label(&self) -> String {
        self.connection().label()
    }

    /// Labels that every series gets unless it has them, sorted by name, on a machine of this name.
    #[must_use]
    pub fn series_labels(&self, host: &str) -> Vec<(String, String)> {
        let own =
            [("instance", host), ("job", "obi")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut labels = BTreeMap::from(own);
        labels.extend(self.labels.clone());
        labels.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    /// The same connection as of a destination over OTLP.
    #[must_use]
    pub fn connection(&self) -> OtlpDestination {
        let Self {
            name, url, headers, timeout, ca_file, cert_file, key_file, queue_bytes, retry_for, ..
        } = self.clone();
        OtlpDestination {
            name,
            endpoint: url,
            headers,
            timeout,
            ca_file,
            cert_file,
            key_file,
            // Bytes bound it: a snapshot of many series has more samples than spans are ever queued.
            queue_items: u32::MAX,
            queue_bytes,
            retry_for,
            ..OtlpDestination::default()
        }
    }
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    const EXPECTED: &str =
        "labels such as {cluster: eu-1}: letters, digits and `_`, no digit first, not `__` first";
    let refuse = || D::Error::custom(format_args!("is not valid, expected {EXPECTED}"));
    let labels = BTreeMap::<String, String>::deserialize(deserializer).map_err(|_| refuse())?;
    // These have a meaning of their own in Prometheus.
    let is_reserved = |name: &str| name.starts_with("__") || matches!(name, "le" | "quantile");
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_label = |name: &String| {
        name.bytes().all(is_letter)
            && name.starts_with(|first: char| !first.is_ascii_digit())
            && !is_reserved(name)
    };
    if labels.keys().all(is_label) { Ok(labels) } else { Err(refuse()) }
}

/// What is wrong with a destination: the key and the problem.
pub(super) fn contradiction(
    destination: &RemoteWriteDestination,
    is_taken: bool,
) -> Option<(&'static str, String)> {
    if destination.url.is_none() {
        let problem = "is missing, expected one such as http://prometheus:9090/api/v1/write";
        return Some(("url", problem.to_owned()));
    }
    if is_taken {
        return Some(("name", format!("is used twice: `{}`, expected another name", destination.label())));
    }
    match (&destination.cert_file, &destination.key_file) {
        (Some(_), None) => Some(("key_file", "is missing, expected the key of `cert_file`".to_owned())),
        (None, Some(_)) => {
            Some(("cert_file", "is missing, expected the certificate of `key_file`".to_owned()))
        }
        _ => None,
    }
}
