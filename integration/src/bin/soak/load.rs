//! The load of a soak: 22 requests a second over one connection, and two processes a second with one request each.
//!
//! In: a server. Out: how many requests were sent. Ends when it is stopped or dropped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::plan::Address;
use integration::server::Server;

const REQUESTS: u32 = 22;
const PROCESSES: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(10);

/// How many requests were sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    /// By all.
    pub(crate) all: u64,
    /// By programs that start, ask once and end.
    pub(crate) by_processes: u64,
}

/// Running threads.
#[derive(Debug)]
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    /// Processes come last.
    threads: Vec<JoinHandle<anyhow::Result<u64>>>,
}

impl Load {
    /// Starts both kinds, the programs from the file `curl`, `times` as often as a soak does.
    pub(crate) fn start(server: &Server, curl: &Path, times: u32) -> anyhow::Result<Self> {
        let Address::Tcp(address) = server.address else { bail!("nginx listens on TCP") };
        let is_over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (per_second, ask) in [(REQUESTS, kept(address)), (PROCESSES, short_lived(curl, address))] {
            let is_over = Arc::clone(&is_over);
            threads.push(thread::spawn(move || repeat(per_second * times, &is_over, ask)));
        }
        Ok(Self { is_over, threads })
    }

    /// Ends it. Returns the number of requests.
    pub(crate) fn stop(mut self) -> anyhow::Result<Sent> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut sent = Sent::default();
        for thread in self.threads.drain(..) {
            sent.by_processes = thread.join().ok().context("the load's threads do not panic")??;
            sent.all += sent.by_processes;
        }
        Ok(sent)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

type Ask = Box<dyn FnMut() -> anyhow::Result<()> + Send>;

/// Calls `ask` so often until it is over; late ones are made up for.
fn repeat(per_second: u32, is_over: &AtomicBool, mut ask: Ask) -> anyhow::Result<u64> {
    let (begun, mut sent) = (Instant::now(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        ask()?;
        sent += 1;
        let next = begun + Duration::from_secs_f64(sent as f64 / f64::from(per_second));
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(sent)
}

/// Over one connection; nginx ends it after a thousand requests, then it is another one.
fn kept(address: SocketAddr) -> Ask {
    let mut connection: Option<TcpStream> = None;
    Box::new(move || {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => TcpStream::connect(address).context("connect to nginx")?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /plain/1024 HTTP/1.1\r\nHost: soak\r\n\r\n")?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4_096];
        let end = loop {
            let n = stream.read(&mut buffer).context("read the answer of nginx")?;
            answer.extend_from_slice(&buffer[..n]);
            let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
            match head {
                Some(head) if answer.len() >= head + 4 + 1_024 => break head,
                _ if n == 0 => bail!("nginx closed in the middle of an answer"),
                _ => {}
            }
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            bail!("nginx answered {head}");
        }
        connection = (!head.contains("connection: close")).then_some(stream);
        Ok(())
    })
}

/// A program that starts, asks once and ends.
fn short_lived(curl: &Path, address: SocketAddr) -> Ask {
    let curl = curl.to_owned();
    let url = format!("http://{address}/plain/1024");
    Box::new(move || {
        let mut command = Command::new(&curl);
        command.args(["--silent", "--fail", "--max-time", "10", "--output", "/dev/null", &url]);
        let status = command.stdin(Stdio::null()).status().context("start curl")?;
        if status.success() { Ok(()) } else { bail!("curl {url}: {status}") }
    })
}
