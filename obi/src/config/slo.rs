//! Section `slo`: objectives, where their alerts go, where their counts are kept.
//!
//! In: the section as written. Out: checked paths and addresses; the OpenSLO files themselves are read by
//! [`crate::objective`].

use std::path::PathBuf;

use reqwest::Url;
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::value;

/// Section `slo`. Without `files` nothing of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slo {
    /// OpenSLO files: paths or globs; `*` and `?` match within a folder, `**` any number of folders. A path must exist,
    /// a glob must match something. Default: `[]`. Example: `[/etc/obi/slo/*.yaml]`.
    pub files: Vec<String>,
    /// Alertmanagers (API v2); each gets every alert, as the members of a cluster expect. Default: `[]`.
    /// Example: `["http://alertmanager-0:9093", "https://user:password@alerts.example.org/prefix"]`.
    pub alertmanagers: Vec<Endpoint>,
    /// Addresses that get a POST when an alert fires and when it resolves, shaped as Alertmanager's webhooks.
    /// Default: `[]`. Example: `["http://127.0.0.1:9099/hook"]`.
    pub webhooks: Vec<Endpoint>,
    /// Folder of the counts and alerts, an absolute path; made when there are objectives. Default: `/var/lib/obi/slo`.
    /// Example: `/srv/obi/slo`.
    #[serde(deserialize_with = "value::state_folder")]
    pub state: PathBuf,
    /// Memory for what shows where an objective burns, up to 1 GiB: whole traces of failed requests take up to one
    /// half, samples of their stacks the other. They stay while an alert fires and 15 minutes longer; what finds no
    /// room is counted (`obi_evidence_refused_spans_total`, `obi_profile_failures_total{reason="evidence_full"}`). 0
    /// keeps the failed spans alone. Default: `4 MiB`, room for some 4,000 spans and 4,000 samples. Example: `16 MiB`,
    /// with many objectives.
    #[serde(deserialize_with = "value::bytes::<_, 0, 1_073_741_824>")]
    pub evidence_bytes: u32,
}

impl Default for Slo {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            alertmanagers: Vec::new(),
            webhooks: Vec::new(),
            state: PathBuf::from("/var/lib/obi/slo"),
            evidence_bytes: 4 << 20,
        }
    }
}

/// An HTTP address that something is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Url);

impl Endpoint {
    /// The address.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let usable = matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none();
        usable.then_some(Self(url))
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "an address such as http://alertmanager:9093";
        let written = value::text(deserializer, EXPECTED)?;
        Self::parse(&written)
            .ok_or_else(|| D::Error::custom(format_args!("is not valid, expected {EXPECTED}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_http_addresses() {
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(
                Endpoint::parse(text).as_ref().map(|endpoint| endpoint.url().as_str()),
                expected,
                "{text}"
            );
        }
        check("http://alerts:9093", Some("http://alerts:9093/"));
        check(
            "https://user:secret@alerts.example.org/am/",
            Some("https://user:secret@alerts.example.org/am/"),
        );
        check("http://[::1]:9093/x?y=z", Some("http://[::1]:9093/x?y=z"));
        check("alerts:9093", None);
        check("ftp://alerts", None);
        check("http://", None);
        check("http://alerts#top", None);
        check("", None);
    }
}
