//! Who may read page and API: from this machine and from another, with and without a token, and behind a real proxy.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use integration::agent::{self, Agent, Config};
use integration::fetch;
use integration::namespace::Namespace;
use integration::otlp::certificate::Certificates;
use integration::patience::{patience, until};
use integration::plan::Address;
use integration::process::free_port;
use integration::seed::seeded;
use integration::server::{language, nginx};
use integration::traffic::Traffic;

const TOKEN: &str = "0b5e9c7a-access-token";
const BROWSER: &str = "accept: text/html";
const BEARER: &str = "authorization: Bearer 0b5e9c7a-access-token";

/// What is asked with these headers, and the form that is posted, if any.
fn request(path: &str, headers: &[&str], form: Option<&str>) -> String {
    let method = if form.is_some() { "POST" } else { "GET" };
    let mut text = format!("{method} {path} HTTP/1.0\r\n");
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    let form = form.unwrap_or("");
    text + &format!("content-length: {}\r\n\r\n{form}", form.len())
}

/// Status and the whole answer.
#[track_caller]
fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
}

#[track_caller]
fn status(address: SocketAddr, path: &str, headers: &[&str], expected: u16) -> String {
    let (status, answer) = ask(address, &request(path, headers, None));
    assert_eq!(status, expected, "{path} with {headers:?}: {answer}");
    answer
}

/// Value of a header of an answer.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer.lines().take_while(|line| !line.is_empty()).find_map(|line| {
        let (given, value) = line.split_once(':')?;
        given.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A host beside this machine.
struct Elsewhere {
    namespace: Namespace,
    agent: SocketAddr,
}

impl Elsewhere {
    /// What curl gets from there: status and body.
    #[track_caller]
    fn check(&self, path: &str, headers: &[&str], expected: u16) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"]);
        for header in headers {
            curl.args(["--header", header]);
        }
        curl.arg(format!("http://{}{path}", self.agent));
        let output = self.namespace.inside(curl).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(status, expected.to_string(), "{path} with {headers:?}: {body} {said}");
        body.to_owned()
    }

    /// Answered as scrapers and Kubernetes need it, to any client.
    #[track_caller]
    fn check_open(&self) {
        for path in ["/metrics", "/healthz", "/readyz"] {
            self.check(path, &[], 200);
        }
    }
}

