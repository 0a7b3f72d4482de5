//! Probes in a real TLS library, with real programs that use it meanwhile.
//!
//! In: a copy of this machine's libssl, nginx, curl, python. Out: failure when a request is, or when a breakpoint is
//! where none should be. Needs root. `OBI_TEST_ATTACHMENTS` scales the number of attachments under load.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use obi::capture::bpf::uprobe::mapped_byte;
use obi::capture::tls::attach::{Attacher, Probes};
use obi::capture::tls::elf::OpenFile;
use obi::capture::tls::file::probe_points;
use obi::capture::tls::finder::Finder;
use obi::capture::tls::point::{ProbePoint, Returns};
use tempfile::TempDir;

use super::{ONE, programs};

/// For something that happens in milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(120);
const DISTRIBUTED: &str = "/usr/lib/x86_64-linux-gnu/libssl.so.3";

/// A copy of libssl that no other process uses.
struct Library {
    folder: TempDir,
    file: File,
    points: Vec<ProbePoint>,
}

impl Library {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libssl.so.3");
        fs::copy(DISTRIBUTED, &path).unwrap();
        let file = File::open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        let points = probe_points(&OpenFile { file: file.try_clone().unwrap(), length }, Returns::Allowed)
            .unwrap()
            .points;
        assert!(points.len() >= 6, "{points:?}");
        Self { folder, file, points }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("libssl.so.3")
    }

    /// How many of the points have a breakpoint in a new mapping of the file.
    fn breakpoints(&self) -> usize {
        let bytes = fs::read(self.path()).unwrap();
        let probed = |point: &&ProbePoint| {
            mapped_byte(self.file.as_fd(), point.offset).unwrap()
                != bytes[usize::try_from(point.offset).unwrap()]
        };
        self.points.iter().filter(probed).count()
    }
}

/// A child that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// nginx with TLS that uses this library.
fn nginx(library: &Library) -> (Running, u16) {
    let folder = library.folder.path();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut openssl = Command::new("openssl");
    openssl.args(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test".split(' '),
    );
    openssl.arg("-keyout").arg(folder.join("key.pem")).arg("-out").arg(folder.join("cert.pem"));
    assert!(openssl.stderr(Stdio::null()).status().unwrap().success());
    let text = format!(
        "daemon off; master_process off; pid {0}/pid; error_log {0}/log; events {{}}\n\
         http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {0}; proxy_temp_path {0};\n\
         fastcgi_temp_path {0}; uwsgi_temp_path {0}; scgi_temp_path {0};\n\
         server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem;\n\
         location / {{ return 200 \"ok\\n\"; }} }} }}\n",
        folder.display()
    );
    fs::write(folder.join("conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(folder.join("conf")).arg("-e").arg(folder.join("log"));
    let running = Running(command.env("LD_LIBRARY_PATH", folder).spawn().unwrap());
    let started = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            started.elapsed() < PATIENCE,
            "{}",
            fs::read_to_string(folder.join("log")).unwrap_or_default()
        );
        thread::yield_now();
    }
    (running, port)
}

/// Requests over one connection, each reported; everything but an answer with 200 is an error.
fn requests(folder: &Path, port: u16, n: usize, served: &Sender<()>) -> Result<(), String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--insecure", "--no-buffer"]);
    command.arg(format!("https://127.0.0.1:{port}/[1-{n}]")).env("LD_LIBRARY_PATH", folder);
    let mut child = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut n_served = 0;
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        if line != "ok" {
            return Err(format!("an answer of `{line}`"));
        }
        n_served += 1;
        let _ = served.send(());
    }
    let text = std::io::read_to_string(child.0.stderr.take().unwrap()).unwrap_or_default();
    let status = child.0.wait().map_err(|error| error.to_string())?;
    if status.success() && n_served == n {
        Ok(())
    } else {
        Err(format!("{n_served} of {n}, {status}: {text}"))
    }
}

