//! Receivers of remote write that answer as they like: what is sent to them again, in which version, and what is
//! counted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::config::remote_write::RemoteWriteDestination;
use crate::stats::Stats;

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Came {
    version: String,
    content_type: String,
    encoding: String,
    pub(super) body: Vec<u8>,
}

/// Answers requests by turns, each on a connection of its own; sends them to the test.
fn answering(answers: &'static [&'static str]) -> (SocketAddr, mpsc::Receiver<Came>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            sender.send(read(&mut stream).expect("a whole request")).unwrap();
            let (status, headers) = answer.split_once(' ').unwrap_or((answer, ""));
            let last = "connection: close\r\ncontent-length: 0";
            write!(stream, "HTTP/1.1 {status} x\r\n{headers}{last}\r\n\r\n").unwrap();
        }
    });
    (address, receiver)
}

/// `None`: the connection ended within the request.
pub(super) fn read(stream: &mut TcpStream) -> Option<Came> {
    let mut bytes = Vec::new();
    let end = loop {
        let mut piece = [0; 4_096];
        let n = stream.read(&mut piece).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        if let Some(at) = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let field = |name: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        value.unwrap_or_default().to_owned()
    };
    let mut body = bytes[end..].to_vec();
    let length: usize = field("content-length").parse().unwrap();
    let had = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[had..]).ok()?;
    let (version, content_type) = (field("x-prometheus-remote-write-version"), field("content-type"));
    Some(Came { version, content_type, encoding: field("content-encoding"), body })
}

/// Writes once to a receiver that answers so; what came there, what was sent, sent again, and lost.
async fn written(answers: &'static [&'static str]) -> (Vec<Came>, u64, u64, Vec<(&'static str, u64)>) {
    let (address, requests) = answering(answers);
    let url = Some(format!("http://{address}/api/v1/write"));
    let destination = RemoteWriteDestination { url, ..RemoteWriteDestination::default() };
    let export = Export { remote_write: vec![destination], ..Export::default() };
    let mut registry = Registry::new(red::Limits::default());
    registry.record(&span(SpanKind::Server));
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let (span_export, mut exporter) = Plan::new(&export, START).unwrap().start();
    assert!(exporter.writes());
    exporter.write_last(&metrics, START + 1_000_000_000);
    exporter.finish(Duration::from_secs(20)).await;
    let state = span_export.lanes().remove(0);
    assert_eq!((state.signal, state.queued_items), ("metrics", 0));
    let lost = state.lost.into_iter().filter(|(_, n)| *n > 0).collect();
    (requests.try_iter().collect(), state.sent, state.retries, lost)
}

const TAKEN: &str = "204 x-prometheus-remote-write-samples-written: 100000\r\n";

fn versions(came: &[Came]) -> Vec<&str> {
    came.iter().map(|came| came.version.as_str()).collect()
}

#[tokio::test]
async fn version_2_where_it_is_known() {
    let (came, sent, retries, lost) = written(&[TAKEN]).await;
    assert_eq!((versions(&came), retries, lost), (vec!["2.0.0"], 0, vec![]));
    assert!(sent > 50, "{sent}");
    assert_eq!(came[0].content_type, "application/x-protobuf;proto=io.prometheus.write.v2.request");
    assert_eq!(came[0].encoding, "snappy");
    let body = snap::raw::Decoder::new().decompress_vec(&came[0].body).unwrap();
    // Symbols are field 4 of version 2.
    assert_eq!(body[0], 4 << 3 | 2);
}

#[tokio::test]
async fn version_1_where_that_is_all() {
    for first in ["415", "400", "204"] {
        let answers: &[&str] = match first {
            "415" => &["415", "204"],
            "400" => &["400", "200"],
            _ => &["204", "204"],
        };
        let (came, sent, retries, lost) = written(answers).await;
        assert_eq!((versions(&came), retries, lost), (vec!["2.0.0", "0.1.0"], 0, vec![]), "{first}");
        assert!(sent > 50, "{sent}");
        assert_eq!(came[1].content_type, "application/x-protobuf");
        let body = snap::raw::Decoder::new().decompress_vec(&came[1].body).unwrap();
        // Series are field 1 of version 1.
        assert_eq!(body[0], 1 << 3 | 2);
    }
}

#[tokio::test]
async fn what_may_be_sent_again_is() {
    let (came, sent, retries, lost) =
        written(&["503", "500 retry-after: 0\r\n", "429 retry-after: 0\r\n", TAKEN]).await;
    assert_eq!((versions(&came), retries, lost), (vec!["2.0.0"; 4], 3, vec![]));
    assert!(sent > 50 && came.iter().all(|one| one.body == came[0].body), "{sent}");
}

#[tokio::test]
async fn what_is_refused_is_lost_at_once() {
    let (came, sent, retries, lost) = written(&["403"]).await;
    assert_eq!((came.len(), sent, retries), (1, 0, 0));
    assert!(matches!(lost[..], [("refused", n)] if n > 50), "{lost:?}");
    // What was written of a refused request is known.
    let (came, sent, retries, lost) =
        written(&["400 x-prometheus-remote-write-samples-written: 7\r\n"]).await;
    assert_eq!((came.len(), sent, retries), (1, 7, 0));
    assert!(matches!(lost[..], [("rejected", n)] if n > 50), "{lost:?}");
    // Neither version is understood.
    let (came, sent, _, lost) = written(&["400", "400"]).await;
    assert_eq!((versions(&came), sent), (vec!["2.0.0", "0.1.0"], 0));
    assert!(matches!(lost[..], [("refused", n)] if n > 50), "{lost:?}");
}
