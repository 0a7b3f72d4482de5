//! The kernel programs at a TLS library, by name.
//!
//! In: nothing. Out: [`Program`]. Refuses to know where in a function one goes.
#![forbid(unsafe_code)]

use serde::Serialize;

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
    /// No TLS: a goroutine of Go's server is about to read a request.
    GoRequest,
    /// A goroutine has been made.
    GoCreate,
    /// A goroutine's call goes by a connection of Go's client.
    GoCall,
    /// Such a connection is about to be written to.
    GoWrite,
    /// A context of CPython is about to be freed. Before the next one: what is bound is forgotten in time.
    PythonFree,
    /// A context of CPython has been copied.
    PythonCopy,
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
    pub const ALL: [Self; 26] = [
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
        Self::GoRequest,
        Self::GoCreate,
        Self::GoCall,
        Self::GoWrite,
        Self::PythonFree,
        Self::PythonCopy,
        Self::NodePhase,
        Self::NodeRead,
        Self::NodeMicrotasks,
        Self::NodeScope,
    ];

    /// Its name in the object, and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TlsExit => "tls_exit",
            Self::TlsReadEnter => "tls_read_enter",
            Self::TlsReadExEnter => "tls_read_ex_enter",
            Self::TlsTypedReadEnter => "tls_typed_read_enter",
            Self::TlsWriteEnter => "tls_write_enter",
            Self::TlsWriteExEnter => "tls_write_ex_enter",
            Self::TlsSendfileEnter => "tls_sendfile_enter",
            Self::TlsUncorkEnter => "tls_uncork_enter",
            Self::TlsHandshakeEnter => "tls_handshake_enter",
            Self::TlsFree => "tls_free",
            Self::BioWriteEnter => "bio_write_enter",
            Self::TlsNowEnd => "tls_now_end",
            Self::TlsNowReceive => "tls_now_receive",
            Self::TlsNowSend => "tls_now_send",
            Self::TlsNowRecord => "tls_now_record",
            Self::TlsNowBegin => "tls_now_begin",
            Self::GoRequest => "go_request",
            Self::GoCreate => "go_create",
            Self::GoCall => "go_call",
            Self::GoWrite => "go_write",
            Self::PythonFree => "python_free",
            Self::PythonCopy => "python_copy",
            Self::NodePhase => "node_phase",
            Self::NodeRead => "node_read",
            Self::NodeMicrotasks => "node_microtasks",
            Self::NodeScope => "node_scope",
        }
    }

    /// Whether only the objects for newer kernels have it.
    #[must_use]
    pub fn is_modern(self) -> bool {
        matches!(
            self,
            Self::GoRequest
                | Self::GoCreate
                | Self::GoCall
                | Self::GoWrite
                | Self::PythonFree
                | Self::PythonCopy
                | Self::NodePhase
                | Self::NodeRead
                | Self::NodeMicrotasks
                | Self::NodeScope
        )
    }

    /// Whether it sees a call begin.
    #[must_use]
    pub fn enters(self) -> bool {
        matches!(
            self,
            Self::TlsReadEnter
                | Self::TlsReadExEnter
                | Self::TlsTypedReadEnter
                | Self::TlsWriteEnter
                | Self::TlsWriteExEnter
                | Self::TlsSendfileEnter
                | Self::TlsUncorkEnter
                | Self::TlsHandshakeEnter
        )
    }

    /// Whether plain bytes are seen there.
    #[must_use]
    pub fn moves_bytes(self) -> bool {
        matches!(
            self,
            Self::TlsReadEnter
                | Self::TlsReadExEnter
                | Self::TlsTypedReadEnter
                | Self::TlsWriteEnter
                | Self::TlsWriteExEnter
                | Self::TlsNowReceive
                | Self::TlsNowSend
        )
    }
}