fn attach(attacher: &Attacher, library: &Library) -> Probes {
    attacher.attach(library.file.as_fd(), &library.points).unwrap()
}

fn wait_for_a_request(served: &Receiver<()>) {
    while served.try_recv().is_ok() {}
    served.recv_timeout(PATIENCE).unwrap();
}

/// Detaching takes the kernel a while; several may do it at the same time.
const DETACHING: usize = 16;

#[test]
fn every_request_is_served_while_probes_come_and_go() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let n_attachments = std::env::var("OBI_TEST_ATTACHMENTS").map_or(200, |text| text.parse().unwrap());
    let (programs, _maps, attacher) = programs();
    let library = Library::new();
    let (_nginx, port) = nginx(&library);
    let stopping = AtomicBool::new(false);
    let (served, serving) = channel();
    let (detach, detaching) = sync_channel::<Probes>(DETACHING);
    let detaching = Mutex::new(detaching);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let (served, stopping, folder) = (served.clone(), &stopping, library.folder.path());
                scope.spawn(move || {
                    while !stopping.load(Ordering::Relaxed) {
                        requests(folder, port, 100, &served)?;
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        for _ in 0..DETACHING {
            let detaching = &detaching;
            scope.spawn(move || {
                loop {
                    let Ok(probes) = detaching.lock().unwrap().recv() else { break };
                    drop(probes);
                }
            });
        }
        for _ in 0..n_attachments {
            let probes = attach(&attacher, &library);
            wait_for_a_request(&serving);
            detach.send(probes).unwrap();
            assert!(clients.iter().all(|client| !client.is_finished()), "a client has failed");
        }
        drop(detach);
        stopping.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap().unwrap();
        }
    });
    assert_eq!(library.breakpoints(), 0, "left behind");
    let runs = |name| {
        programs.measure().iter().find(|program| program.name == name).map(|program| program.info.runs)
    };
    assert!(runs("tls_bytes") >= Some(n_attachments), "{:?}", programs.measure());
}

#[test]
fn a_program_that_lives_for_one_request_is_seen_when_the_library_was_probed_before() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (programs, _maps, attacher) = programs();
    let library = Library::new();
    let (_nginx, port) = nginx(&library);
    let runs = |name: &str| {
        let measured = programs.measure();
        measured.iter().find(|program| program.name == name).map_or(0, |program| program.info.runs)
    };
    let probes = attach(&attacher, &library);
    assert_eq!((library.breakpoints(), runs("tls_write_ex_enter")), (library.points.len(), 0));
    requests(library.folder.path(), port, 1, &channel().0).unwrap();
    // One request: curl and nginx write once each, at least.
    assert!(runs("tls_write_ex_enter") >= 2 && runs("tls_free") >= 1, "{:?}", programs.measure());
    drop(probes);
    assert_eq!(library.breakpoints(), 0);
}

/// Maps a library and waits for the end of its input. In a mount namespace of its own, after `mounts` were made.
fn mapping_process(mounts: &str, path: &str) -> Running {
    let script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &format!("{mounts}\nexec python3 -c \"$0\" {path}"), script]);
    let mut child = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn probed_inodes(finder: &mut Finder) -> Vec<u64> {
    finder.view().map(|view| view.probed.iter().map(|file| file.inode).collect()).unwrap_or_default()
}