fn status_command(agent: &Agent, token: Option<&str>) -> (bool, String) {
    let mut command = agent::command().unwrap();
    command.args(["slo", "status", "--address", &agent.address().to_string()]);
    if let Some(token) = token {
        command.env("OBI_WEB_TOKEN", token);
    }
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn who_comes_from_elsewhere_needs_a_token() {
    let (namespace, here, _) = Namespace::joined().unwrap();
    let everywhere = Config::default().set("web", "listen", "0.0.0.0");
    let agent = Agent::start(everywhere.clone()).unwrap();
    let local = agent.address();
    let mut elsewhere = Elsewhere { namespace, agent: SocketAddr::new(here.into(), local.port()) };
    elsewhere.check_open();
    let page = elsewhere.check("/", &[BROWSER], 401);
    assert!(
        page.contains("web.token") && page.contains("web.open: true") && !page.contains("<form"),
        "{page}"
    );
    let error = elsewhere.check("/api/v1/status", &[], 401);
    assert!(error.starts_with("{\"error\":") && error.contains("web.open: true"), "{error}");
    for path in ["/spans", "/profiles", "/nothing", "/api/v1/profiles?format=svg", "/api/v1/spans"] {
        elsewhere.check(path, &[BEARER], 401);
    }
    // This machine's own programs read it, but not a proxy that asks for another client.
    status(local, "/", &[BROWSER], 200);
    status(local, "/api/v1/status", &["x-forwarded-for: 10.0.0.7"], 401);
    status(local, "/api/v1/status", &["host: evil.example"], 421);
    drop(agent);

    let open = everywhere.clone().set("web", "open", true);
    let agent = Agent::start(open).unwrap();
    elsewhere.agent.set_port(agent.address().port());
    elsewhere.check("/", &[BROWSER], 200);
    drop(agent);

    let agent = Agent::start(everywhere.set("web", "token", TOKEN)).unwrap();
    let local = agent.address();
    elsewhere.agent.set_port(local.port());
    elsewhere.check_open();
    let form = elsewhere.check("/spans?error=true", &[BROWSER], 401);
    assert!(form.contains("<form") && form.contains("value=\"/spans?error=true\""), "{form}");
    elsewhere.check("/api/v1/status", &["authorization: Bearer 0b5e9c7a-access-tokem"], 401);
    elsewhere.check("/api/v1/status", &[BEARER], 200);
    elsewhere.check("/api/v1/status", &[BEARER, "host: evil.example"], 421);
    let refused = status(local, "/api/v1/status", &[], 401);
    assert_eq!(header(&refused, "www-authenticate"), Some("Bearer realm=\"obi\""));
    assert!(!agent.stderr().unwrap().contains(TOKEN));

    let (succeeds, said) = status_command(&agent, None);
    assert!(!succeeds && said.contains("401") && said.contains("web.token"), "{said}");
    let (succeeds, said) = status_command(&agent, Some(TOKEN));
    assert!(succeeds, "{said}");
}

/// Logs in by the form at `path` of a page at `origin`: the cookie, and where the page leads.
#[track_caller]
fn log_in(address: SocketAddr, path: &str, origin: &str) -> (String, String) {
    let fill = |token: &str| format!("token={token}&to=%2Fspans%3Ferror%3Dtrue");
    let post = |headers: &[&str], form: &str| ask(address, &request(path, headers, Some(form)));
    let origin = format!("origin: {origin}");
    for (headers, form, expected) in [
        ([origin.as_str(), BROWSER], fill("another-long-token"), 401),
        (["origin: http://evil.example", BROWSER], fill(TOKEN), 403),
        ([origin.as_str(), "sec-fetch-site: cross-site"], fill(TOKEN), 403),
        ([origin.as_str(), BROWSER], "to=%2F".to_owned(), 400),
        ([origin.as_str(), BROWSER], fill(&"x".repeat(20_000)), 400),
    ] {
        let (status, answer) = post(&headers, &form);
        assert_eq!((status, header(&answer, "set-cookie")), (expected, None), "{headers:?}: {answer}");
    }
    let (status, answer) = post(&[&origin, BROWSER], &fill(TOKEN));
    assert_eq!(status, 303, "{answer}");
    let cookie = header(&answer, "set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    let location = header(&answer, "location").unwrap().to_owned();
    (cookie.to_owned(), location)
}

/// Addresses of a page, its style and its script.
fn links(page: &str) -> impl Iterator<Item = String> {
    let parts = [" href=\"", " src=\"", " action=\""].into_iter().flat_map(|begin| page.split(begin).skip(1));
    let links = parts.filter_map(|part| Some(part.split_once('"')?.0.replace("&amp;", "&")));
    links.filter(|link| !link.starts_with('#'))
}

#[test]
fn below_a_path_of_a_proxy_every_link_is_right() {
    for is_kept in [false, true] {
        let port = free_port().unwrap();
        let proxy = SocketAddr::from(([127, 0, 0, 1], port));
        let url = format!("http://{proxy}/obi/");
        let config = Config::default().set("web", "token", TOKEN).set("web", "external_url", url);
        let agent = Agent::start(config).unwrap();
        let _nginx = nginx::below(port, agent.address(), is_kept).unwrap();
        let (cookie, location) = log_in(proxy, "/obi/login", &format!("http://{proxy}"));
        assert!(cookie.contains("Path=/obi/;"), "{cookie}");
        assert_eq!(location, "/obi/spans?error=true");
        let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
        let mut left: Vec<String> = vec!["/obi/".to_owned(), location];
        let mut seen = BTreeSet::new();
        while let Some(link) = left.pop() {
            let path = link.split('#').next().unwrap().to_owned();
            if !seen.insert(path.clone()) || seen.len() > 150 {
                continue;
            }
            let answer = status(proxy, &path, &[BROWSER, &cookie], 200);
            if header(&answer, "content-type").is_some_and(|media| media.starts_with("text/html")) {
                for link in links(&answer) {
                    assert!(link.starts_with("/obi/"), "{path} leads to {link}");
                    // Nothing is sampled in this test, and pictures of it say so.
                    if !link.starts_with("/obi/api/v1/profiles") {
                        left.push(link);
                    }
                }
            }
        }
        for part in ["/obi/map", "/obi/agent", "/obi/metrics", "/obi/slos"] {
            assert!(seen.contains(part), "{part} in {seen:?}");
        }
        assert!(seen.len() > 30, "{seen:?}");
        assert!(
            seen.iter().any(|path| path.ends_with(".css")) && seen.iter().any(|path| path.ends_with(".js"))
        );
        // The agent itself answers in both ways, too.
        status(agent.address(), "/obi/spans", &[BROWSER, &cookie], 200);
        status(agent.address(), "/spans", &[BROWSER, &cookie], 200);
        status(agent.address(), "/obix/spans", &[BROWSER, &cookie], 404);
    }
}

/// What curl gets over TLS: status and answer with its head; the status is 0 where there is none.
fn over_tls(made: &Certificates, path: &str, more: &[&str]) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--include", "--max-time", "60", "--write-out", "\n%{http_code}", "--cacert"]);
    let output = curl.arg(made.path("ca.pem")).args(more).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (answer, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), answer.to_owned())
}

