//! The API server: how it is reached, and what its answers and refusals are.
//!
//! In: a token, certificates and an address, as Kubernetes mounts them into a pod. Out: answers. Refuses to know which
//! objects are asked for.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, Url};
use tokio::time::timeout;

use super::Broken;
use crate::config::Kubernetes;

const CONNECT: Duration = Duration::from_secs(10);
pub(super) const ANSWER: Duration = Duration::from_secs(30);
const REFUSAL_BYTES: usize = 4096;
pub(super) const WHOLE: &str = "application/vnd.kubernetes.protobuf";

/// The API server as this pod may ask it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    url: Url,
    /// Where token and certificates are; they are replaced there before they run out.
    credentials: PathBuf,
    /// Who asks: the name of this node.
    pub(super) node: String,
}

impl Server {
    /// The API server, from the configuration or from the variables that Kubernetes gives to every container. `None`
    /// when its address, the node's name or the token is not known.
    pub(super) fn find(config: &Kubernetes) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let in_cluster = || {
            let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Some(format!("https://{host}:{port}"))
        };
        let address = Some(config.api_server.clone()).filter(|url| !url.is_empty()).or_else(in_cluster)?;
        let url = Url::parse(&address).ok()?;
        let node = Some(config.node.clone()).filter(|node| !node.is_empty())?;
        let credentials = config.credentials.clone();
        // A pod without a token is not meant to ask.
        std::fs::exists(credentials.join("token")).ok().filter(|is_there| *is_there)?;
        Some(Self { url, credentials, node })
    }

    /// The address of a collection, such as `/api/v1/pods`.
    pub(super) fn url(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(path);
        url
    }

    /// With certificates and token as they are now.
    pub(super) fn asking(&self) -> Result<Asking, Broken> {
        Ok(Asking { client: self.client()?, token: self.token()? })
    }

    fn client(&self) -> Result<Client, Broken> {
        // Another part may have chosen the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(format!("obi/{} ({})", env!("CARGO_PKG_VERSION"), self.node))
            .connect_timeout(CONNECT)
            .tcp_keepalive(Duration::from_secs(15))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let what = "failed to read the API server's certificates";
        let builder = match std::fs::read(self.credentials.join("ca.crt")) {
            Ok(bundle) => {
                let roots = Certificate::from_pem_bundle(&bundle);
                builder.tls_certs_only(roots.map_err(|error| Broken::connection(what, error))?)
            }
            // No certificate is asked for, and not every system has authorities.
            Err(_) if self.url.scheme() == "http" => builder.tls_certs_only([]),
            Err(error) => return Err(Broken::connection(what, error)),
        };
        builder.build().map_err(|error| Broken::connection("failed to prepare requests", explained(&error)))
    }

    fn token(&self) -> Result<String, Broken> {
        match std::fs::read_to_string(self.credentials.join("token")) {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(error) => Err(Broken::connection("failed to read the service account's token", error)),
        }
    }
}

/// What a request needs.
pub(super) struct Asking {
    client: Client,
    token: String,
}

impl Asking {
    /// The answer, if it is one.
    pub(super) async fn get(&self, what: &'static str, url: Url, accept: &str) -> Result<Response, Broken> {
        let mut request = self.client.get(url).header(ACCEPT, accept);
        if !self.token.is_empty() {
            request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let answer = timeout(ANSWER, request.send()).await;
        let answer = answer.map_err(|_| Broken::Late("the API server's answer"))?;
        let mut response =
            answer.map_err(|error| Broken::connection("failed to ask the API server", explained(&error)))?;
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let status = response.status();
        if status.is_success() {
            let is_protobuf = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with(WHOLE));
            return if is_protobuf { Ok(response) } else { Err(super::Error::NotProtobuf.into()) };
        }
        let seconds = text(RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        let after = seconds.map(|seconds: u64| Duration::from_secs(seconds.min(300)));
        let bytes = timeout(CONNECT, whole(&mut response, REFUSAL_BYTES)).await;
        let message = bytes.ok().and_then(Result::ok).map(|bytes| shown(&bytes)).unwrap_or_default();
        Err(Broken::Refused { what, code: status.as_u16(), message, after })
    }
}

/// The body, which may not be longer than this.
pub(super) async fn whole(response: &mut Response, most: usize) -> Result<Vec<u8>, Broken> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| Broken::connection("the answer broke", explained(&error)))?
    {
        if bytes.len() + chunk.len() > most {
            return Err(super::Error::TooLong { bytes: bytes.len() + chunk.len(), most }.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// What of a refusal is text.
fn shown(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .filter(|character| !character.is_control() && *character != '\u{fffd}')
        .take(200)
        .collect();
    text.trim().to_owned()
}

/// An error with its causes; none of them has the token.
pub(super) fn explained(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = Some(error as &dyn std::error::Error);
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
