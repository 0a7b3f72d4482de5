//! The running agent, asked over its API.
//!
//! In: where it listens, a path with parameters. Out: the text of its answer. Refuses to know what is asked.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use thiserror::Error;

use super::pinned;
use crate::config::{self, Token};

const TIMEOUT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// The token, where no configuration says it.
const TOKEN: &str = "OBI_WEB_TOKEN";

/// Where the agent listens.
#[derive(Debug, clap::Args)]
pub struct AgentAddress {
    /// The agent's configuration file: where does it listen?
    #[arg(long, value_name = "FILE", conflicts_with = "address")]
    pub config: Option<PathBuf>,

    /// Where the agent listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub address: Option<SocketAddr>,
}

/// The agent refused to answer.
#[derive(Debug, Error)]
#[error("{url} answered {status}: {text}")]
pub struct Refusal {
    url: reqwest::Url,
    status: reqwest::StatusCode,
    text: String,
    /// It may answer when it is asked again.
    pub is_busy: bool,
}

/// The answer to a GET of `path`.
///
/// # Errors
/// When the configuration is not valid, no agent answers, or its answer is a refusal.
pub fn ask(place: &AgentAddress, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<String> {
    fetch(&reach(place)?, path, parameters)
}

/// An agent, and what it wants to see of who asks.
#[derive(Debug)]
pub struct Reached {
    /// Where it listens.
    pub address: SocketAddr,
    /// `web.token`.
    token: Token,
    /// `web.cert_file`; none: it does not speak TLS.
    certificate: Option<PathBuf>,
}

impl Reached {
    /// `http://127.0.0.1:9464`.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

/// Where it is to be asked, and with what token: that of the configuration or of the environment.
///
/// # Errors
/// When the configuration is not valid.
pub fn reach(place: &AgentAddress) -> anyhow::Result<Reached> {
    Ok(match place.address {
        Some(address) => {
            let token = Token::try_from(std::env::var(TOKEN).unwrap_or_default());
            let token =
                token.map_err(|problem| anyhow::anyhow!("environment {TOKEN}: web.token {problem}"))?;
            Reached { address: reachable(address), token, certificate: None }
        }
        None => {
            let web = config::load(place.config.as_deref())?.web;
            Reached { address: reachable(web.listen), token: web.token, certificate: web.cert_file }
        }
    })
}

/// As [`ask`], whatever the answer is made of; more patiently, since it may take a while to make.
///
/// # Errors
/// When no agent answers, or its answer is a refusal.
pub fn ask_bytes(agent: &Reached, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Vec<u8>> {
    get(agent, path, parameters, PATIENCE)
}

/// What listens everywhere is asked at the loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}

fn fetch(agent: &Reached, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<String> {
    let bytes = get(agent, path, parameters, TIMEOUT)?;
    String::from_utf8(bytes).with_context(|| format!("failed to read the answer of {}", agent.address))
}

fn get(
    agent: &Reached,
    path: &str,
    parameters: &[(&str, &str)],
    timeout: Duration,
) -> anyhow::Result<Vec<u8>> {
    let address = agent.address;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let url = reqwest::Url::parse_with_params(&format!("{}{path}", agent.url()), parameters)
        .with_context(|| format!("failed to make a URL of `{address}{path}`"))?;
    // Nothing is asked with an empty query.
    let url =
        if parameters.is_empty() { reqwest::Url::parse(url.as_str().trim_end_matches('?'))? } else { url };
    runtime.block_on(async {
        let tls = agent.certificate.as_deref().map(pinned::configuration).transpose()?;
        let builder = || {
            let builder = reqwest::Client::builder().no_proxy().timeout(timeout);
            match &tls {
                Some(tls) => builder.tls_backend_preconfigured(tls.clone()),
                None => builder,
            }
        };
        let client = crate::objective::notify::client(builder, tls.is_some())?;
        let mut request = client.get(url.clone());
        if let Some(token) = agent.token.get() {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| {
            // What the system said; what the client library was doing is of no use to who asks.
            anyhow::anyhow!("no agent answers at {address}: {}", anyhow::Error::from(error).root_cause())
        })?;
        let status = answer.status();
        let is_busy = answer.headers().contains_key(reqwest::header::RETRY_AFTER);
        let bytes =
            answer.bytes().await.with_context(|| format!("failed to read the answer of {address}"))?;
        if !status.is_success() {
            let said = serde_json::from_slice::<serde_json::Value>(&bytes).ok();
            let said = said.as_ref().and_then(|said| said["error"].as_str());
            let text = said.map_or_else(|| String::from_utf8_lossy(&bytes).trim().to_owned(), str::to_owned);
            return Err(Refusal { url, status, text, is_busy }.into());
        }
        Ok(bytes.to_vec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_listens_everywhere_is_asked_here() {
        let check = |address: &str, expected: &str| {
            assert_eq!(reachable(address.parse().unwrap()).to_string(), expected);
        };
        check("0.0.0.0:9464", "127.0.0.1:9464");
        check("[::]:9464", "[::1]:9464");
        check("10.0.0.7:80", "10.0.0.7:80");
    }

    #[test]
    fn nobody_there_is_said() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = format!(
            "{:#}",
            fetch(&Reached { address, token: Token::default(), certificate: None }, "/", &[]).unwrap_err()
        );
        assert!(error.starts_with(&format!("no agent answers at {address}: Connection refused")), "{error}");
    }
}
