//! Probes in Go's own TLS: points in real programs of several builds, and a server that answers while they come and go.
//!
//! In: the Go compiler of this machine. Out: failure when a point is not proven, when a request is not answered, or
//! when a breakpoint is left. The last needs root. `OBI_TEST_ATTACHMENTS` scales the number of attachments under
//! load, `OBI_TEST_SECONDS` how long a program stays under probes at full load.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use obi::capture::bpf::uprobe::mapped_byte;
use obi::capture::tls::elf::OpenFile;
use obi::capture::tls::file::{Plan, probe_points};
use obi::capture::tls::point::{Cost, Returns};
use obi::capture::tls::program::{BYTES, Program};
use obi_ebpf::{
    TLS_GO_ARM64_OBJECT, TLS_GO_ARM64_RECEIVE, TLS_GO_ARM64_RECORD, TLS_GO_ARM64_SEND, TLS_GO_OBJECT,
    TLS_GO_RECEIVE, TLS_GO_RECORD, TLS_GO_SEND, TLS_HOME_AT,
};
use tempfile::TempDir;

use super::{ONE, programs};

/// Serves and asks itself over TLS, over HTTP/1.1 and HTTP/2, from eight goroutines each, beside a loop of collections.
/// Prints how many requests were answered, once a tenth of a second, and ends with an error when one is not.
const PROGRAM: &str = r#"
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

func deep(n int, response http.ResponseWriter) byte {
	var frame [300]byte
	if n == 0 {
		io.WriteString(response, strings.Repeat("x", 3000))
		response.(http.Flusher).Flush()
	} else {
		frame[n] = deep(n-1, response)
	}
	return frame[7]
}

func main() {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		deep(len(request.URL.Path)%50, response)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	var answered atomic.Int64
	for n := range 16 {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: n%2 == 0}
		client := &http.Client{Transport: transport}
		go func() {
			for {
				response, err := client.Get(server.URL + "/" + strings.Repeat("y", int(answered.Load()%50)))
				if err == nil {
					var body []byte
					body, err = io.ReadAll(response.Body)
					response.Body.Close()
					if err == nil && len(body) != 3000 {
						err = fmt.Errorf("%d bytes", len(body))
					}
				}
				if err != nil {
					fmt.Println("failed", err)
					os.Exit(1)
				}
				if answered.Add(1)%500 == 0 {
					transport.CloseIdleConnections()
				}
			}
		}()
	}
	go func() {
		for {
			runtime.GC()
		}
	}()
	for {
		time.Sleep(100 * time.Millisecond)
		fmt.Println("answered", answered.Load())
	}
}
"#;

