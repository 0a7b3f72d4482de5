//! A client on raw sockets: `shape_client PLAN` (a file with the JSON of `plan::Plan`).
//!
//! In: connections and exchanges, exact to the system call. Out: one `Truth` per exchange on stdout, in the order
//! they ended. Knows nothing of the agent.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use integration::plan::{Call, ConnectionPlan, Plan, Segmentation, Truth};
use integration::script::{self, BodyEnd, TUNNEL};
use integration::shape::Ending;
use integration::wire::{Body, Connection, Outgoing, Stream, WriteMode, monotonic_ns};

fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context("usage: shape_client PLAN")?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("read plan {path}"))?;
    let plan: Plan = serde_json::from_str(&text).with_context(|| format!("parse plan {path}"))?;
    let interval = pace(&plan);
    let queue = Mutex::new(plan.connections.into_iter().zip(plan.seed..).collect::<VecDeque<_>>());
    thread::scope(|scope| {
        for _ in 0..plan.concurrency {
            scope.spawn(|| {
                // Taken in its own statement, so that the lock is not held while the connection runs.
                while let Some((connection, seed)) = { queue.lock().expect("no holder panics").pop_front() } {
                    Client { rng: fastrand::Rng::with_seed(seed), seed, interval, plan: connection }.run();
                }
            });
        }
    });
    Ok(())
}

/// Time between two exchanges of one connection, so that all together make the planned rate.
fn pace(plan: &Plan) -> Duration {
    match plan.rate {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(plan.concurrency as f64 / f64::from(rate)),
    }
}

struct Client {
    rng: fastrand::Rng,
    seed: u64,
    interval: Duration,
    plan: ConnectionPlan,
}

impl Client {
    /// Makes all exchanges of the plan over as many connections as they need.
    fn run(&mut self) {
        let calls = std::mem::take(&mut self.plan.calls);
        let mut left = &calls[..];
        let mut connection = None;
        let mut due = Instant::now();
        while !left.is_empty() {
            let mut count = left.len().min(self.plan.depth.max(1));
            if let Some(last) = left[..count].iter().position(|call| call.shape.ends_connection()) {
                count = last + 1;
            }
            let (calls, rest) = left.split_at(count);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due += self.interval;
            connection = self.batch(connection.take(), calls);
            left = rest;
        }
    }

    /// Sends `calls` and reads their answers; gives the connection back if it can carry more.
    fn batch(&mut self, connection: Option<Connection>, calls: &[Call]) -> Option<Connection> {
        let started_ns = monotonic_ns();
        let opened = connection.map_or_else(|| self.open(), Ok);
        let sent = opened.and_then(|connection| Ok((connection.stream.duplicate()?, connection)));
        let (writer, mut connection) = match sent {
            Ok(pair) => pair,
            Err(error) => {
                calls.iter().for_each(|call| report(&unanswered(call, started_ns, &error.to_string())));
                return None;
            }
        };
        let pieces: Vec<Outgoing> =
            calls.iter().flat_map(|call| script::request(call, &self.plan.address.host())).collect();
        if let [call] = calls {
            // What could not be sent shows in the answer that does not come.
            let _ = self.send(&writer, &pieces);
            return receive(connection, call, started_ns);
        }
        thread::scope(|scope| {
            scope.spawn(|| self.send(&writer, &pieces));
            for (index, call) in calls.iter().enumerate() {
                match receive(connection, call, started_ns) {
                    Some(kept) => connection = kept,
                    None => {
                        let closed = "connection ended before this answer";
                        calls[index + 1..]
                            .iter()
                            .for_each(|call| report(&unanswered(call, started_ns, closed)));
                        return None;
                    }
                }
            }
            Some(connection)
        })
    }

    fn open(&mut self) -> io::Result<Connection> {
        let stream = Stream::connect(&self.plan.address, self.plan.source)?;
        self.seed = self.rng.u64(..);
        Ok(Connection::new(stream, &self.plan.reads, &self.plan.writes, self.seed))
    }

