//! An item of `export.pyroscope`: a server that takes profiles as Pyroscope does.
//!
//! In: what the user wrote. Out: a checked destination. Refuses to know requests.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::export::{Headers, OtlpDestination, file, period, url, write_period};
use super::value;

/// An item of `export.pyroscope`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PyroscopeDestination {
    /// What it is called in metrics and logs. Default: host and port of its URL. Example: `pyroscope`.
    pub name: String,
    /// Base URL; `/ingest` is appended to its path. Default: none. Example: `http://pyroscope:4040`.
    #[serde(deserialize_with = "url")]
    pub url: Option<String>,
    /// Headers of every request. Default: `{}`. Example: `{X-Scope-OrgID: team-a}`.
    pub headers: Headers,
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
    /// Memory that waiting profiles may take, 4 MiB to 2 GiB; more are counted as lost. Default: `32 MiB`. Example:
    /// `128 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 4_194_304, 2_147_483_648>")]
    pub queue_bytes: u32,
    /// How long a request is tried again while the server asks for that or cannot be reached, 0s to 1h. Then its
    /// profile is counted as lost. Default: `5m`. Example: `30s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 0, 3_600_000>")]
    pub retry_for: Duration,
}

impl Default for PyroscopeDestination {
    fn default() -> Self {
        Self {
            name: String::new(),
            url: None,
            headers: Headers::default(),
            timeout: Duration::from_secs(10),
            ca_file: None,
            cert_file: None,
            key_file: None,
            queue_bytes: 32 << 20,
            retry_for: Duration::from_secs(300),
        }
    }
}

impl PyroscopeDestination {
    /// The URL of its `/ingest`, without query.
    #[must_use]
    pub fn ingest(&self) -> Option<String> {
        Some(format!("{}/ingest", self.url.as_deref()?.trim_end_matches('/')))
    }

    /// What it is called: `name`, else host and port.
    #[must_use]
    pub fn label(&self) -> String {
        self.connection().label()
    }

    /// The same connection as of a destination over OTLP.
    #[must_use]
    pub fn connection(&self) -> OtlpDestination {
        let Self { name, url, headers, timeout, ca_file, cert_file, key_file, queue_bytes, retry_for } =
            self.clone();
        OtlpDestination {
            name,
            endpoint: url,
            headers,
            timeout,
            ca_file,
            cert_file,
            key_file,
            queue_bytes,
            retry_for,
            ..OtlpDestination::default()
        }
    }
}

/// What is wrong with a destination: the key and the problem.
pub(super) fn contradiction(
    destination: &PyroscopeDestination,
    is_taken: bool,
) -> Option<(&'static str, String)> {
    if destination.url.is_none() {
        return Some(("url", "is missing, expected one such as http://pyroscope:4040".to_owned()));
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