/// That program, built with these arguments and variables.
fn built(folder: &Path, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> PathBuf {
    let source = folder.join("main.go");
    fs::write(&source, PROGRAM).unwrap();
    let output = folder.join(name);
    let mut command = Command::new("go");
    command.arg("build").args(arguments).arg("-o").arg(&output).arg(&source).envs(variables.iter().copied());
    assert!(command.status().unwrap().success(), "{name}");
    output
}

fn plan(path: &Path) -> Plan {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    probe_points(&OpenFile { file, length }, Returns::Forbidden).unwrap()
}

/// An architecture, as Go calls it, and where things are there: an object, what is received, sent, a record.
type Layouts = (&'static str, [u64; 4]);

/// Go itself builds for any of them: no library of this machine is needed for it.
const ARCHITECTURES: [Layouts; 2] = [
    ("amd64", [TLS_GO_OBJECT, TLS_GO_RECEIVE & BELOW_HOME, TLS_GO_SEND, TLS_GO_RECORD]),
    ("arm64", [TLS_GO_ARM64_OBJECT, TLS_GO_ARM64_RECEIVE, TLS_GO_ARM64_SEND, TLS_GO_ARM64_RECORD]),
];
const BELOW_HOME: u64 = (1 << TLS_HOME_AT) - 1;

#[test]
fn points_are_proven_in_every_build() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, arguments: &[&str], (architecture, layouts): Layouts| {
        let variables = [("CGO_ENABLED", "0"), ("GOARCH", architecture)];
        let path = built(folder.path(), name, arguments, &variables);
        let plan = plan(&path);
        assert_eq!(plan.not_probed, None, "{name}, {architecture}");
        let mut found = BTreeMap::<_, Vec<u64>>::new();
        for point in &plan.points {
            assert!(point.cost == Cost::Emulated && !point.at_return, "{name}: {point:?}");
            // How far the home is above the frame pointer is up to Go on arm64.
            let home = point.cookie >> TLS_HOME_AT;
            let is_right = match (point.program, architecture) {
                (Program::TlsNowReceive, "amd64") => home == 16,
                (Program::TlsNowReceive, _) => home > 16 && home.is_multiple_of(8),
                _ => home == 0,
            };
            assert!(is_right, "{name}, {architecture}: {point:x?}");
            found.entry(point.program).or_default().push(point.cookie & BELOW_HOME);
        }
        // Where numbers are changes with Go; all programs get the same offsets.
        let goroutines = found.get(&Program::GoCreate).cloned().unwrap_or_default();
        let offsets = goroutines.iter().map(|layout| [layout & 0xffff, layout >> 16]);
        assert!(
            offsets.flatten().all(|at| at > 0x40 && at < 0x400 && at % 8 == 0),
            "{name}: {goroutines:x?}"
        );
        assert_eq!(goroutines.len(), 1, "{name}, {architecture}");
        let [object, receive, send, record] = layouts;
        let expected = [
            (Program::TlsNowEnd, vec![object]),
            (Program::TlsNowReceive, vec![receive]),
            (Program::TlsNowSend, vec![send]),
            (Program::TlsNowRecord, vec![record]),
            (Program::TlsNowBegin, vec![object; 2]),
            (Program::GoRequest, goroutines.clone()),
            (Program::GoCreate, goroutines.clone()),
            (Program::GoCall, goroutines.clone()),
            (Program::GoWrite, goroutines.clone()),
            (Program::GoReader, goroutines.clone()),
            (Program::GoHandler, goroutines.clone()),
            (Program::GoSender, goroutines.clone()),
        ];
        assert_eq!(found, BTreeMap::from(expected), "{name}, {architecture}");
        if architecture == "arm64" {
            simulated(&path, &plan);
        }
    };
    for layouts in ARCHITECTURES {
        check("plain", &[], layouts);
        check("stripped", &["-ldflags=-s -w"], layouts);
        check("pie", &["-buildmode=pie", "-ldflags=-s -w"], layouts);
    }
}

/// Each point is at a word that the kernel simulates: `bl`, `b.ls`, or `cbz` or `cbnz` of the error.
#[track_caller]
fn simulated(path: &Path, plan: &Plan) {
    let bytes = fs::read(path).unwrap();
    for point in &plan.points {
        let word = *bytes[usize::try_from(point.offset).unwrap()..].first_chunk().unwrap();
        let word = u32::from_le_bytes(word);
        let is_it = match point.program {
            Program::TlsNowReceive => word & 0xfe00_001f == 0xb400_0004,
            Program::GoCreate => word >> 26 == 0x25,
            _ => word & 0xff00_001f == 0x5400_0009,
        };
        assert!(is_it, "{point:?}: {word:08x}");
    }
}

/// What is not understood is not probed, and says so.
#[test]
fn other_code_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = built(folder.path(), "plain", &[], &[("CGO_ENABLED", "0")]);
    let bytes = fs::read(&path).unwrap();
    let Plan { points, .. } = plan(&path);
    let check = |program: Program, behind: usize, value: u8, expected: &str| {
        let point = points.iter().find(|point| point.program == program).unwrap();
        let mut changed = bytes.clone();
        changed[usize::try_from(point.offset).unwrap() + behind] = value;
        let plan = probe_points(&changed.as_slice(), Returns::Allowed).unwrap();
        assert_eq!(plan.points, [], "{program:?}");
        assert!(
            plan.not_probed.as_deref().is_some_and(|why| why.contains(expected)),
            "{:?}",
            plan.not_probed
        );
    };
    // `jbe` becomes `je`, `jne` becomes `js`.
    check(Program::TlsNowSend, 1, 0x84, "writeRecordLocked");
    check(Program::TlsNowRecord, 1, 0x84, "(*Conn).write");
    check(Program::TlsNowReceive, 0, 0x90, "readRecordOrCCS");
    // The machine is another one.
    let mut another = bytes.clone();
    another[18] = 0xf3;
    let plan = probe_points(&another.as_slice(), Returns::Allowed).unwrap();
    assert!(plan.points.is_empty() && plan.not_probed.unwrap().contains("x86-64 and arm64 only"));
    // Its functions have other names.
    let text = bytes.windows(17).position(|at| at == b"writeRecordLocked").unwrap();
    let mut nameless = bytes;
    let mut at = text;
    while let Some(found) = nameless[at..].windows(17).position(|window| window == b"writeRecordLocked") {
        at += found;
        nameless[at] = b'x';
    }
    // What its goroutines do is seen all the same.
    let goroutines = [
        Program::GoRequest,
        Program::GoCreate,
        Program::GoCall,
        Program::GoWrite,
        Program::GoReader,
        Program::GoHandler,
        Program::GoSender,
    ];
    let Plan { points, not_probed } = probe_points(&nameless.as_slice(), Returns::Allowed).unwrap();
    assert!(points.iter().all(|point| goroutines.contains(&point.program)), "{points:?}");
    assert_eq!(not_probed, None);
}