    /// Writes `pieces` cut as planned.
    fn send(&mut self, stream: &Stream, pieces: &[Outgoing]) -> io::Result<()> {
        let mode = self.rng.choice(&self.plan.writes).copied().unwrap_or(WriteMode::Write);
        let most = match self.plan.segmentation {
            Segmentation::Whole => return stream.write_all(mode, pieces, &mut self.rng),
            Segmentation::Bytewise => 1,
            Segmentation::Pieces(most) => most.max(1),
        };
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (segment, tail) = rest.split_at(self.rng.usize(1..=most).min(rest.len()));
            stream.write_all(mode, &[Outgoing { bytes: segment.to_vec(), is_body: false }], &mut self.rng)?;
            thread::sleep(Duration::from_micros(self.plan.segment_gap.into()));
            rest = tail;
        }
        Ok(())
    }
}

fn unanswered(call: &Call, started_ns: u64, why: &str) -> Truth {
    Truth {
        id: call.id.clone(),
        status: None,
        request_bytes: call.shape.request_bytes,
        response_bytes: 0,
        handler_ns: None,
        started_ns,
        ended_ns: monotonic_ns(),
        broken: Some(why.to_owned()),
    }
}

/// Reads the answer to `call` and reports it before anything else happens; gives the connection back if it can carry
/// more.
fn receive(mut connection: Connection, call: &Call, started_ns: u64) -> Option<Connection> {
    let mut truth = unanswered(call, started_ns, "");
    let result = match call.shape.ending {
        Ending::ClientLeaves => Err(io::Error::other("client left")),
        Ending::ClientResets(after) => connection
            .await_bytes(after)
            .and_then(|()| answer(&mut connection, call, &mut truth, true))
            .and(Err(io::Error::other("client reset"))),
        _ => answer(&mut connection, call, &mut truth, false),
    };
    truth.ended_ns = monotonic_ns();
    truth.broken = result.as_ref().err().map(ToString::to_string);
    report(&truth);
    if matches!(call.shape.ending, Ending::ClientResets(_)) {
        connection.stream.reset().expect("a socket of ours takes options");
        return None;
    }
    (result.is_ok_and(|may_stay| may_stay) && !call.shape.ends_connection()).then_some(connection)
}

/// Reads heads until the final one, then (unless `head_only`) the body. Says whether the server keeps the connection.
fn answer(connection: &mut Connection, call: &Call, truth: &mut Truth, head_only: bool) -> io::Result<bool> {
    loop {
        let (head, _) = connection.head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let head = script::parse_response(&head, &call.shape.method)?;
        if head.status < 200 && head.status != 101 {
            continue;
        }
        truth.status = Some(head.status);
        truth.handler_ns = head.handler_ns;
        if head_only {
            return Ok(false);
        }
        if head.status == 101 {
            return tunnel(connection).map(|()| false);
        }
        let Body { bytes, broken } = match head.body {
            BodyEnd::Length(length) => connection.length_body(length),
            BodyEnd::Chunked => connection.chunked_body(),
            BodyEnd::Close => connection.rest(),
        };
        truth.response_bytes = bytes;
        return broken.map_or(Ok(!head.is_last), |why| Err(io::Error::other(why)));
    }
}

/// Sends what is no HTTP after a `101`, and waits for its echo.
fn tunnel(connection: &mut Connection) -> io::Result<()> {
    connection.write(&[Outgoing { bytes: TUNNEL.to_vec(), is_body: false }])?;
    let echoed = connection.bytes(TUNNEL.len())?;
    if echoed == TUNNEL { Ok(()) } else { Err(io::Error::other("the tunnel changed its bytes")) }
}

fn report(truth: &Truth) {
    let line = serde_json::to_string(truth).expect("a truth is plain data") + "\n";
    io::stdout().lock().write_all(line.as_bytes()).expect("stdout must take the report");
}
