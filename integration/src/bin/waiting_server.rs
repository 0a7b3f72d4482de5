//! A thread per connection; each request says what its thread is to do, the answer what that took.
//!
//! Each task waits in a function of its own, which profiles are to name; `hold` keeps a lock that `want` waits for.
//!
//! `GET /spend/ID/sleep.2000-spin.1000`: tasks, each with its microseconds. The answer is JSON: wall time, CPU time and
//! time waiting for a CPU, in nanoseconds, of the whole and of each task, by the thread's own clocks.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Held by a thread for most of the time.
type Lock = Arc<Mutex<()>>;

/// Held by requests only.
static SHARED: Mutex<()> = Mutex::new(());

fn main() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    println!("ready {}", listener.local_addr()?.port());
    let lock = Lock::default();
    let held = Arc::clone(&lock);
    thread::spawn(move || {
        loop {
            let guard = held.lock().unwrap_or_else(PoisonError::into_inner);
            thread::sleep(Duration::from_millis(3));
            drop(guard);
            thread::sleep(Duration::from_micros(200));
        }
    });
    for stream in listener.incoming() {
        let (stream, lock) = (stream.context("accept")?, Arc::clone(&lock));
        thread::spawn(move || serve(&stream, &lock));
    }
    Ok(())
}

fn serve(stream: &TcpStream, lock: &Lock) -> anyhow::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let begun = Clocks::now()?;
        let tasks = line.split(' ').nth(1).and_then(|path| path.rsplit('/').next());
        let tasks = tasks.context("no path")?.to_owned();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        let done = tasks.split('-').map(|task| spend(task, lock)).collect::<anyhow::Result<Vec<_>>>()?;
        let whole = Clocks::now()?.since(begun);
        let body = json!({"whole": whole, "tasks": done}).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        (&*stream).write_all(head.as_bytes())?;
    }
}

/// Does one task; its name and what it took.
fn spend(task: &str, lock: &Lock) -> anyhow::Result<Value> {
    let (name, microseconds) = task.split_once('.').context("a task is NAME.MICROSECONDS")?;
    let time = Duration::from_micros(microseconds.parse()?);
    let before = Clocks::now()?;
    match name {
        "spin" => spin(time),
        "sleep" => sleep(time),
        "lock" => take(lock),
        "condition" => condition(time)?,
        "poll" => look(time)?,
        "network" => receive(time)?,
        "pipe" => pipe(time)?,
        "child" => child(time)?,
        "sync" => sync()?,
        "hold" => hold(time),
        "want" => want(),
        other => bail!("no such task: {other}"),
    }
    let [wall, cpu, delay] = Clocks::now()?.since(before);
    Ok(json!([name, wall, cpu, delay]))
}

#[inline(never)]
fn sleep(time: Duration) {
    thread::sleep(time);
}

#[inline(never)]
fn take(lock: &Lock) {
    drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
}

#[inline(never)]
fn look(time: Duration) -> anyhow::Result<()> {
    let (quiet, _open) = UnixStream::pair()?;
    let limit = Timespec::try_from(time)?;
    poll(&mut [PollFd::new(&quiet, PollFlags::IN)], Some(&limit))?;
    Ok(())
}

#[inline(never)]
fn receive(time: Duration) -> anyhow::Result<()> {
    let (mut ours, mut other) = UnixStream::pair()?;
    later(time, move || other.write_all(b"x"));
    Ok(ours.read_exact(&mut [0])?)
}

#[inline(never)]
fn pipe(time: Duration) -> anyhow::Result<()> {
    let (mut reader, mut writer) = std::io::pipe()?;
    later(time, move || writer.write_all(b"x"));
    Ok(reader.read_exact(&mut [0])?)
}

#[inline(never)]
fn child(time: Duration) -> anyhow::Result<()> {
    Command::new("/bin/sleep").arg(time.as_secs_f64().to_string()).status()?;
    Ok(())
}

#[inline(never)]
fn sync() -> anyhow::Result<()> {
    let mut file: File = tempfile::tempfile_in(".")?;
    file.write_all(&[b'x'; 65536])?;
    Ok(file.sync_all()?)
}

#[inline(never)]
fn hold(time: Duration) {
    let held = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    thread::sleep(time);
    drop(held);
}

#[inline(never)]
fn want() {
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner));
}

fn later(time: Duration, act: impl FnOnce() -> std::io::Result<()> + Send + 'static) {
    thread::spawn(move || {
        thread::sleep(time);
        act()
    });
}

fn spin(time: Duration) {
    let end = Clocks::cpu() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    while Clocks::cpu() < end {}
}

fn condition(time: Duration) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel();
    later(time, move || sender.send(()).map_err(std::io::Error::other));
    Ok(receiver.recv()?)
}

/// Of this thread, ns.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    wall: u64,
    cpu: u64,
    delay: u64,
}

impl Clocks {
    fn now() -> anyhow::Result<Self> {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        let delay = schedstat.split(' ').nth(1).context("schedstat has no second number")?.parse()?;
        Ok(Self { wall: nanoseconds(ClockId::Monotonic), cpu: Self::cpu(), delay })
    }

    fn cpu() -> u64 {
        nanoseconds(ClockId::ThreadCPUTime)
    }

    fn since(self, before: Self) -> [u64; 3] {
        [self.wall - before.wall, self.cpu - before.cpu, self.delay - before.delay]
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}
