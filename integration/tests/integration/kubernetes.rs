//! Processes in the control groups of pods get the pods' names, from the first exchange on.
//!
//! Control groups and processes are real. The API server is a listener that replays what Kubernetes' own messages were
//! encoded to (`obi/tests/kubernetes`), as this machine has no cluster.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::process::{Program, READY};
use integration::span::{Kind, Span};
use serde_json::Value;
use tempfile::TempDir;

const CART: &str = "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab";
const LIMIT: Duration = Duration::from_secs(20);

const SERVER: &str = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("ready", server.server_port, flush=True)
server.serve_forever()
"#;

/// A server in the control group of a container of a pod. The groups go with it.
struct Container {
    program: Option<Program>,
    address: SocketAddr,
    groups: Vec<PathBuf>,
}

impl Container {
    fn start(pod: &str, id: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let parents = ["kubepods".to_owned(), "burstable".to_owned(), format!("pod{pod}"), id.to_owned()];
        let mut groups = Vec::new();
        let mut place = root.expect("version 2 of control groups is mounted");
        for part in parents {
            place.push(part);
            fs::create_dir_all(&place).unwrap();
            groups.push(place.clone());
        }
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$1/cgroup.procs\" && exec python3 -c \"$2\"", "sh"]);
        command.arg(&place).arg(SERVER).env_remove("OTEL_SERVICE_NAME").env("HOSTNAME", "another-name");
        let mut program = Program::spawn("container", command).unwrap();
        let line = program.await_line("ready", patience(READY)).unwrap();
        let port = line.split(' ').next_back().unwrap().parse().unwrap();
        Self { program: Some(program), address: SocketAddr::from(([127, 0, 0, 1], port)), groups }
    }

    fn pid(&self) -> u32 {
        self.program.as_ref().unwrap().pid()
    }

    /// In one piece: both ends of an exchange are matched by where its head begins.
    fn ask(&self, path: &str) {
        let mut socket = TcpStream::connect(self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    }

    /// Asks until a span of this path fulfils the condition; the last one either way.
    fn ask_until(&self, agent: &mut Agent, path: &str, is_it: impl Fn(&Span) -> bool) -> Span {
        let begun = std::time::Instant::now();
        for nth in 0.. {
            let path = format!("/{path}/{nth}");
            self.ask(&path);
            let is_ours = |span: &&Span| {
                (span.kind, span.pid) == (Kind::Server, self.pid()) && span.attributes["url.path"] == *path
            };
            let spans = agent.spans_until(LIMIT, |spans| spans.iter().any(|span| is_ours(&span))).unwrap();
            let span = spans.iter().find(is_ours).expect("the request is seen").clone();
            if is_it(&span) || begun.elapsed() > patience(LIMIT) {
                return span;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        unreachable!("there is no last number")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.program.take());
        // Those that others use stay.
        for group in self.groups.iter().rev() {
            let _ = fs::remove_dir(group);
        }
    }
}

/// An API server that answers each watch with what was there at first, and then sends what it is given.
struct ApiServer {
    address: SocketAddr,
    asked: Receiver<String>,
    more: Sender<Vec<u8>>,
}

fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../obi/tests/kubernetes");
    fs::read(folder.join(name)).unwrap()
}

impl ApiServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (head, asked) = channel();
        let (more, given) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept()?;
            // One that is asked again refuses: it is down.
            drop(listener);
            let _ = head.send(read_head(&socket)?);
            let kind = "application/vnd.kubernetes.protobuf;stream=watch";
            let fixed =
                format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
            socket.write_all(fixed.as_bytes())?;
            send(&mut socket, &recorded("api_initial.bin"))?;
            given.iter().try_for_each(|bytes| send(&mut socket, &bytes))
        });
        Self { address, asked, more }
    }
}

fn read_head(socket: &TcpStream) -> std::io::Result<String> {
    let mut head = String::new();
    let mut reader = BufReader::new(socket.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head)?;
    }
    Ok(head)
}

/// In chunks that no message fits into.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for piece in bytes.chunks(19) {
        socket.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
        socket.write_all(piece)?;
        socket.write_all(b"\r\n")?;
    }
    Ok(())
}

fn text<'a>(span: &'a Span, name: &str) -> &'a str {
    span.resource.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[track_caller]
fn assert_named(span: &Span, name: &str, expected: &[(&str, &str)]) {
    assert_eq!((span.service.name.as_str(), span.service.namespace.as_str()), (name, "shop"), "{span:?}");
    for (name, value) in expected {
        assert_eq!(text(span, name), *value, "{name}: {:?}", span.resource);
    }
}

/// What the agent's threads of this name hold.
fn capabilities_of(agent: &Agent, thread: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let status = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t").map(str::to_owned))
    };
    let is_it = |status: &String| field(status, "Name").is_some_and(|name| name == thread);
    status.filter(is_it).filter_map(|status| field(&status, "CapPrm")).collect()
}

