//! `sendmmsg` and `recvmmsg`, which no safe wrapper offers for streams.
//!
//! In: a descriptor and buffers. Out: bytes moved. An island: all unsafe code is here.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_uint, iovec, mmsghdr};

/// Flags of both calls: glibc and musl declare them otherwise.
#[cfg(target_env = "musl")]
type Flags = c_uint;
#[cfg(not(target_env = "musl"))]
type Flags = libc::c_int;

const NO_SIGNAL: Flags = libc::MSG_NOSIGNAL as Flags;
const WAIT_FOR_ONE: Flags = libc::MSG_WAITFORONE as Flags;

/// Messages of one call at most.
pub const MOST: usize = 64;

thread_local! {
    /// As in real programs, every call of a thread uses the same array, only its length differs.
    static MESSAGES: RefCell<Vec<mmsghdr>> = RefCell::new(Vec::with_capacity(MOST));
}

/// Calls `call` with `vectors[i]` as message `i`.
fn with_messages<T>(vectors: &mut [iovec], call: impl FnOnce(&mut [mmsghdr]) -> T) -> T {
    assert!(vectors.len() <= MOST, "callers pass at most {MOST} messages");
    let message = |vector| {
        // SAFETY: all zeroes are a valid header: of no name, no vector and no control data. Musl's has padding that
        // nothing outside of it may name.
        let mut message: mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = ptr::from_mut(vector);
        message.msg_hdr.msg_iovlen = 1;
        message
    };
    MESSAGES.with_borrow_mut(|messages| {
        messages.clear();
        messages.extend(vectors.iter_mut().map(message));
        call(messages)
    })
}

fn count(messages: &[mmsghdr]) -> c_uint {
    c_uint::try_from(messages.len()).expect("callers pass a few messages")
}

/// Sends each piece as a message of its own with one system call. Returns the bytes sent of each message; fewer
/// messages than pieces, or a short one, mean that the caller must go on from there.
///
/// # Errors
/// What `sendmmsg` reports when not even the first message went out.
pub fn sendmmsg(socket: BorrowedFd<'_>, pieces: &[&[u8]]) -> io::Result<Vec<usize>> {
    let mut vectors: Vec<iovec> = pieces
        .iter()
        .map(|piece| iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() })
        .collect();
    with_messages(&mut vectors, |messages| {
        let (socket, array, flags) = (socket.as_raw_fd(), messages.as_mut_ptr(), NO_SIGNAL);
        // SAFETY: every header points to one live iovec, every iovec to a live slice that the kernel only reads, and
        // the count is that of the headers.
        let sent = unsafe { libc::sendmmsg(socket, array, count(messages), flags) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(messages[..sent].iter().map(|message| message.msg_len as usize).collect())
    })
}

/// Receives into the parts of `buffer` that end at `cuts` (ascending, within it), a message each, waiting only for
/// the first. Returns the bytes received, moved together at the start of `buffer`.
///
/// # Errors
/// What `recvmmsg` reports when not even one message came.
pub fn recvmmsg(socket: BorrowedFd<'_>, buffer: &mut [u8], cuts: &[usize]) -> io::Result<usize> {
    let mut starts = Vec::with_capacity(cuts.len());
    let mut vectors = Vec::with_capacity(cuts.len());
    let mut rest = &mut *buffer;
    let mut at = 0;
    for &cut in cuts {
        let (part, tail) = rest.split_at_mut(cut - at);
        vectors.push(iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        starts.push(at);
        (rest, at) = (tail, cut);
    }
    let lengths = with_messages(&mut vectors, |messages| {
        let (socket, array, flags) = (socket.as_raw_fd(), messages.as_mut_ptr(), WAIT_FOR_ONE);
        // SAFETY: every header points to one live iovec, every iovec to its own part of `buffer`, which is borrowed
        // mutably here, and the count is that of the headers.
        let received = unsafe { libc::recvmmsg(socket, array, count(messages), flags, ptr::null_mut()) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        io::Result::Ok(
            messages[..received].iter().map(|message| message.msg_len as usize).collect::<Vec<_>>(),
        )
    })?;
    let mut length = 0;
    for (start, part) in starts.into_iter().zip(lengths) {
        buffer.copy_within(start..start + part, length);
        length += part;
    }
    Ok(length)
}
