//! nginx: what it asks of others, by which connection, how often, and behind which delay.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use integration::causality;
use integration::otlp::certificate::Certificates;
use integration::process::{Program, READY, free_port, run};
use integration::program;
use integration::seed::{note, request_id};
use integration::server::service;
use integration::span::Kind;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    Agent, Config, Listening, PROBING, ask_by, clients, few_clients, gate, n_requests, reasons, start,
};

/// All kinds of requests.
const KINDS: [&str; 6] = ["pooled", "fresh", "retried", "delayed", "guarded", "secure"];

/// The program, and where it writes which request has made which call.
fn configuration(folder: &Path, listen: &str, [back, secure]: [u16; 2]) -> String {
    let path = folder.display();
    let back = format!("server 127.0.0.1:{back} max_fails=0;");
    // The variable is evaluated once for all tries.
    let out = "proxy_pass http://$back/$place/$request_id; proxy_connect_timeout 60s;";
    let tries = "proxy_next_upstream timeout error http_503; proxy_read_timeout 100ms;";
    let place = |kind: &str, more: &str| {
        format!("location ~ ^/{kind}/(?<id>[0-9a-f]+)$ {{ set $back pool; set $place out; {more} {out} }}\n")
    };
    let mut text = format!(
        "user root; daemon off; worker_processes 2; pid {path}/pid; error_log stderr crit;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n\
         log_format one escape=none '$id $request_id';\n\
         log_format two escape=none '$id $request_id\\n$id guard$request_id';\n\
         access_log {path}/log one;\n\
         keepalive_requests 1000000; keepalive_timeout 120s; proxy_http_version 1.1;\n\
         proxy_set_header connection ''; proxy_temp_path {path}/proxy; client_body_temp_path {path}/body;\n\
         limit_req_zone $server_name zone=slow:1m rate=500r/s;\n\
         upstream pool {{ {back} keepalive 16; }}\nupstream each {{ {back} }}\n\
         upstream tries {{ {back} {back} {back} {back} keepalive 16; }}\n\
         upstream secured {{ server 127.0.0.1:{secure} max_fails=0; keepalive 16; }}\n\
         server {{\nlisten {listen};\n"
    );
    text += &place("pooled", "");
    text += &place("fresh", "set $back each; proxy_set_header connection close;");
    text += &place("retried", &format!("set $back tries; set $place often; {tries}"));
    text += &place("delayed", "limit_req zone=slow burst=1000;");
    text += &place("guarded", &format!("access_log {path}/log two; auth_request /guard;"));
    text += &place("secure", "set $back secured;").replace("http://$back", "https://$back");
    text += "location = /plain { access_log off; return 200; }\n";
    text += "location = /guard { internal; proxy_pass http://pool/out/guard$request_id; }\n}\n}\n";
    text
}

/// An executable of its own, whose name is the service's: nginx overwrites its environment.
pub(super) fn start_nginx(folder: &TempDir, configuration: &str, port: u16) -> Listening {
    let service = service("nginx");
    let executable = folder.path().join(&service);
    fs::copy("/usr/sbin/nginx", &executable).unwrap();
    let file = folder.path().join("nginx.conf");
    fs::write(&file, configuration).unwrap();
    let mut command = Command::new(&executable);
    command.arg("-c").arg(&file).arg("-e").arg("stderr").env("OTEL_SERVICE_NAME", &service);
    let program = Program::spawn("nginx", command).unwrap();
    let address = ([127, 0, 0, 1], port).into();
    let begun = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        assert!(program.is_running().unwrap() && begun.elapsed() < READY, "{}", program.stderr().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    Listening { program, service, address }
}

/// How clients come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Tcp,
    Tls,
    /// Many streams of each connection, over TLS as well.
    Http2,
}

/// What nginx has done before the requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// It has answered so many requests by itself that no more of them are noted.
    Answering,
}

/// The requests of one client, as `curl` reads them: by one connection, eight at a time.
fn by_http2(url: &str, kinds: &[&str], n: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let ids: Vec<String> = (0..n).map(|_| request_id()).collect();
    let lines = ids.iter().enumerate().map(|(nth, id)| {
        format!("url = \"{url}/{}/{id}\"\noutput = \"/dev/null\"\n", kinds[nth % kinds.len()])
    });
    fs::write(&file, lines.collect::<String>()).unwrap();
    let mut command = Command::new("curl");
    command.args(["--http2", "--insecure", "--silent", "--show-error", "--parallel", "--parallel-max", "8"]);
    command.arg("--config").arg(&file);
    run("curl", command, Duration::from_secs(300)).unwrap();
    ids
}

