//! One connected socket, read and written by a chosen system call.
//!
//! In: bytes and a mode. Out: bytes. Refuses to know HTTP.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::io::{read, readv, write, writev};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, ipproto, recv, recvmsg, send, sendmsg, socket_with, sockopt,
};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::multiple::{self, recvmmsg, sendmmsg};
use super::{ReadMode, WriteMode};
use crate::patience::patience;
use crate::plan::Address;

/// Most bytes that go through a pipe at once: its default capacity.
const PIPE_BYTES: usize = 64 * 1024;
/// Nothing in a workload takes this long; a stuck peer becomes an error.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A socket of the kind that an address is of.
pub(super) fn socket_for(address: &Address) -> io::Result<OwnedFd> {
    let (family, protocol) = match address {
        Address::Tcp(SocketAddr::V4(_)) => (AddressFamily::INET, None),
        Address::Tcp(SocketAddr::V6(_)) => (AddressFamily::INET6, None),
        Address::Multipath(SocketAddr::V4(_)) => (AddressFamily::INET, Some(ipproto::MPTCP)),
        Address::Multipath(SocketAddr::V6(_)) => (AddressFamily::INET6, Some(ipproto::MPTCP)),
        Address::Unix(_) => (AddressFamily::UNIX, None),
    };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, protocol)?)
}

/// Bytes to send, and whether they are (part of) a body.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Body bytes may go by `sendfile` or `splice`.
    pub is_body: bool,
}

