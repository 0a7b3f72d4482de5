//! Destinations that hang: sockets and memory of requests that were given up.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::super::lane::{Lane, Settings};
use super::super::meter::Meter;
use super::super::queue::{Limits, PAYLOAD_BYTES, Queue};
use super::super::retry::Answer;
use super::super::transport::Transport;
use super::*;
use crate::config::export::{Compression, Protocol};

/// Listens with a small window, so that a large body fits into no buffer.
fn listen() -> (TcpListener, SocketAddr) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sockets that lead to `to` and are not closed, as the kernel lists them.
fn open_sockets(to: SocketAddr) -> usize {
    const TIME_WAIT: &str = "06";
    let peer = format!(":{:04X}", to.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_open = |line: &&str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.len() > 3 && columns[2].ends_with(&peer) && columns[3] != TIME_WAIT
    };
    table.lines().filter(is_open).count()
}

fn to(address: SocketAddr, protocol: Protocol) -> (Transport, Meter, Accounts) {
    to_within(address, protocol, Duration::from_millis(300))
}

fn to_within(address: SocketAddr, protocol: Protocol, timeout: Duration) -> (Transport, Meter, Accounts) {
    let destination = OtlpDestination {
        endpoint: Some(format!("http://{address}")),
        protocol,
        compression: Compression::None,
        timeout,
        ..OtlpDestination::default()
    };
    let mut accounts = Accounts::new(1);
    let name: Arc<str> = "d".into();
    let transport = transport(&destination, Signal::Traces, &name).unwrap().unwrap();
    let meter = accounts.meter(&name, Signal::Traces);
    (transport, meter, accounts)
}

/// Waits until the kernel shows no socket to `address`: the connection's task needs a moment to end.
async fn closed(address: SocketAddr) -> bool {
    for _ in 0..200 {
        if open_sockets(address) == 0 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_reads_is_closed_at_the_timeout() {
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let (listener, address) = listen();
        let (mut transport, meter, accounts) = to(address, protocol);
        // Two payloads are one body of its own, beside what is queued.
        let batch = vec![Payload::new(vec![0; PAYLOAD_BYTES / 2], 1); 2];
        let mut peers = Vec::new();
        for attempt in 1..=4 {
            let sending =
                timeout_at(Instant::now() + Duration::from_millis(300), transport.send(&batch, &meter));
            let answer = sending.await;
            assert!(answer.is_err(), "{protocol:?}: nobody answers, but {answer:?}");
            peers.push(listener.accept().unwrap());
            assert_eq!(open_sockets(address), 1, "{protocol:?}: attempt {attempt}");
            transport.reset();
            assert!(closed(address).await, "{protocol:?}: attempt {attempt}: {} open", open_sockets(address));
            assert_eq!(accounts.all[0].state().attempt_bytes, 0);
        }
    }
}

/// The kernel's own limit is far away here: it is the lane that closes what has not answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_gives_up_leaves_no_socket() {
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let (_listener, address) = listen();
        let (transport, meter, accounts) = to_within(address, protocol, Duration::from_secs(600));
        let meter = Arc::new(meter);
        let limits = Limits { items: 1_000, bytes: 1 << 30 };
        let (queue, receiver) = Queue::new(Arc::clone(&meter), limits);
        let (timeout, retry_for) = (Duration::from_millis(300), Duration::ZERO);
        let settings = Settings { batch_items: 1, batch_delay: Duration::ZERO, timeout, retry_for };
        let (left_over, warned, rests, spooling) = Default::default();
        let name = "d traces".to_owned();
        let lane = Lane { receiver, transport, meter, settings, name, left_over, warned, rests, spooling };
        let running = tokio::spawn(lane.run());
        queue.push(&Payload::new(vec![0; PAYLOAD_BYTES], 7));
        let lost = || accounts.all[0].state().lost.iter().map(|(_, n)| n).sum::<u64>();
        for _ in 0..500 {
            if lost() > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(lost(), 7, "{protocol:?}: given up");
        assert!(closed(address).await, "{protocol:?}: {} open", open_sockets(address));
        assert!(!running.is_finished(), "{protocol:?}: the lane waits for more");
        drop(queue);
        running.await.unwrap();
    }
}

/// A server that answers before it has read leaves its connection blocked: the next request is the end of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_ends_the_one_before() {
    let (listener, address) = listen();
    let server = thread::spawn(move || {
        let mut kept = Vec::new();
        for _ in 0..4 {
            let (mut peer, _) = listener.accept().unwrap();
            // An answer ahead of the request would be an error.
            peer.read_exact(&mut [0; 16]).unwrap();
            peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            kept.push(peer);
        }
        kept
    });
    let (transport, meter, _) = to(address, Protocol::Http);
    let batch = [Payload::new(vec![0; PAYLOAD_BYTES], 1)];
    for attempt in 1..=4 {
        let answer = transport.send(&batch, &meter).await;
        assert_eq!(answer, Answer::Accepted { rejected: 0, message: String::new() }, "attempt {attempt}");
    }
    let _kept = server.join().unwrap();
    let mut n_open = usize::MAX;
    for _ in 0..200 {
        n_open = open_sockets(address);
        if n_open <= 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(n_open <= 1, "{n_open} connections to one destination");
    drop(transport);
    assert!(closed(address).await, "{} open after the transport's end", open_sockets(address));
}

/// The copy of a body that stands beside the queue counts while it is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_counts_its_memory() {
    let check = async |protocol: Protocol, n_payloads: usize, expected: u64| {
        let (_listener, address) = listen();
        let (transport, meter, accounts) = to(address, protocol);
        let batch = vec![Payload::new(vec![0; 1_000], 1); n_payloads];
        let mut sending = Box::pin(transport.send(&batch, &meter));
        let waited = tokio::time::timeout(Duration::from_millis(20), &mut sending).await;
        assert!(waited.is_err());
        assert_eq!(accounts.all[0].state().attempt_bytes, expected, "{protocol:?} {n_payloads}");
        drop(sending);
        assert_eq!(accounts.all[0].state().attempt_bytes, 0, "{protocol:?} {n_payloads}");
    };
    check(Protocol::Http, 1, 0).await;
    check(Protocol::Http, 2, 2_000).await;
    check(Protocol::Grpc, 1, 1_000).await;
}
