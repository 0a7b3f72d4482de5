//! A server that answers exactly as each request asks: `shape_server PLAN` (JSON of `plan::ServerPlan`).
//!
//! In: requests of the protocol in `shape.rs`. Out: answers of that shape by the planned system calls; `ready PORT`
//! on stdout; one `Truth` per exchange in the log. Knows nothing of the agent.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use integration::plan::{ServerPlan, Serving, Truth};
use integration::script::{self, BodyEnd, TUNNEL};
use integration::shape::{Ending, Shape};
use integration::wire::fork::{Fork, fork};
use integration::wire::sockmap::Sockmap;
use integration::wire::{Connection, Listener, Outgoing, Stream, monotonic_ns};

fn main() -> anyhow::Result<()> {
    let plan = std::env::args().nth(1).context("usage: shape_server PLAN")?;
    let plan: Arc<ServerPlan> = Arc::new(serde_json::from_str(&plan).context("plan of the server")?);
    let log = plan.log.as_ref().map(|path| OpenOptions::new().append(true).create(true).open(path));
    let log = log.transpose().context("open the log")?.map(Arc::new);
    let listener = Listener::bind(&plan.address, plan.reuse_port).context("listen")?;
    let sockmap =
        (plan.serving == Serving::Sockmap).then(Sockmap::new).transpose().context("make a socket map")?;
    println!("ready {}", listener.port()?);
    for seed in plan.seed.. {
        let stream = listener.accept().context("accept")?;
        if let Some(sockmap) = &sockmap {
            sockmap.insert(&stream).context("put a connection into the socket map")?;
        }
        let service = Service { plan: Arc::clone(&plan), log: log.clone() };
        match plan.serving {
            Serving::Thread | Serving::Dup2 | Serving::Sockmap => {
                drop(thread::spawn(move || service.serve(stream, seed)))
            }
            Serving::Fork if fork()? == Fork::Child => {
                service.serve(stream, seed);
                return Ok(());
            }
            Serving::Fork => {}
        }
    }
    Ok(())
}

struct Service {
    plan: Arc<ServerPlan>,
    log: Option<Arc<File>>,
}

/// Exchanges whose answers are not written yet.
#[derive(Default)]
struct Batch {
    pieces: Vec<Outgoing>,
    truths: Vec<Truth>,
}

impl Service {
    /// Serves one connection to its end. A client that breaks off is part of the work, not an error.
    fn serve(&self, stream: Stream, seed: u64) {
        let mut connection = Connection::new(stream, &self.plan.reads, &self.plan.writes, seed);
        let mut batch = Batch::default();
        let result = self.exchanges(&mut connection, &mut batch);
        let broken = result.as_ref().err().map(ToString::to_string);
        if let Ok(Some(after)) = result {
            // Nothing more can be done for a connection that is ending anyway.
            let _ = match after {
                Ending::ServerResets(_) => connection.stream.reset(),
                _ => Ok(()),
            };
        }
        for truth in batch.truths {
            self.record(Truth { broken: broken.clone().or(truth.broken), ..truth });
        }
    }

    /// Answers requests until one of them ends the connection; says how.
    fn exchanges(&self, connection: &mut Connection, batch: &mut Batch) -> io::Result<Option<Ending>> {
        while let Some((head, started_ns)) = connection.head()? {
            let head = script::parse_request(&head)?;
            let (id, shape) = Shape::parse(&head.method, &head.target)
                .ok_or_else(|| io::Error::other(format!("no workload target: {}", head.target)))?;
            if self.plan.serving == Serving::Dup2 {
                connection.stream.move_descriptor()?;
            }
            if head.expects_continue {
                self.flush(connection, batch)?;
                connection.write(&[plain(b"HTTP/1.1 100 Continue\r\n\r\n")])?;
            }
            let body = match head.body {
                BodyEnd::Length(length) => connection.length_body(length),
                _ => connection.chunked_body(),
            };
            batch.truths.push(Truth {
                id,
                status: None,
                request_bytes: body.bytes,
                response_bytes: 0,
                handler_ns: None,
                started_ns,
                ended_ns: 0,
                broken: body.broken.clone(),
            });
            if let Some(broken) = body.broken {
                return Err(io::Error::other(broken));
            }
            self.answer(connection, batch, &shape, started_ns)?;
            if shape.ending == Ending::Upgrade {
                tunnel(connection)?;
            }
            if head.is_last || shape.ends_connection() {
                return Ok(Some(shape.ending));
            }
        }
        Ok(None)
    }