/// What `obi slo status` says when it reads where to ask from this configuration.
fn status_by_file(agent: &Agent, config: Config) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("obi.yaml");
    std::fs::write(&file, agent.placed(config)).unwrap();
    let output = agent::command().unwrap().args(["slo", "status", "--config"]).arg(&file).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_listener_speaks_tls() {
    let (made, renewed) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let path = |name: &str| made.path(name).display().to_string();
    let config = Config::default()
        .set("web", "cert_file", path("server.pem"))
        .set("web", "key_file", path("server.key"))
        .set("web", "token", TOKEN);
    let agent = Agent::start(config.clone()).unwrap();
    let url = |path: &str| format!("https://{}{path}", agent.address());
    let check = |path: &str, more: &[&str], expected: u16| {
        let (status, answer) = over_tls(&made, &url(path), more);
        assert_eq!(status, expected, "{path} with {more:?}: {answer}");
        answer
    };
    for version in ["--http1.1", "--http2"] {
        check("/readyz", &[version], 200);
        check("/metrics", &[version], 200);
        check("/api/v1/status", &[version], 401);
        check("/api/v1/status", &[version, "--header", BEARER], 200);
        check("/", &[version, "--header", BEARER, "--header", "host: evil.example"], 421);
    }
    check("/readyz", &["--tls-max", "1.2"], 200);
    check("/readyz", &["--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"], 0);
    let form = format!("token={TOKEN}&to=%2F");
    let answer = check("/login", &["--data", &form], 303);
    assert!(header(&answer, "set-cookie").unwrap().ends_with("; Secure"), "{answer}");
    // Who does not speak it gets nothing that could be taken for an answer.
    let mut plain = TcpStream::connect(agent.address()).unwrap();
    plain.write_all(request("/metrics", &[], None).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", answer.escape_ascii());

    let (succeeds, said) = status_by_file(&agent, config.clone());
    assert!(succeeds, "{said}");
    let foreign = config.set("web", "cert_file", renewed.path("server.pem").display().to_string());
    let (succeeds, said) = status_by_file(&agent, foreign);
    assert!(!succeeds && said.contains("no agent answers"), "{said}");

    // A renewed certificate is shown without a restart.
    for name in ["server.pem", "server.key"] {
        std::fs::copy(renewed.path(name), made.path(name)).unwrap();
    }
    until("the new certificate is shown", Duration::from_secs(90), || {
        match over_tls(&renewed, &url("/readyz"), &[]) {
            (200, _) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn clients_with_a_certificate_need_no_token() {
    let made = Certificates::new().unwrap();
    let path = |name: &str| made.path(name).display().to_string();
    let config = Config::default()
        .set("web", "listen", "0.0.0.0")
        .set("web", "cert_file", path("server.pem"))
        .set("web", "key_file", path("server.key"))
        .set("web", "client_ca_file", path("ca.pem"));
    let agent = Agent::start(config).unwrap();
    let url = format!("https://{}/api/v1/status", agent.address());
    let forwarded = ["--header", "x-forwarded-for: 10.0.0.7"];
    let (cert, key) = (path("client.pem"), path("client.key"));
    let shown = ["--cert", &cert, "--key", &key, forwarded[0], forwarded[1]];
    assert_eq!(over_tls(&made, &url, &shown).0, 200);
    assert_eq!(over_tls(&made, &url, &forwarded).0, 0);
}

/// Slow readers of large answers keep their own connections only: what they have not read has a bound, others are
/// answered, and requests are captured.
#[test]
fn slow_readers_leave_others_alone() {
    let server = language::python_http("threading").unwrap();
    let agent = Agent::start(Config::default()).unwrap();
    let Address::Tcp(address) = server.address else { panic!("{:?} is not TCP", server.address) };
    let traffic = Traffic::start(address, 40, seeded("slow_readers"));
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(agent.address()).unwrap()).collect();
    for mut stream in &silent {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    }
    for _ in 0..20 {
        status(agent.address(), "/readyz", &[], 200);
        status(agent.address(), "/metrics", &[], 200);
    }
    // More than there is room for are closed.
    let more: Vec<_> = (0..100).map(|_| TcpStream::connect(agent.address()).unwrap()).collect();
    until("connections beyond the bound are closed", Duration::from_secs(20), || {
        let is_closed = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.read(&mut [0]), Ok(0))
        };
        let closed = more.iter().filter(|stream| is_closed(stream)).count();
        if closed >= 44 { Ok(()) } else { Err(format!("{closed} are closed")) }
    });
    assert!(agent.stderr().unwrap().contains("connections to web.listen were closed unanswered"));
    drop((silent, more));
    let (sent, failed) = traffic.finish();
    assert!(sent >= 40 && failed == 0, "{sent} were answered, {failed} were not");
    let labels = [("service_name", server.service.as_str()), ("side", "server")];
    let metrics = agent
        .metrics_until(Duration::from_secs(20), |metrics| {
            metrics.sum("obi_spans_total", &labels) >= sent as f64
        })
        .unwrap();
    let of = |name| metrics.sum(name, &labels);
    assert_eq!((of("obi_spans_total"), of("obi_lost_total")), (sent as f64, 0.0), "seen and lost of {sent}");
    until("others are answered", Duration::from_secs(20), || {
        fetch::get(agent.address(), "/readyz", "*/*").map(drop).map_err(|error| error.to_string())
    });
}
