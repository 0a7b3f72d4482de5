//! The one connection of a transport: what connects, and what ends a connection whose peer no longer reads.
//!
//! In: an address. Out: a stream that lives until it is closed, replaced by the next one, or cut by [`Cutter::cut`].
//! Refuses to know HTTP and TLS.
//!
//! hyper's connection is a task of its own. While it waits for a full send buffer to drain, it learns neither that its
//! request was given up nor that its client is gone, and it would keep socket and body for as long as the peer likes.
//! So the stream below it ends the wait.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use ::http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower_service::Service;

/// Ends the connection that stands. All clones are one.
#[derive(Debug, Clone, Default)]
pub(super) struct Cutter(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl Cutter {
    /// Ends the connection that stands, if any, with a reset: what is unsent leaves the kernel's memory, too.
    pub(super) fn cut(&self) {
        self.replace(None);
    }

    fn replace(&self, next: Option<oneshot::Sender<()>>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *current, next) {
            // A connection that has ended by itself does not listen any more.
            let _ = before.send(());
        }
    }
}

/// Connects over TCP. A new connection cuts the one before: a lane sends one request at a time, so it asks for a new
/// connection only when the one before is of no use.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    cutter: Cutter,
}

impl Connector {
    /// Connects as `tcp` does, with one connection at a time in the hands of `cutter`.
    pub(super) fn new(tcp: HttpConnector, cutter: Cutter) -> Self {
        Self { tcp, cutter }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (connecting, cutter) = (self.tcp.call(address), self.cutter.clone());
        Box::pin(async move {
            let tcp = connecting.await?;
            let (sender, receiver) = oneshot::channel();
            cutter.replace(Some(sender));
            Ok(Stream { tcp, cut: Some(receiver) })
        })
    }
}

/// A TCP stream that can be cut.
#[derive(Debug)]
pub(super) struct Stream {
    tcp: TokioIo<TcpStream>,
    /// `None` once it is cut.
    cut: Option<oneshot::Receiver<()>>,
}

impl Stream {
    /// An error once the stream is cut; else `cx` is woken when that happens.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(cut) = &mut self.cut {
            let Poll::Ready(how) = Pin::new(cut).poll(cx) else { return Ok(()) };
            self.cut = None;
            // Without a cut the transport itself is gone, after its last request: the kernel may deliver the rest.
            if how.is_ok() {
                self.tcp.inner().set_zero_linger()?;
            }
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was given up"))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.connected()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, parts)
    }
}