/// The program at work. Ends with its owner.
struct Running {
    child: Child,
    lines: Receiver<String>,
    _folder: TempDir,
}

impl Running {
    fn start(folder: TempDir, path: &Path) -> Self {
        let mut child = Command::new(path).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, _folder: folder }
    }

    /// Waits until it reports more requests than `before`, and returns how many.
    #[track_caller]
    fn more_than(&mut self, before: u64) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let line = self.lines.recv_timeout(deadline - Instant::now());
            let line = line.unwrap_or_else(|error| panic!("{error}: {:?}", self.child.try_wait()));
            let answered = line.strip_prefix("answered ").unwrap_or_else(|| panic!("{line}"));
            let answered = answered.parse().unwrap();
            if answered > before {
                return answered;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_request_is_served_while_probes_come_and_go() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (n_attachments, seconds) = (number("OBI_TEST_ATTACHMENTS", 50), number("OBI_TEST_SECONDS", 10));
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (programs, _maps, attacher) = programs();
    let folder = tempfile::tempdir().unwrap();
    let path = built(folder.path(), "pie", &["-buildmode=pie", "-ldflags=-s -w"], &[("CGO_ENABLED", "0")]);
    let Plan { points, .. } = plan(&path);
    let (file, bytes) = (File::open(&path).unwrap(), fs::read(&path).unwrap());
    let breakpoints = || {
        let at =
            |offset| mapped_byte(file.as_fd(), offset).unwrap() != bytes[usize::try_from(offset).unwrap()];
        points.iter().filter(|point| at(point.offset)).count()
    };
    let mut running = Running::start(folder, &path);
    let mut answered = running.more_than(0);
    for _ in 0..n_attachments {
        let probes = attacher.attach(file.as_fd(), &points).unwrap();
        answered = running.more_than(answered);
        drop(probes);
    }
    assert_eq!(breakpoints(), 0, "left behind");
    let probes = attacher.attach(file.as_fd(), &points).unwrap();
    assert_eq!(breakpoints(), points.len());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        answered = running.more_than(answered);
    }
    drop(probes);
    assert_eq!(breakpoints(), 0, "left behind");
    running.more_than(answered);
    let runs = |name: &str| {
        let measured = programs.measure();
        measured.iter().find(|it| it.name == name).map_or(0, |it| it.info.runs)
    };
    // What is sent and what is received are seen by the same program.
    let least =
        [(BYTES, 2 * n_attachments), ("tls_now_record", n_attachments), ("tls_now_begin", n_attachments)];
    for (name, least) in least {
        assert!(runs(name) > least, "{name}: {}", runs(name));
    }
    eprintln!("{answered} requests answered, {} hits of bytes", runs(BYTES));
}