    /// Writes the answer, or keeps it for the next write when the next request is here already.
    fn answer(
        &self,
        connection: &mut Connection,
        batch: &mut Batch,
        shape: &Shape,
        begun: u64,
    ) -> io::Result<()> {
        if shape.delay > 0 {
            self.flush(connection, batch)?;
            thread::sleep(Duration::from_micros(shape.delay.into()));
        }
        let handler_ns = monotonic_ns() - begun;
        let heads = script::response_heads(shape, handler_ns);
        let body = script::response_body(shape);
        let truth = batch.truths.last_mut().expect("the caller has just pushed it");
        truth.status = Some(shape.status);
        truth.handler_ns = Some(handler_ns);
        truth.response_bytes = match shape.ending {
            Ending::ServerCloses(after) | Ending::ServerResets(after) => after.min(shape.body_bytes()),
            _ => shape.body_bytes(),
        };
        let may_wait = self.plan.batch && connection.has_buffered() && !shape.ends_connection();
        let is_simple = heads.len() == 1 && body.len() <= 1;
        if is_simple {
            batch.pieces.extend(heads.into_iter().chain(body.into_iter().flatten()));
        } else {
            for head in heads {
                batch.pieces.push(head);
                self.write(connection, batch)?;
            }
            let last = body.len().saturating_sub(1);
            for (index, piece) in body.into_iter().enumerate() {
                if index == last && last > 0 {
                    self.plan.gate.as_deref().map_or(Ok(()), await_file)?;
                }
                batch.pieces.extend(piece);
                self.write(connection, batch)?;
                thread::sleep(Duration::from_micros(if index < last { shape.gap.into() } else { 0 }));
            }
        }
        if may_wait { Ok(()) } else { self.flush(connection, batch) }
    }

    fn write(&self, connection: &mut Connection, batch: &mut Batch) -> io::Result<()> {
        connection.write(&std::mem::take(&mut batch.pieces))
    }

    /// Writes what is kept back; from here on its exchanges are whole.
    fn flush(&self, connection: &mut Connection, batch: &mut Batch) -> io::Result<()> {
        self.write(connection, batch)?;
        let ended_ns = monotonic_ns();
        let whole = batch.truths.iter().take_while(|truth| truth.status.is_some()).count();
        for truth in batch.truths.drain(..whole) {
            self.record(Truth { ended_ns, ..truth });
        }
        Ok(())
    }

    fn record(&self, truth: Truth) {
        let Some(log) = &self.log else { return };
        let line = serde_json::to_string(&truth).expect("a truth is plain data") + "\n";
        // One write per line, so that processes that share the file do not mix.
        (&**log).write_all(line.as_bytes()).expect("the log of the server must be writable");
    }
}

fn plain(bytes: &[u8]) -> Outgoing {
    Outgoing { bytes: bytes.to_vec(), is_body: false }
}

/// Echoes what follows a `101`.
fn tunnel(connection: &mut Connection) -> io::Result<()> {
    let bytes = connection.bytes(TUNNEL.len())?;
    connection.write(&[plain(&bytes)])
}

/// Waits for the file `path`; a file beside it, ending in `waiting`, shows that it waits.
fn await_file(path: &Path) -> io::Result<()> {
    File::create(path.with_extension("waiting"))?;
    while !path.try_exists()? {
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
