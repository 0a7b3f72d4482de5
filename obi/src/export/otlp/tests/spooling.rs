//! Lanes with a spool: what is not taken waits on the disk, over starts and kills, and one destination does not wait
//! for another.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use tempfile::TempDir;

use super::super::retry::LONGEST_PAUSE;
use super::remote_write::{Came, read};
use super::*;
use crate::config::spool::{Mode, Spool};

/// Takes spans over HTTP while it is open; keeps their ids.
#[derive(Clone)]
struct Backend {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u64>>>,
    status: Arc<Mutex<u16>>,
}

impl Backend {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let backend = Self { address, seen: Arc::default(), status: Arc::new(Mutex::new(200)) };
        let own = backend.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A killed agent cuts its requests.
                let Some(Came { body, .. }) = read(&mut stream) else { continue };
                let status = *own.status.lock().unwrap();
                if status == 200 {
                    own.seen.lock().unwrap().extend(ids(&body));
                }
                let head = "connection: close\r\ncontent-length: 0";
                let _ = write!(stream, "HTTP/1.1 {status} x\r\n{head}\r\n\r\n");
            }
        });
        backend
    }

    fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    fn seen(&self) -> Vec<u64> {
        self.seen.lock().unwrap().clone()
    }

    async fn has(&self, n: usize) -> Vec<u64> {
        // What was refused comes again after a pause, which may be the longest.
        let begun = Instant::now();
        while begun.elapsed() < LONGEST_PAUSE + Duration::from_secs(10) {
            if self.seen().into_iter().collect::<BTreeSet<_>>().len() >= n {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.seen()
    }
}

fn ids(body: &[u8]) -> Vec<u64> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    let spans = scopes.flat_map(|scope| scope.spans);
    spans.map(|span| u64::from_be_bytes(span.span_id.try_into().unwrap())).collect()
}

fn export(folder: &Path, mode: Mode, backends: &[(&str, SocketAddr)]) -> Export {
    let destination = |(name, address): &(&str, SocketAddr)| OtlpDestination {
        name: (*name).to_owned(),
        endpoint: Some(format!("http://{address}")),
        signals: vec![Signal::Traces],
        batch_delay: Duration::from_millis(10),
        ..OtlpDestination::default()
    };
    let spool = Spool { bytes: 64 << 20, directory: folder.to_owned(), mode, ..Spool::default() };
    Export { otlp: backends.iter().map(destination).collect(), spool, ..Export::default() }
}

fn push(span_export: &mut SpanExport, ids: std::ops::Range<u64>) {
    for id in ids {
        let mut span = span(SpanKind::Server);
        span.span_id = id.to_be_bytes();
        let kept = span_export.sample(&mut span).expect("no sampling");
        span_export.push(&span, kept);
    }
    span_export.flush();
}

/// An address where no process listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn lost(lane: &stats::Lane) -> u64 {
    lane.lost.iter().map(|(_, n)| n).sum()
}

#[tokio::test]
async fn what_is_left_at_the_end_comes_after_the_next_start() {
    let (folder, backend) = (TempDir::new().unwrap(), Backend::start());
    backend.answer(503);
    let export = export(folder.path(), Mode::Spill, &[("b", backend.address)]);
    let (mut span_export, exporter) = Plan::new(&export, 1).unwrap().start();
    push(&mut span_export, 0..2_000);
    let accounts = span_export.accounts.clone();
    drop(span_export);
    exporter.finish(Duration::from_secs(5)).await;
    let lane = accounts[0].state();
    let spooled = lane.spooled.unwrap();
    assert_eq!((lane.sent, lost(&lane), lane.queued_items, spooled.items), (0, 0, 0, 2_000));
    drop(accounts);

    backend.answer(200);
    let (mut span_export, exporter) = Plan::new(&export, 1).unwrap().start();
    push(&mut span_export, 2_000..2_100);
    let seen: BTreeSet<u64> = backend.has(2_100).await.into_iter().collect();
    assert_eq!(seen, (0..2_100).collect());
    let accounts = span_export.accounts.clone();
    drop(span_export);
    exporter.finish(Duration::from_secs(5)).await;
    let lane = accounts[0].state();
    let spooled = lane.spooled.unwrap();
    assert_eq!((lane.sent, lost(&lane), lane.queued_items), (2_100, 0, 0));
    assert_eq!((spooled.items, spooled.bytes, spooled.restored, spooled.delivered), (0, 0, 2_000, 2_000));
}

