//! A backend with the HTTP API of Prometheus.
//!
//! In: queries. Out: series, or why there are none, on one line. Refuses to know what they mean.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use slo::evaluate::{Query, Series, read};

/// Six hours of a large fleet take a while.
const TIMEOUT: Duration = Duration::from_secs(120);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What an answer may have at most, so that a mistaken address does not fill the memory.
const ANSWER_BYTES: usize = 512 << 20;
/// As much of a refusal as is shown.
const SHOWN: usize = 300;

/// Where to ask.
#[derive(Debug)]
pub(super) struct Backend {
    client: Client,
    url: Url,
    warnings: RefCell<BTreeSet<String>>,
}

impl Backend {
    /// Makes ready to ask; nothing is sent.
    pub(super) fn new(base: &Url, headers: &[String]) -> anyhow::Result<Self> {
        let headers = parse_headers(headers)?;
        let builder = || {
            let builder = Client::builder().timeout(TIMEOUT).connect_timeout(CONNECT_TIMEOUT);
            builder.default_headers(headers.clone())
        };
        let client = crate::objective::notify::client(builder, base.scheme() == "https");
        let client = client.context("failed to make an HTTP client")?;
        Ok(Self { client, url: query_url(base)?, warnings: RefCell::default() })
    }

    /// Asks one query.
    pub(super) async fn ask(&self, query: &Query) -> anyhow::Result<Vec<Series>> {
        let at = format!("{:.3}", query.at.nanos() as f64 / 1e9);
        let form = [("query", query.text.as_str()), ("time", at.as_str())];
        let form = form.map(|(name, value)| format!("{name}={}", encode(value))).join("&");
        let request = self.client.post(self.url.clone()).body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let mut answer = request.send().await.with_context(|| format!("{} does not answer", self.url))?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.with_context(|| format!("{} broke off", self.url))? {
            if body.len() + part.len() > ANSWER_BYTES {
                bail!("{} answers `{}` with more than {} MiB", self.url, query.text, ANSWER_BYTES >> 20);
            }
            body.extend_from_slice(&part);
        }
        // A refusal is JSON, too; a proxy's is not.
        let (series, warnings) = read(&body).with_context(|| {
            let text = String::from_utf8_lossy(&body);
            let shown: String = text.chars().take(SHOWN).collect();
            let body = if status.is_success() || text.starts_with('{') {
                String::new()
            } else {
                format!(": {shown}")
            };
            format!("{} answered `{}` with {status}{body}", self.url, query.text)
        })?;
        self.warnings.borrow_mut().extend(warnings);
        Ok(series)
    }

    /// What it warned of, each once: such as a store that did not answer, so that samples may be missing.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.borrow().iter().cloned().collect()
    }
}

fn query_url(base: &Url) -> anyhow::Result<Url> {
    if !matches!(base.scheme(), "http" | "https") {
        bail!("--prometheus {base}: expected http:// or https://");
    }
    let mut url = base.clone();
    url.set_path(&format!("{}/api/v1/query", base.path().trim_end_matches('/')));
    Ok(url)
}

fn parse_headers(headers: &[String]) -> anyhow::Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for text in headers {
        // Values may be secrets: an error shows the name only.
        let (name, value) = text.split_once(':').context("--header: expected `name: value`")?;
        let header =
            HeaderName::try_from(name.trim()).with_context(|| format!("--header `{name}`: not a name"))?;
        let value =
            HeaderValue::try_from(value.trim()).with_context(|| format!("--header `{name}`: not a value"))?;
        map.append(header, value);
    }
    Ok(map)
}

fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use slo::Time;

    use super::*;

    /// What is said of a backend that gives this answer, of which `missing` bytes never come.
    fn refusal(status: &str, body: &str, missing: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len() + missing);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).unwrap();
            assert!(bytes[..n].starts_with(b"POST /api/v1/query HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let backend = Backend::new(&url, &[]).unwrap();
        let query = Query { text: "up[5m]".to_owned(), at: Time::from_seconds(1) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = format!("{:#}", runtime.block_on(backend.ask(&query)).unwrap_err());
        server.join().unwrap();
        error
    }

    #[test]
    fn refusals_are_reported_as_they_are() {
        let check = |status: &str, body: &str, missing: usize, expected: &[&str]| {
            let error = refusal(status, body, missing);
            assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        };
        check(
            "422 Unprocessable Entity",
            r#"{"status":"error","errorType":"execution","error":"too many samples"}"#,
            0,
            &["`up[5m]` with 422", "query failed: execution: too many samples"],
        );
        check("503 Service Unavailable", "no upstream!", 0, &["with 503 Service Unavailable: no upstream!"]);
        check("200 OK", "<html>", 0, &["with 200 OK", "no Prometheus query result"]);
        check("200 OK", "{", 60, &["broke off"]);
    }

    #[test]
    fn nobody_there_is_said() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let backend = Backend::new(&Url::parse(&format!("http://{address}/")).unwrap(), &[]).unwrap();
        let query = Query { text: "up[5m]".to_owned(), at: Time::from_seconds(1) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = format!("{:#}", runtime.block_on(backend.ask(&query)).unwrap_err());
        assert!(error.starts_with(&format!("http://{address}/api/v1/query does not answer: ")), "{error}");
    }

    #[test]
    fn addresses_and_headers() {
        let url = |text: &str| query_url(&Url::parse(text).unwrap()).map(|url| url.to_string()).ok();
        assert_eq!(url("http://p:9090"), Some("http://p:9090/api/v1/query".to_owned()));
        assert_eq!(url("https://m/prometheus/"), Some("https://m/prometheus/api/v1/query".to_owned()));
        assert_eq!(url("ftp://m"), None);
        let error = parse_headers(&["Secret token".to_owned()]).unwrap_err().to_string();
        assert!(!error.contains("token"), "{error}");
        assert_eq!(parse_headers(&["X-Scope-OrgID: a:b".to_owned()]).unwrap()["x-scope-orgid"], "a:b");
    }
}
