//! The kernel programs at a TLS library, by name.
//!
//! In: nothing. Out: [`Program`]. Refuses to know where in a function one goes.
#![forbid(unsafe_code)]

use obi_ebpf::{TLS_PLACE_AT, TLS_PLACE_EXIT, TLS_PLACE_RECEIVE, TLS_PLACE_RECORD_RECEIVED, TLS_PLACE_SEND};
use serde::Serialize;

/// The one that stands for all that have a [`Program::place`], in objects for newer kernels. Metrics name this one.
pub const BYTES: &str = "tls_bytes";

/// A kernel program for a place in a TLS library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A call that one of those below has seen begin is over. First: a program attached before its partner sees ends
    /// without beginnings, which it passes over.
    TlsExit,
    /// `int SSL_read(object, buffer, int size)` begins.
    TlsReadEnter,
    /// `int SSL_read_ex(object, buffer, size_t size, size_t *count)` begins.
    TlsReadExEnter,
    /// `ssize_t _gnutls_recv_int(object, type, buffer, size_t size, …)` begins.
    TlsTypedReadEnter,
    /// `int SSL_write(object, buffer, int size)` begins.
    TlsWriteEnter,
    /// `int SSL_write_ex(object, buffer, size_t size, size_t *count)` begins.
    TlsWriteExEnter,
    /// `ssize_t SSL_sendfile(object, int descriptor, off_t offset, size_t size, int flags)` begins.
    TlsSendfileEnter,
    /// `int gnutls_record_uncork(object, …)` begins.
    TlsUncorkEnter,
    /// `int SSL_do_handshake(object)` begins.
    TlsHandshakeEnter,
    /// `void SSL_free(object)` begins.
    TlsFree,
    /// `int BIO_write(object, buffer, int size)` begins.
    BioWriteEnter,
    /// The program closes a connection; as the next ones, at one instruction that has it all. Attached before those, so
    /// that of a connection whose beginning is seen nothing is missing.
    TlsNowEnd,
    /// A record of data has been received.
    TlsNowReceive,
    /// Data is about to be sent.
    TlsNowSend,
    /// A record is on its way to the socket.
    TlsNowRecord,
    /// A connection begins.
    TlsNowBegin,
    /// rustls has made a record. Before the next one, as the first of all.
    RustlsEncrypted,
    /// rustls is about to make a record.
    RustlsEncrypt,
    /// rustls has received a record of data.
    RustlsReceive,
    /// No TLS: a goroutine of Go's server is about to read a request.
    GoRequest,
    /// A goroutine has been made.
    GoCreate,
    /// A goroutine's call goes by a connection of Go's client.
    GoCall,
    /// Such a connection is about to be written to.
    GoWrite,
    /// A goroutine is about to read the frames of a server's connection over HTTP/2.
    GoReader,
    /// A goroutine runs the handler of a stream.
    GoHandler,
    /// grpc-go is about to start the handler of a stream.
    GoHeaders,
    /// A goroutine sends the head of a stream for the goroutine that has started it.
    GoSender,
    /// A goroutine hands the head of a stream to the one that sends for grpc-go.
    GoItem,
    /// grpc-go is about to send the head of a stream.
    GoHeader,
    /// A context of CPython is about to be freed. Before the next one: what is bound is forgotten in time.
    PythonFree,
    /// A context of CPython has been copied.
    PythonCopy,
    /// uvloop, another loop for CPython, is about to enter a context.
    PythonEnter,
    /// A greenlet is made, in a process of CPython.
    PythonGreenlet,
    /// nginx is about to send over TLS.
    NginxSend,
    /// Node's loop begins what has no number of its own.
    NodePhase,
    /// A Node program is given what was read.
    NodeRead,
    /// Promises of a Node program go on.
    NodeMicrotasks,
    /// The scope of a callback begins in Node. Last: the others say nothing before it.
    NodeScope,
}

impl Program {
    /// All of them, in the order in which they are attached.
    pub const ALL: [Self; 38] = [
        Self::TlsExit,
        Self::TlsReadEnter,
        Self::TlsReadExEnter,
        Self::TlsTypedReadEnter,
        Self::TlsWriteEnter,
        Self::TlsWriteExEnter,
        Self::TlsSendfileEnter,
        Self::TlsUncorkEnter,
        Self::TlsHandshakeEnter,
        Self::TlsFree,
        Self::BioWriteEnter,
        Self::TlsNowEnd,
        Self::TlsNowReceive,
        Self::TlsNowSend,
        Self::TlsNowRecord,
        Self::TlsNowBegin,
        Self::RustlsEncrypted,
        Self::RustlsEncrypt,
        Self::RustlsReceive,
        Self::GoRequest,
        Self::GoCreate,
        Self::GoCall,
        Self::GoWrite,
        Self::GoReader,
        Self::GoHandler,
        Self::GoHeaders,
        Self::GoSender,
        Self::GoItem,
        Self::GoHeader,
        Self::PythonFree,
        Self::PythonCopy,
        Self::PythonEnter,
        Self::PythonGreenlet,
        Self::NginxSend,
        Self::NodePhase,
        Self::NodeRead,
        Self::NodeMicrotasks,
        Self::NodeScope,
    ];

