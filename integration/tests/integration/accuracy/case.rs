//! The rows of the accuracy gate between raw ends, as data.
//!
//! In: nothing. Out: what each row's server and client do. One way each, so that a failure names it.

use std::path::Path;

use integration::hook::Passage;
use integration::plan::{Address, Call, ConnectionPlan, Segmentation, ServerPlan, Serving};
use integration::shape::{Ending, Framing, RequestFraming, Shape};
use integration::wire::{ReadMode, WriteMode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::gate;

/// One row.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// How its bytes pass.
    pub(super) passage: Passage,
    shapes: fn() -> Vec<Shape>,
    family: Family,
    serving: Serving,
    /// Requests that are sent before their answers are read.
    depth: usize,
    segmentation: Segmentation,
    /// Both ends read so.
    reads: &'static [ReadMode],
    /// Both ends write so.
    writes: &'static [WriteMode],
}

/// What it runs over.
#[derive(Debug, Clone, Copy)]
enum Family {
    V4,
    V6,
    Multipath,
    Unix,
}

/// A row that differs from [`PLAIN`] in what is named.
macro_rules! case {
    ($name:literal, $shapes:expr $(, $field:ident: $value:expr)* $(,)?) => {
        Case { name: $name, shapes: $shapes, $($field: $value,)* ..PLAIN }
    };
}

const PLAIN: Case = Case {
    name: "",
    passage: Passage::Call,
    shapes: mixed,
    family: Family::V4,
    serving: Serving::Thread,
    depth: 1,
    segmentation: Segmentation::Whole,
    reads: &[ReadMode::Read],
    writes: &[WriteMode::Write],
};

/// All ways to read but `splice`, which some sets do not see.
const READS: &[ReadMode] = &[
    ReadMode::Read,
    ReadMode::Recv,
    ReadMode::Tiny,
    ReadMode::Readv,
    ReadMode::Recvmsg,
    ReadMode::Recvmmsg,
    ReadMode::Peek,
    ReadMode::WaitAll,
    ReadMode::Truncate,
];

pub(super) const CASES: &[Case] = &[
    case!("keep-alive", || vec![Shape::default(); 8]),
    case!("HEAD", || vec![Shape { method: "HEAD".into(), response_bytes: 5_000, ..Shape::default() }; 4]),
    case!("chunked both ways", || vec![chunked(3_000); 4]),
    case!("close-delimited", || {
        let close = Shape { framing: Framing::Close, response_bytes: 3_000, ..Shape::default() };
        vec![close.clone(), Shape { response_bytes: 0, ..close.clone() }, Shape { old: true, ..close }]
    }),
    case!("large bodies", || vec![large(RequestFraming::Length), large(RequestFraming::Chunked)]),
    case!("large heads", || [3_000, 9_000, 60_000].map(long_head).into(), passage: Passage::LongCall),
    case!("interim responses", || vec![Shape { interim: 2, ..Shape::default() }; 3]),
    case!("heads byte by byte", || vec![Shape { head_pieces: 0, ..Shape::default() }; 3],
        segmentation: Segmentation::Bytewise),
    case!("pieces", mixed, segmentation: Segmentation::Pieces(700)),
    case!("pipelined", || vec![Shape::default(); 50], depth: 50),
    case!("pipelined and mixed", || [mixed(), mixed(), mixed()].concat(), depth: 12,
        segmentation: Segmentation::Pieces(900)),
    case!("broken", broken),
    case!("upgrade", || vec![Shape { status: 101, ending: Ending::Upgrade, ..Shape::default() }; 2]),
    case!("forked after accept", mixed, serving: Serving::Fork),
    case!("moved descriptor", mixed, serving: Serving::Dup2),
    case!("socket map", mixed, serving: Serving::Sockmap, writes: &[WriteMode::Write, WriteMode::Sendfile]),
    case!("recv", mixed, reads: &[ReadMode::Recv]),
    case!("tiny reads", mixed, reads: &[ReadMode::Tiny]),
    case!("readv", mixed, reads: &[ReadMode::Readv]),
    case!("recvmsg", mixed, reads: &[ReadMode::Recvmsg]),
    case!("recvmmsg", mixed, reads: &[ReadMode::Recvmmsg], depth: 4),
    case!("peek", mixed, reads: &[ReadMode::Peek]),
    case!("wait for all", mixed, reads: &[ReadMode::WaitAll]),
    case!("truncate", mixed, reads: &[ReadMode::Truncate]),
    case!("splice out", mixed, reads: &[ReadMode::Splice], passage: Passage::SpliceFromTcp),
    case!("send", mixed, writes: &[WriteMode::Send]),
    case!("send more", mixed, writes: &[WriteMode::More]),
    case!("writev", mixed, writes: &[WriteMode::Writev]),
    case!("sendmsg", mixed, writes: &[WriteMode::Sendmsg]),
    case!("sendmmsg", mixed, writes: &[WriteMode::Sendmmsg]),
    case!("sendmmsg of a hundred", || vec![Shape::default(); 100], depth: 100,
        writes: &[WriteMode::Sendmmsg], passage: Passage::LongCall),
    case!("sendmmsg of many sizes", || {
        let four = || [chunked(40_000), long_head(2_000), chunked(300), chunked(90_000)];
        [four(), four(), four()].concat()
    }, depth: 8, writes: &[WriteMode::Sendmmsg], passage: Passage::LongCall),
    case!("sendfile", mixed, writes: &[WriteMode::Sendfile]),
    case!("splice in", mixed, writes: &[WriteMode::Splice]),
    case!("IPv6", mixed, family: Family::V6, reads: READS, writes: &WriteMode::ALL),
    case!("Multipath TCP", || [mixed(), mixed(), mixed()].concat(), family: Family::Multipath, depth: 3,
        reads: READS, writes: &WriteMode::ALL, passage: Passage::Multipath),
    case!("unix", mixed, family: Family::Unix, passage: Passage::UnixCall),
    case!("unix, every way", || [mixed(), mixed(), mixed()].concat(), family: Family::Unix, depth: 3,
        reads: READS, writes: &WriteMode::ALL, passage: Passage::UnixCall),
    case!("unix, splice out", mixed, family: Family::Unix, reads: &[ReadMode::Splice],
        passage: Passage::SpliceFromUnix),
];