/// With every request on the disk before it is sent, a kill costs nothing that lay there for a second.
#[test]
fn a_kill_costs_nothing_that_is_on_the_disk() {
    let (folder, backend) = (TempDir::new().unwrap(), Backend::start());
    backend.answer(503);
    let export = export(folder.path(), Mode::Always, &[("b", backend.address)]);
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for round in 0..3 {
        let killed = runtime();
        killed.block_on(async {
            let (mut span_export, exporter) = Plan::new(&export, 1).unwrap().start();
            push(&mut span_export, round * 100..(round + 1) * 100);
            let mut spooled = 0;
            for _ in 0..500 {
                spooled = span_export.lanes()[0].spooled.unwrap().items;
                if spooled == (round + 1) * 100 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(spooled, (round + 1) * 100);
            // Neither of them learns of its end.
            std::mem::forget(span_export);
            std::mem::forget(exporter);
        });
        killed.shutdown_timeout(Duration::from_secs(1));
        // A killed process holds no lock.
        std::fs::remove_file(folder.path().join("lock")).unwrap();
    }
    backend.answer(200);
    runtime().block_on(async {
        let (span_export, _exporter) = Plan::new(&export, 1).unwrap().start();
        let mut seen = backend.has(300).await;
        // What was on its way at a kill may have been read by now.
        assert!(seen.len() <= 600, "{}", seen.len());
        let mut known = BTreeSet::new();
        seen.retain(|id| known.insert(*id));
        assert_eq!(seen, (0..300).collect::<Vec<u64>>(), "in order");
        assert_eq!(span_export.lanes()[0].spooled.unwrap().restored, 300);
    });
}

#[tokio::test]
async fn one_that_is_down_holds_up_nobody() {
    let (folder, backend) = (TempDir::new().unwrap(), Backend::start());
    let down = Backend::start();
    down.answer(429);
    let both = export(folder.path(), Mode::Spill, &[("up", backend.address), ("down", down.address)]);
    let (mut span_export, exporter) = Plan::new(&both, 1).unwrap().start();
    push(&mut span_export, 0..500);
    assert_eq!(backend.has(500).await.len(), 500);
    // After some seconds everything for the other one is on the disk.
    for _ in 0..1_000 {
        if span_export.lanes()[1].spooled.unwrap().items == 500 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    push(&mut span_export, 500..600);
    assert_eq!(backend.has(600).await.len(), 600);
    // The lane hears of it a little later.
    for _ in 0..500 {
        if span_export.lanes()[0].sent == 600 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lanes = span_export.lanes();
    assert_eq!((lanes[0].sent, lanes[0].spooled.unwrap().written), (600, 0), "health needs no disk");
    assert_eq!((lost(&lanes[1]), lanes[1].sent), (0, 0));
    down.answer(200);
    let seen: BTreeSet<u64> = down.has(600).await.into_iter().collect();
    assert_eq!(seen, (0..600).collect());
    drop(span_export);
    exporter.finish(Duration::from_secs(5)).await;
}

/// A reload goes on with the same files; one that takes a destination away leaves them, and says so.
#[tokio::test]
async fn a_new_configuration_goes_on_with_what_is_there() {
    let (folder, backend) = (TempDir::new().unwrap(), Backend::start());
    backend.answer(500);
    let with = |backends: &[(&str, SocketAddr)]| export(folder.path(), Mode::Always, backends);
    let plan = Plan::new(&with(&[("b", backend.address), ("gone", nowhere())]), 1).unwrap();
    let accounts = plan.accounts().clone();
    let (mut span_export, first) = plan.start();
    push(&mut span_export, 0..100);
    let plan = Plan::after(accounts, &with(&[("b", backend.address)])).unwrap();
    let (next, second) = plan.start();
    span_export.replace(next);
    first.finish(Duration::from_secs(5)).await;
    push(&mut span_export, 100..150);
    // A 500 is not to be sent again over OTLP: only what had been taken until now is refused.
    backend.answer(200);
    let state = |span_export: &SpanExport| -> Vec<(String, u64, u64)> {
        let spooled = |lane: &stats::Lane| lane.spooled.map_or(0, |spooled| spooled.items);
        span_export
            .lanes()
            .iter()
            .map(|lane| (lane.destination.to_string(), lane.sent + lost(lane), spooled(lane)))
            .collect()
    };
    for _ in 0..500 {
        if state(&span_export)[0].1 == 150 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(state(&span_export), [("b".to_owned(), 150, 0), ("gone".to_owned(), 0, 100)]);
    drop(span_export);
    second.finish(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_stops_nothing() {
    let (folder, backend) = (TempDir::new().unwrap(), Backend::start());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let export = export(&file, Mode::Always, &[("b", backend.address)]);
    let (mut span_export, exporter) = Plan::new(&export, 1).unwrap().start();
    assert_eq!((span_export.is_spool_usable(), span_export.lanes()[0].spooled), (Some(false), None));
    push(&mut span_export, 0..10);
    assert_eq!(backend.has(10).await.len(), 10);
    drop(span_export);
    exporter.finish(Duration::from_secs(5)).await;
}