fn ask(over: Over, port: u16, kinds: &[&str], clients: usize) -> Vec<String> {
    if over == Over::Tcp {
        return ask_by(([127, 0, 0, 1], port).into(), kinds, clients);
    }
    if over == Over::Http2 {
        let url = &format!("https://127.0.0.1:{port}");
        let each = n_requests().div_ceil(clients);
        return std::thread::scope(|scope| {
            let asking: Vec<_> =
                (0..clients).map(|_| scope.spawn(move || by_http2(url, kinds, each))).collect();
            asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
        });
    }
    let mut command = Command::new("python3");
    command.arg(program::source("causality").join("ask.py"));
    command.args([port, u16::try_from(clients).unwrap()].map(|number| number.to_string()));
    command.arg(n_requests().div_ceil(clients).to_string()).args(kinds);
    run("ask", command, Duration::from_secs(300)).unwrap()
}

/// As [`super::check`]: with the certain share of calls right, and none wrong.
#[track_caller]
fn check(clients: &[(usize, bool)], over: Over, kinds: &[&str], before: Before) {
    for &(clients, agent_last) in clients {
        let early = (!agent_last).then(|| Agent::start(Config::default()).unwrap());
        let (folder, certificates) = (tempfile::tempdir().unwrap(), Certificates::new().unwrap());
        let back = start("back.py", &[]);
        let key = ["server.pem", "server.key"].map(|name| certificates.path(name).display().to_string());
        let secure = start("back.py", &key.each_ref().map(String::as_str));
        let port = free_port().unwrap();
        let listen = match over {
            Over::Tcp => format!("127.0.0.1:{port} reuseport"),
            Over::Tls | Over::Http2 => format!(
                "127.0.0.1:{port} ssl {} reuseport; ssl_certificate {}; ssl_certificate_key {}",
                if over == Over::Tls { "" } else { "http2" },
                key[0],
                key[1]
            ),
        };
        let configuration =
            configuration(folder.path(), &listen, [&back, &secure].map(|it| it.address.port()));
        let mut front = start_nginx(&folder, &configuration, port);
        let mut agent = early.unwrap_or_else(|| Agent::start(Config::default()).unwrap());
        agent.await_probes(&[&front.service], PROBING).unwrap();
        if before == Before::Answering {
            let mut command = Command::new("wrk");
            command.args(["-t1", "-c8", "-d3s", &format!("http://127.0.0.1:{port}/plain")]);
            run("wrk", command, Duration::from_secs(60)).unwrap();
        }
        let ids = ask(over, port, kinds, clients);
        front.program.signal(Signal::QUIT).unwrap();
        assert_eq!(front.program.wait(READY).unwrap().code, 0);
        let barrier = gate::Barrier::start();
        assert!(barrier.pass(&mut agent), "the agent does not show what has passed");
        let truth = causality::read_file(&folder.path().join("log")).unwrap();
        assert!(truth.len() >= ids.len(), "{} calls for {} requests", truth.len(), ids.len());
        let spans = agent.spans().unwrap();
        let score = causality::score(&truth, spans);
        let of_front = spans.iter().filter(|it| it.kind == Kind::Client && it.service.name == front.service);
        let all = ids.iter().map(String::as_str);
        let pairs = causality::pairs(all, spans);
        note(&format!(
            "causality nginx over {over:?}, {kinds:?}, {clients} clients, agent last {agent_last}: {score} {:?}; \
             pairs {pairs:?}",
            reasons(spans, &front.service)
        ));
        assert_eq!((score.wrong, score.missing), (0, 0), "{over:?} {kinds:?} by {clients}: {score}");
        assert_eq!(score.calls(), of_front.count(), "each try is a call");
        assert!(score.right * 100 >= score.calls() * 99, "{over:?} {kinds:?} by {clients}: {score}");
        assert_eq!(pairs.wrong, 0, "{over:?} {kinds:?} by {clients}: {pairs:?}");
    }
}

#[test]
fn what_nginx_asks_of_others() {
    check(clients(), Over::Tcp, &KINDS, Before::Nothing);
}

/// Streams have the connection of their client in common, and come several at a time.
#[test]
fn what_nginx_asks_for_streams() {
    check(few_clients(), Over::Http2, &KINDS, Before::Nothing);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn what_nginx_asks_of_others_for_clients_over_tls() {
        check(few_clients(), Over::Tls, &KINDS, Before::Nothing);
    }

    /// Calls for what was open when each of two workers made its first call may be unknown: those of three clients are
    /// fewer than one of a hundred.
    #[test]
    fn what_nginx_asks_when_it_has_called_for_nothing_for_long() {
        check(&[(3, false)], Over::Tcp, &KINDS, Before::Answering);
    }

    #[test]
    fn what_nginx_asks_for_streams_by_few_and_many() {
        check(clients(), Over::Http2, &KINDS, Before::Nothing);
    }
}
