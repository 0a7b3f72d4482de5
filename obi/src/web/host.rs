//! For which names the listener answers.
//!
//! In: the name and port that a request gives as its target. Out: whether that is this agent. Refuses to know addresses
//! of connections.
//!
//! A web page may make a browser ask for the page's own name after that name was pointed at this machine (DNS
//! rebinding), and read the answer. The name is what gives it away: such a request carries one that is not configured.
//! An address needs no name to be resolved, so every address passes, and with it Prometheus and the kubelet.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::{Error, State as Web};
use crate::config::Web as Config;

/// Longest name that an error repeats, bytes.
const SHOWN_BYTES: usize = 100;

/// Names that pass, in lower case, without a final dot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Those of `web.hosts` and of `web.external_url`, beside `localhost` and every IP address.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let external = config.external_url.parse::<Uri>().ok();
        let external = external.as_ref().and_then(Uri::host);
        let names = config.hosts.iter().map(String::as_str).chain(external);
        Self(names.map(normal).collect())
    }

    /// Whether `authority` (`name`, `name:port`, `address`, `[address]:port`) is this agent.
    #[must_use]
    pub fn admits(&self, authority: &str) -> bool {
        let Some(name) = name(authority) else { return false };
        let is_address = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
            None => name.parse::<Ipv4Addr>().is_ok(),
        };
        let name = normal(name);
        is_address || name == "localhost" || self.0.contains(&name)
    }
}

fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// An authority without its port (RFC 9110, section 7.2); none for one with a user, or with a port that is no number.
fn name(authority: &str) -> Option<&str> {
    let end = match authority.find(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, port) = authority.split_at(end);
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// Lets a request pass whose target is this agent. One without any target comes from no browser (HTTP/1.0).
pub(super) async fn check(State(state): State<Web>, request: Request, next: Next) -> Response {
    let hosts: Vec<&[u8]> = request.headers().get_all(HOST).iter().map(|value| value.as_bytes()).collect();
    let targets = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let refused = targets
        .into_iter()
        .chain(hosts.iter().copied())
        .find(|target| !std::str::from_utf8(target).is_ok_and(|authority| state.hosts.admits(authority)));
    match refused {
        // Two names are a trick on one of those who read them.
        _ if hosts.len() > 1 => Error::Host("more than one".to_owned()).into_response(),
        Some(target) => {
            let shown = &target[..target.len().min(SHOWN_BYTES)];
            Error::Host(String::from_utf8_lossy(shown).into_owned()).into_response()
        }
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nobody_configured_are_refused() {
        let config = Config {
            hosts: ["Obi.Example.org", "node-7"].map(str::to_owned).to_vec(),
            external_url: "https://dash.example.org:8443/obi".to_owned(),
            ..Config::default()
        };
        let (configured, plain) = (Hosts::new(&config), Hosts::default());
        let check = |authority: &str, with_keys: bool, without: bool| {
            assert_eq!(configured.admits(authority), with_keys, "{authority}");
            assert_eq!(plain.admits(authority), without, "{authority} without keys");
        };
        for passes in [
            "localhost",
            "localhost:9464",
            "LocalHost",
            "localhost.",
            "localhost.:80",
            "127.0.0.1",
            "127.0.0.1:9464",
            "10.1.2.3:1",
            "[::1]",
            "[::1]:9464",
            "[fe80::1]:80",
            "0.0.0.0:9464",
            "localhost:",
        ] {
            check(passes, true, true);
        }
        for named in
            ["obi.example.org", "OBI.example.org.", "node-7:9464", "dash.example.org", "dash.example.org:80"]
        {
            check(named, true, false);
        }
        for refused in [
            "",
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x.obi.example.org",
            "node-70",
            "::1",
            "[::1",
            "[::1]x",
            "[evil]",
            "127.1",
            "0x7f000001",
            "localhost:port",
            "localhost:123456",
            "user@localhost",
            "localhost,evil",
            "localhost evil",
            "2130706433",
        ] {
            check(refused, false, false);
        }
    }
}