    /// Its name in the object, and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Whether only the objects for newer kernels have it.
    #[must_use]
    pub fn is_modern(self) -> bool {
        self.row().1.contains(&Trait::Modern)
    }

    /// Where it is, for the one program that does the work of several ([`BYTES`]); `None` for others.
    #[must_use]
    pub fn place(self) -> Option<u64> {
        let place = match self {
            Self::TlsExit => TLS_PLACE_EXIT,
            Self::TlsNowSend => TLS_PLACE_SEND,
            Self::TlsNowReceive => TLS_PLACE_RECEIVE,
            Self::RustlsReceive => TLS_PLACE_RECORD_RECEIVED,
            _ => return None,
        };
        Some(u64::from(place) << TLS_PLACE_AT)
    }

    /// Whether it sees a call begin.
    #[must_use]
    pub fn enters(self) -> bool {
        self.row().1.contains(&Trait::Enters)
    }

    /// Whether plain bytes are seen there.
    #[must_use]
    pub fn moves_bytes(self) -> bool {
        self.row().1.contains(&Trait::Moves)
    }

    /// Its name, and what else is to be known of it.
    fn row(self) -> (&'static str, &'static [Trait]) {
        use Trait::{Enters, Modern, Moves};
        match self {
            Self::TlsExit => ("tls_exit", &[]),
            Self::TlsReadEnter => ("tls_read_enter", &[Enters, Moves]),
            Self::TlsReadExEnter => ("tls_read_ex_enter", &[Enters, Moves]),
            Self::TlsTypedReadEnter => ("tls_typed_read_enter", &[Enters, Moves]),
            Self::TlsWriteEnter => ("tls_write_enter", &[Enters, Moves]),
            Self::TlsWriteExEnter => ("tls_write_ex_enter", &[Enters, Moves]),
            Self::TlsSendfileEnter => ("tls_sendfile_enter", &[Enters]),
            Self::TlsUncorkEnter => ("tls_uncork_enter", &[Enters]),
            Self::TlsHandshakeEnter => ("tls_handshake_enter", &[Enters]),
            Self::TlsFree => ("tls_free", &[]),
            Self::BioWriteEnter => ("bio_write_enter", &[]),
            Self::TlsNowEnd => ("tls_now_end", &[]),
            Self::TlsNowReceive => ("tls_now_receive", &[Moves]),
            Self::TlsNowSend => ("tls_now_send", &[Moves]),
            Self::TlsNowRecord => ("tls_now_record", &[]),
            Self::TlsNowBegin => ("tls_now_begin", &[]),
            Self::RustlsEncrypted => ("rustls_encrypted", &[Moves, Modern]),
            Self::RustlsEncrypt => ("rustls_encrypt", &[Modern]),
            Self::RustlsReceive => ("rustls_receive", &[Moves, Modern]),
            Self::GoRequest => ("go_request", &[Modern]),
            Self::GoCreate => ("go_create", &[Modern]),
            Self::GoCall => ("go_call", &[Modern]),
            Self::GoWrite => ("go_write", &[Modern]),
            Self::GoReader => ("go_reader", &[Modern]),
            Self::GoHandler => ("go_handler", &[Modern]),
            Self::GoHeaders => ("go_headers", &[Modern]),
            Self::GoSender => ("go_sender", &[Modern]),
            Self::GoItem => ("go_item", &[Modern]),
            Self::GoHeader => ("go_header", &[Modern]),
            Self::PythonFree => ("python_free", &[Modern]),
            Self::PythonCopy => ("python_copy", &[Modern]),
            Self::PythonEnter => ("python_enter", &[Modern]),
            Self::PythonGreenlet => ("python_greenlet", &[Modern]),
            Self::NginxSend => ("nginx_send", &[Modern]),
            Self::NodePhase => ("node_phase", &[Modern]),
            Self::NodeRead => ("node_read", &[Modern]),
            Self::NodeMicrotasks => ("node_microtasks", &[Modern]),
            Self::NodeScope => ("node_scope", &[Modern]),
        }
    }
}

/// What is to be known of a program beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trait {
    /// It sees a call begin.
    Enters,
    /// Plain bytes are seen there.
    Moves,
    /// Only the objects for newer kernels have it.
    Modern,
}