/// A connected stream socket.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    /// Connects to `address`, from `source` if given.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn connect(address: &Address, source: Option<SocketAddr>) -> io::Result<Self> {
        let socket = socket_for(address)?;
        match address {
            Address::Tcp(address) | Address::Multipath(address) => {
                if let Some(source) = source {
                    sockopt::set_socket_reuseaddr(&socket, true)?;
                    bind(&socket, &source)?;
                }
                connect(&socket, address)?;
            }
            Address::Unix(path) => connect(&socket, &SocketAddrUnix::new(path)?)?,
        }
        Self::from_socket(socket, !matches!(address, Address::Unix(_)))
    }

    /// Takes over a connected socket.
    ///
    /// # Errors
    /// What the kernel reports when options are set.
    pub fn from_socket(socket: OwnedFd, is_tcp: bool) -> io::Result<Self> {
        if is_tcp {
            sockopt::set_tcp_nodelay(&socket, true)?;
        }
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience(TIMEOUT)))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience(TIMEOUT)))?;
        Ok(Self { socket })
    }

    /// A second handle on the same connection.
    ///
    /// # Errors
    /// What `dup` reports.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()? })
    }

    /// Moves the connection to another descriptor number by `dup2`; the old number is closed.
    ///
    /// # Errors
    /// What `open` or `dup2` report.
    pub fn move_descriptor(&mut self) -> io::Result<()> {
        let mut target = OwnedFd::from(std::fs::File::open("/dev/null")?);
        rustix::io::dup2(&self.socket, &mut target)?;
        self.socket = target;
        Ok(())
    }

    /// Closes with a reset instead of an orderly end.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn reset(self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO))?)
    }

    /// Reads some bytes into `buffer` (not empty); 0 is the end of the stream. `rng` chooses sizes and cuts.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn read(&self, mode: ReadMode, buffer: &mut [u8], rng: &mut fastrand::Rng) -> io::Result<usize> {
        let socket = &self.socket;
        Ok(match mode {
            ReadMode::Read => read(socket, buffer)?,
            ReadMode::Tiny => {
                let most = buffer.len().min(rng.usize(1..=7));
                read(socket, &mut buffer[..most])?
            }
            ReadMode::Readv => readv(socket, &mut scattered(buffer, rng))?,
            ReadMode::Recvmsg => {
                let mut parts = scattered(buffer, rng);
                let mut control = rustix::net::RecvAncillaryBuffer::default();
                recvmsg(socket, &mut parts, &mut control, RecvFlags::empty())?.bytes
            }
            ReadMode::Recvmmsg => {
                let cuts = ascending_cuts(buffer.len(), rng);
                recvmmsg(socket.as_fd(), buffer, &cuts)?
            }
            ReadMode::Peek => {
                let (seen, _) = recv(socket, &mut *buffer, RecvFlags::PEEK)?;
                let most = seen.max(1);
                read(socket, &mut buffer[..most])?
            }
            ReadMode::Recv | ReadMode::WaitAll | ReadMode::Truncate | ReadMode::Splice => {
                recv(socket, buffer, RecvFlags::empty())?.0
            }
        })
    }

    /// Takes up to `most` (not 0) body bytes from the stream without keeping them; 0 is the end of the stream.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn discard(&self, mode: ReadMode, most: usize, rng: &mut fastrand::Rng) -> io::Result<usize> {
        let most = most.min(PIPE_BYTES);
        let mut buffer = vec![0; most];
        match mode {
            ReadMode::WaitAll => Ok(recv(&self.socket, &mut buffer[..], RecvFlags::WAITALL)?.0),
            ReadMode::Truncate => {
                let (_, received) = recv(&self.socket, &mut buffer[..], RecvFlags::TRUNC)?;
                Ok(received)
            }
            ReadMode::Splice => {
                let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
                let moved = splice(&self.socket, None, &inlet, None, most, SpliceFlags::MOVE)?;
                let mut drained = 0;
                while drained < moved {
                    drained += read(&outlet, &mut buffer[drained..moved])?;
                }
                Ok(moved)
            }
            _ => self.read(mode, &mut buffer, rng),
        }
    }

    /// Writes all pieces.
    ///
    /// # Errors
    /// What the kernel reports; some of the bytes may have been sent.
    pub fn write_all(&self, mode: WriteMode, pieces: &[Outgoing], rng: &mut fastrand::Rng) -> io::Result<()> {
        let slices: Vec<&[u8]> =
            pieces.iter().map(|piece| &piece.bytes[..]).filter(|b| !b.is_empty()).collect();
        match mode {
            WriteMode::Write => self.write_plain(&slices.concat()),
            WriteMode::Send => self.send_plain(&slices.concat(), SendFlags::NOSIGNAL),
            WriteMode::More => {
                let last = slices.len().saturating_sub(1);
                slices.iter().enumerate().try_for_each(|(index, slice)| {
                    let more = if index < last { SendFlags::MORE } else { SendFlags::empty() };
                    self.send_plain(slice, SendFlags::NOSIGNAL | more)
                })
            }
            WriteMode::Writev => self.gather(&shredded(&slices, rng), |parts| writev(&self.socket, parts)),
            WriteMode::Sendmsg => self.gather(&slices, |parts| {
                sendmsg(&self.socket, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            }),
            WriteMode::Sendmmsg => self.send_messages(&slices),
            WriteMode::Sendfile | WriteMode::Splice => {
                pieces.iter().try_for_each(|piece| match (piece.is_body, mode) {
                    (false, _) => self.write_plain(&piece.bytes),
                    (true, WriteMode::Sendfile) => self.send_file(&piece.bytes),
                    (true, _) => self.splice_all(&piece.bytes),
                })
            }
        }
    }

    fn write_plain(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[write(&self.socket, bytes)?..];
        }
        Ok(())
    }

    fn send_plain(&self, mut bytes: &[u8], flags: SendFlags) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[send(&self.socket, bytes, flags)?..];
        }
        Ok(())
    }

    /// Repeats a gathering write until every part is out.
    fn gather(
        &self,
        parts: &[&[u8]],
        call: impl Fn(&[IoSlice<'_>]) -> rustix::io::Result<usize>,
    ) -> io::Result<()> {
        // The kernel takes at most 1024 buffers per call.
        for group in parts.chunks(1024) {
            let mut slices: Vec<IoSlice<'_>> = group.iter().map(|part| IoSlice::new(part)).collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let sent = call(rest)?;
                IoSlice::advance_slices(&mut rest, sent);
            }
        }
        Ok(())
    }

    fn send_messages(&self, pieces: &[&[u8]]) -> io::Result<()> {
        let mut rest = pieces;
        while !rest.is_empty() {
            let group = &rest[..rest.len().min(multiple::MOST)];
            let sent = sendmmsg(self.socket.as_fd(), group)?;
            if let (Some(&length), Some(piece)) = (sent.last(), group.get(sent.len() - 1)) {
                self.write_plain(&piece[length..])?;
            }
            rest = &rest[sent.len()..];
        }
        Ok(())
    }

    fn send_file(&self, bytes: &[u8]) -> io::Result<()> {
        let file = memfd_create("body", MemfdFlags::CLOEXEC)?;
        let mut written = 0;
        while written < bytes.len() {
            written += write(&file, &bytes[written..])?;
        }
        let mut offset = 0;
        while offset < bytes.len() as u64 {
            let left = bytes.len() - usize::try_from(offset).expect("no more than the length was sent");
            if sendfile(&self.socket, &file, Some(&mut offset), left)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    fn splice_all(&self, bytes: &[u8]) -> io::Result<()> {
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
        for part in bytes.chunks(PIPE_BYTES) {
            let mut filled = 0;
            while filled < part.len() {
                let written = write(&inlet, &part[filled..])?;
                filled += written;
                let mut moved = 0;
                while moved < written {
                    moved += splice(&outlet, None, &self.socket, None, written - moved, SpliceFlags::MOVE)?;
                }
            }
        }
        Ok(())
    }
}

/// `buffer` in up to 17 parts, the first ones of a few bytes.
fn scattered<'a>(buffer: &'a mut [u8], rng: &mut fastrand::Rng) -> Vec<IoSliceMut<'a>> {
    let mut parts = Vec::new();
    let mut rest = buffer;
    for _ in 0..rng.usize(0..=16) {
        let (part, tail) = rest.split_at_mut(rng.usize(1..=9).min(rest.len()));
        parts.push(IoSliceMut::new(part));
        rest = tail;
    }
    parts.push(IoSliceMut::new(rest));
    parts
}

/// Ends of up to four parts that together cover `length`.
fn ascending_cuts(length: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..3).map(|_| rng.usize(1..=length)).chain([length]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The slices cut into small ones: a few bytes at first, growing, so that large bodies stay within a few hundred.
fn shredded<'a>(slices: &[&'a [u8]], rng: &mut fastrand::Rng) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    for slice in slices {
        let mut rest = *slice;
        let mut most = 16;
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(rng.usize(1..=most).min(rest.len()));
            parts.push(part);
            rest = tail;
            most += most / 8;
        }
    }
    parts
}