impl Case {
    /// Whether this kernel has such sockets.
    pub(super) fn has_sockets(&self) -> bool {
        !matches!(self.family, Family::Multipath) || has_multipath()
    }

    /// What the row's server does; over a unix socket it listens at `socket`.
    pub(super) fn server(&self, socket: &Path, seed: u64) -> ServerPlan {
        let address = match self.family {
            Family::V4 => Address::loopback(0),
            Family::V6 => Address::Tcp((std::net::Ipv6Addr::LOCALHOST, 0).into()),
            Family::Multipath => Address::Multipath((std::net::Ipv4Addr::LOCALHOST, 0).into()),
            Family::Unix => Address::Unix(socket.to_owned()),
        };
        ServerPlan {
            seed,
            address,
            serving: self.serving,
            batch: self.depth > 1,
            reads: self.reads.to_vec(),
            writes: self.writes.to_vec(),
            ..ServerPlan::default()
        }
    }

    /// Two connections that make the row's exchanges at the same time, and one that keeps the client alive.
    pub(super) fn connections(&self, address: &Address) -> Vec<ConnectionPlan> {
        let connection = || ConnectionPlan {
            depth: self.depth,
            segmentation: self.segmentation,
            reads: self.reads.to_vec(),
            writes: self.writes.to_vec(),
            ..ConnectionPlan::new(address, (self.shapes)().into_iter().map(Call::new).collect())
        };
        vec![connection(), connection(), gate::lasting(address)]
    }
}

/// Some kernels are built without Multipath TCP, Debian's 5.10 among them. Any other refusal is for the row to fail by.
fn has_multipath() -> bool {
    let (stream, no_flags) = (SocketType::STREAM, SocketFlags::empty());
    let socket = socket_with(AddressFamily::INET, stream, no_flags, Some(ipproto::MPTCP));
    !matches!(socket, Err(Errno::PROTONOSUPPORT))
}

/// A little of everything that leaves the connection open.
fn mixed() -> Vec<Shape> {
    vec![
        Shape::default(),
        chunked(2_000),
        Shape {
            method: "PUT".into(),
            status: 503,
            request_framing: RequestFraming::Length,
            request_bytes: 20_000,
            response_bytes: 20_000,
            pieces: 3,
            ..Shape::default()
        },
        Shape { method: "HEAD".into(), status: 404, ..Shape::default() },
        Shape { status: 204, response_bytes: 0, ..Shape::default() },
    ]
}

fn chunked(bytes: u64) -> Shape {
    Shape {
        method: "POST".into(),
        framing: Framing::Chunked,
        response_bytes: bytes,
        request_framing: RequestFraming::Chunked,
        request_bytes: bytes,
        trailers: true,
        pieces: 2,
        ..Shape::default()
    }
}

fn large(framing: RequestFraming) -> Shape {
    Shape {
        method: "PUT".into(),
        framing: if framing == RequestFraming::Chunked { Framing::Chunked } else { Framing::Length },
        response_bytes: 1 << 20,
        request_framing: framing,
        request_bytes: 1 << 20,
        ..Shape::default()
    }
}

fn long_head(filler: u32) -> Shape {
    Shape { filler, ..Shape::default() }
}

fn broken() -> Vec<Shape> {
    let endings = [
        Ending::ServerCloses(0),
        Ending::ServerCloses(2_500),
        Ending::ServerResets(1_000),
        Ending::ClientResets(9_000),
    ];
    // More than the socket buffers hold: otherwise the server has sent all of it before the reset.
    endings.map(|ending| Shape { response_bytes: 12 << 20, ending, ..Shape::default() }).into()
}