#[test]
fn a_library_is_found_in_other_mount_namespaces_and_probed_once() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_programs, _maps, attacher) = programs();
    let library = Library::new();
    let inode = library.file.metadata().unwrap().ino();
    let place = tempfile::tempdir().unwrap();
    let (folder, place) = (library.folder.path().display(), place.path().display());
    fs::hard_link(library.path(), library.folder.path().join("libother.so")).unwrap();
    let mut finder = Finder::new(attacher);

    let bound = mapping_process(&format!("mount --bind {folder} {place}"), &format!("{place}/libssl.so.3"));
    finder.begun(bound.0.id(), None, Instant::now());
    let count = |inodes: Vec<u64>| inodes.iter().filter(|other| **other == inode).count();
    assert_eq!(count(probed_inodes(&mut finder)), 1);
    assert_eq!(library.breakpoints(), library.points.len());
    // A second name of the file, elsewhere.
    let linked = mapping_process("", &format!("{folder}/libother.so"));
    finder.begun(linked.0.id(), None, Instant::now());
    finder.uncovered(linked.0.id(), "python3", 1);
    let view = finder.view().unwrap();
    assert_eq!(view.probed.iter().filter(|file| file.inode == inode).count(), 1);
    assert_eq!(view.uncovered[0].reason, "its probes came later than the connections");
    finder.detach();
    assert_eq!(library.breakpoints(), 0);
}

#[test]
fn containers_that_share_a_layer_are_probed_once() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_programs, _maps, attacher) = programs();
    let library = Library::new();
    let (empty, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (layers, place) = (
        format!("lowerdir={}:{}", library.folder.path().display(), empty.path().display()),
        place.path().display(),
    );
    let container = || {
        mapping_process(
            &format!("mount -t overlay -o {layers} none {place}"),
            &format!("{place}/libssl.so.3"),
        )
    };
    let mut finder = Finder::new(attacher);
    let containers = [container(), container(), container()];
    for (n, container) in (1..).zip(&containers) {
        finder.begun(container.0.id(), None, Instant::now());
        finder.uncovered(container.0.id(), "python3", 1);
        let view = finder.view().unwrap();
        let path = format!("{place}/libssl.so.3");
        assert_eq!(view.probed.iter().filter(|file| file.path == path).count(), 1, "{view:?}");
        // All of them count as probed.
        assert_eq!(view.uncovered.len(), n);
        assert!(
            view.uncovered.iter().all(|uncovered| uncovered.reason.contains("probes came later")),
            "{view:?}"
        );
    }
    // The probes are in the file below, which all of them share.
    assert_eq!(library.breakpoints(), library.points.len());
    finder.detach();
    assert_eq!(library.breakpoints(), 0);
}

#[test]
fn a_library_that_nobody_maps_any_more_is_let_go() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_programs, _maps, attacher) = programs();
    let library = Library::new();
    let mut finder = Finder::new(attacher);
    let mut now = Instant::now();
    let process = mapping_process("", &library.path().display().to_string());
    finder.begun(process.0.id(), None, now);
    // As long as it lives, whatever the number of rounds.
    for _ in 0..200 {
        now += Duration::from_secs(1);
        finder.tick(now);
    }
    assert_eq!(library.breakpoints(), library.points.len());
    drop(process);
    let started = Instant::now();
    while library.breakpoints() > 0 {
        assert!(started.elapsed() < PATIENCE);
        now += Duration::from_secs(1);
        finder.tick(now);
    }
    finder.detach();
}

#[test]
fn what_is_not_probed_is_named() {
    fn check(command: &mut Command, library: &str, reason: &str) {
        let (_programs, _maps, attacher) = programs();
        let mut finder = Finder::new(attacher);
        let child = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let exe = format!("/proc/{}/exe", child.0.id());
        let started = Instant::now();
        while fs::read_link(&exe).unwrap() == fs::read_link("/proc/self/exe").unwrap() {
            assert!(started.elapsed() < PATIENCE);
            thread::yield_now();
        }
        finder.uncovered(child.0.id(), "/some/program", 3);
        let view = finder.view().unwrap();
        let uncovered = &view.uncovered[0];
        assert_eq!((uncovered.pid, uncovered.connections), (child.0.id(), 3));
        assert!(uncovered.library.contains(library) && uncovered.reason.contains(reason), "{uncovered:?}");
        finder.detach();
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    check(Command::new("sleep").arg("100"), "", "no TLS library that we know");
    check(&mut Command::new("gofmt"), "crypto/tls (Go)", "no names that we know");
}