#[test]
fn a_pods_process_is_named_by_the_api_server_from_its_first_exchange_on() {
    let api = ApiServer::start();
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("token"), "the-token").unwrap();
    let config = Config::default()
        .set("kubernetes", "metadata", "api")
        .set("kubernetes", "node", "node-a")
        .set("kubernetes", "cluster", "eu-1")
        .set("kubernetes", "api_server", format!("http://{}", api.address))
        .set("kubernetes", "credentials", credentials.path().to_str().unwrap())
        .set("kubernetes", "log_folder", "/nonexistent")
        .set("kubernetes", "spread", "0s");
    // One that runs before the agent comes, and one that begins beside it.
    let before = Container::start("0123456789abcdef0123456789abcdef", &"e".repeat(64));
    let mut agent = Agent::start(config).unwrap();
    let head = api.asked.recv_timeout(patience(LIMIT)).unwrap();
    assert!(head.contains("spec.nodeName%3Dnode-a") && head.contains("Bearer the-token"), "{head}");
    let etcd = before.ask_until(&mut agent, "etcd", |_| true);
    assert_eq!((&*etcd.service.name, &*etcd.service.namespace), ("etcd", "kube-system"));
    assert_eq!(text(&etcd, "k8s.pod.uid"), "11111111-2222-3333-4444-555555555555", "of the API's copy");

    assert_eq!(capabilities_of(&agent, "kubernetes"), ["0000000000000000"], "of who listens to the network");

    let cart = Container::start(CART, &"a".repeat(64));
    let of_pod = [
        ("k8s.namespace.name", "shop"),
        ("k8s.deployment.name", "cart"),
        ("k8s.replicaset.name", "cart-5d4f8c7b9"),
        ("k8s.pod.name", "cart-5d4f8c7b9-x2x4z"),
        ("k8s.pod.uid", CART),
        ("k8s.node.name", "node-a"),
        ("k8s.cluster.name", "eu-1"),
        ("deployment.environment.name", "production"),
        ("container.id", &"a".repeat(64)),
    ];
    // The API does not know the container's id yet, and there are several: which one it is, is not said.
    let first = cart.ask_until(&mut agent, "first", |_| true);
    assert_named(&first, "cart", &of_pod);
    assert_named(&first, "cart", &[("k8s.container.name", ""), ("service.version", "")]);

    let changes = recorded("api_changes.bin");
    let length = u32::from_be_bytes(changes[..4].try_into().unwrap()) as usize;
    api.more.send(changes[..4 + length].to_vec()).unwrap();
    let is_known = |span: &Span| !text(span, "k8s.container.name").is_empty();
    let later = cart.ask_until(&mut agent, "later", is_known);
    let of_container = [
        ("k8s.container.name", "app"),
        ("container.image.name", "registry.example:5000/shop/cart"),
        ("service.version", "1.24.3"),
        ("service.instance.id", "shop.cart-5d4f8c7b9-x2x4z.app"),
    ];
    assert_named(&later, "cart", &of_pod);
    assert_named(&later, "cart", &of_container);

    // This process has asked: its span says who answered.
    let path = &later.attributes["url.path"];
    let is_call = |span: &&Span| span.kind == Kind::Client && span.attributes.get("url.path") == Some(path);
    let spans = agent.spans_until(LIMIT, |spans| spans.iter().any(|span| is_call(&span))).unwrap();
    let call = spans.iter().find(is_call).expect("both ends are seen");
    let peer = ["service.peer.name", "service.peer.namespace"].map(|name| call.attributes.get(name));
    assert_eq!(peer, [Some(&"cart".into()), Some(&"shop".into())], "{call:?}, {later:?}");

    let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
    assert_eq!(
        (&status["kubernetes"]["source"], &status["kubernetes"]["live"]),
        (&"api".into(), &true.into())
    );
    assert_eq!(agent.metric_value("obi_kubernetes_pods", &[("state", "present")]).unwrap(), 2.0);
    let information = [("service_name", "cart"), ("k8s_deployment_name", "cart")];
    assert_eq!(agent.metric_value("target_info", &information).unwrap(), 1.0);

    // The API server goes away: what is known stays.
    drop(api.more);
    let is_down = || {
        let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
        status["kubernetes"]["live"] == false
    };
    let begun = std::time::Instant::now();
    while !is_down() {
        assert!(begun.elapsed() < patience(LIMIT), "the stream's end is not noticed");
        std::thread::sleep(Duration::from_millis(50));
    }
    let alone = cart.ask_until(&mut agent, "alone", |_| true);
    assert_named(&alone, "cart", &of_container);
    let restarted = Container::start(CART, &"b".repeat(64));
    let restarted = restarted.ask_until(&mut agent, "restarted", |_| true);
    assert_named(
        &restarted,
        "cart",
        &[("k8s.container.name", "proxy"), ("k8s.pod.name", "cart-5d4f8c7b9-x2x4z")],
    );
    let said = agent.stop().unwrap().stderr;
    assert!(!said.contains("the-token"), "{said}");
}

#[test]
fn without_anybody_to_ask_names_of_folders_name_a_pod() {
    const UID: &str = "7a7a5e6e-02ab-4c1d-9a0b-0123456789ab";
    let id = "9".repeat(64);
    let log: TempDir = tempfile::tempdir().unwrap();
    fs::create_dir_all(log.path().join("containers")).unwrap();
    fs::create_dir_all(log.path().join("pods")).unwrap();
    let config = Config::default().set("kubernetes", "metadata", "logs").set(
        "kubernetes",
        "log_folder",
        log.path().join("pods").to_str().unwrap(),
    );
    let mut agent = Agent::start(config).unwrap();
    let database = Container::start(UID, &id);
    // The kubelet makes the folder before the container begins; here it comes late, and the name follows.
    fs::create_dir_all(log.path().join(format!("pods/shop_db-0_{UID}/main"))).unwrap();
    let link = log.path().join(format!("containers/db-0_shop_main-{id}.log"));
    std::os::unix::fs::symlink("/nowhere", link).unwrap();
    let span = database.ask_until(&mut agent, "db", |span| !text(span, "k8s.pod.name").is_empty());
    assert_named(&span, "db", &[("k8s.pod.name", "db-0"), ("k8s.container.name", "main")]);
    assert_named(&span, "db", &[("k8s.statefulset.name", "db"), ("service.instance.id", "shop.db-0.main")]);
    assert!(
        agent.metric_value("obi_kubernetes_unresolved_processes_total", &[("reason", "no_source")]).unwrap()
            > 0.0
    );
}
