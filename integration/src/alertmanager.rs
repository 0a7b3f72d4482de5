//! A real Alertmanager, and a receiver that keeps what it is notified of.
//!
//! In: grouping. Out: what Alertmanager has, and every notification that a person would have got. Refuses to know what
//! an alert is about.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::fetch;
use crate::patience::patience;
use crate::process::{Program, free_port};

const READY: Duration = Duration::from_secs(30);
/// No notification is longer.
const MESSAGE_BYTES: u64 = 1 << 20;

/// Alertmanager with one receiver. Dropping it kills it.
#[derive(Debug)]
pub struct Alertmanager {
    address: SocketAddr,
    program: Option<Program>,
    files: TempDir,
    /// What the receiver got.
    pub inbox: Inbox,
}

impl Alertmanager {
    /// One that groups by `service` and is not running yet; its address is known already.
    ///
    /// # Errors
    /// When there is no port.
    pub fn new() -> anyhow::Result<Self> {
        let inbox = Inbox::open()?;
        let files = tempfile::tempdir()?;
        let config = format!(
            "route:\n  receiver: people\n  group_by: [service]\n  group_wait: 2s\n  group_interval: 2s\n  \
             repeat_interval: 4h\nreceivers:\n- name: people\n  webhook_configs:\n  - url: {}\n    send_resolved: true\n",
            inbox.url()
        );
        fs::write(files.path().join("alertmanager.yml"), config)?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        Ok(Self { address, program: None, files, inbox })
    }

    /// The same, running.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn started() -> anyhow::Result<Self> {
        let mut alertmanager = Self::new()?;
        alertmanager.start()?;
        Ok(alertmanager)
    }

    /// Starts it, again if need be; what it knew before is still there.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let folder = self.files.path();
        let mut command = Command::new("prometheus-alertmanager");
        command
            .arg(format!("--config.file={}", folder.join("alertmanager.yml").display()))
            .arg(format!("--storage.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={}", self.address))
            .arg("--cluster.listen-address=");
        let program = Program::spawn("alertmanager", command)?;
        let begun = Instant::now();
        while !fetch::get(self.address, "/-/ready", "*/*").is_ok_and(|answer| answer.status == 200) {
            if !program.is_running()? || begun.elapsed() > patience(READY) {
                bail!("alertmanager did not get ready: {}", program.stderr()?);
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.program = Some(program);
        Ok(())
    }

    /// Where it listens, for `slo.alertmanagers`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The alerts it has now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn alerts(&self) -> anyhow::Result<Vec<Value>> {
        fetch::json(self.address, "/api/v2/alerts")
    }
}

/// A web server that takes notifications.
#[derive(Debug, Clone)]
pub struct Inbox {
    address: SocketAddr,
    messages: Arc<Mutex<Vec<Value>>>,
}

impl Inbox {
    /// Opens it; it stays open as long as this process lives.
    ///
    /// # Errors
    /// When there is no port.
    pub fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let inbox = Self { address: listener.local_addr()?, messages: Arc::default() };
        let messages = Arc::clone(&inbox.messages);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A broken request is one that a test will miss.
                if let Ok(message) = take(stream) {
                    messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
                }
            }
        });
        Ok(inbox)
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// All messages so far.
    #[must_use]
    pub fn messages(&self) -> Vec<Value> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Status, name of the objective and severity of every alert in every message, message by message.
    #[must_use]
    pub fn reported(&self) -> Vec<Vec<String>> {
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let alert = |alert: &Value| {
            let labels = &alert["labels"];
            format!("{} {} {}", text(&alert["status"]), text(&labels["slo"]), text(&labels["severity"]))
        };
        let of = |message: &Value| {
            let mut alerts: Vec<_> = message["alerts"].as_array().into_iter().flatten().map(alert).collect();
            alerts.sort();
            alerts
        };
        self.messages().iter().map(of).collect()
    }
}

/// One POST, answered with 200.
fn take(mut stream: TcpStream) -> anyhow::Result<Value> {
    stream.set_read_timeout(Some(patience(Duration::from_secs(5))))?;
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(head) = request.parse(&bytes)? {
            let length =
                request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length: u64 = std::str::from_utf8(length.context("no Content-Length")?.value)?.parse()?;
            let rest = length.min(MESSAGE_BYTES).saturating_sub((bytes.len() - head) as u64);
            (&mut stream).take(rest).read_to_end(&mut bytes)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
            return Ok(serde_json::from_slice(&bytes[head..])?);
        }
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece)?;
        if n == 0 {
            bail!("the request ended in its head");
        }
        bytes.extend_from_slice(&piece[..n]);
    }
}
