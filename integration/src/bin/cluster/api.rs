//! A client of the API server.
//!
//! In: an address, an authority, a token. Out: objects as JSON. Refuses to know what they mean.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

const TIMEOUT: Duration = Duration::from_secs(30);

/// One user's view of the API server.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    client: ureq::Agent,
    root: String,
    token: String,
}

impl Api {
    /// For the bearer of `token`.
    pub(crate) fn new(address: SocketAddr, authority: &Path, token: &str) -> anyhow::Result<Self> {
        let pem = std::fs::read(authority).with_context(|| format!("read {}", authority.display()))?;
        let roots = RootCerts::from(vec![Certificate::from_pem(&pem)?]);
        let client = ureq::Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build()
            .into();
        Ok(Self { client, root: format!("https://{address}"), token: token.to_owned() })
    }

    /// The same server for another bearer.
    pub(crate) fn of(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// Status of a GET.
    pub(crate) fn status(&self, path: &str) -> anyhow::Result<u16> {
        let request = self.client.get(format!("{}{path}", self.root));
        Ok(request.header("authorization", self.bearer()).call()?.status().as_u16())
    }

    pub(crate) fn post(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.root));
        let request =
            request.header("authorization", self.bearer()).header("content-type", "application/json");
        answer(path, request.send(object.to_string())?)
    }

    /// Merges `change` into an object, as RFC 7396 says.
    pub(crate) fn patch(&self, path: &str, change: &Value) -> anyhow::Result<Value> {
        let request = self.client.patch(format!("{}{path}", self.root));
        let request = request
            .header("authorization", self.bearer())
            .header("content-type", "application/merge-patch+json");
        answer(path, request.send(change.to_string())?)
    }

    /// At once: no kubelet would end a grace period.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<()> {
        let request = self.client.delete(format!("{}{path}?gracePeriodSeconds=0", self.root));
        answer(path, request.header("authorization", self.bearer()).call()?).map(drop)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }
}

fn answer(path: &str, mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Value> {
    let body = response.body_mut().read_to_string().with_context(|| format!("read what {path} answers"))?;
    if !response.status().is_success() {
        bail!("{path} answered {}: {body}", response.status());
    }
    serde_json::from_str(&body).with_context(|| format!("parse what {path} answers: {body}"))
}
