//! Ring-buffer bytes to [`Event`].
//!
//! In: one record as the kernel submitted it. Out: a borrowed, length-checked view. An unknown kind or a
//! short record is an error value, never a panic. Refuses to know what the bytes mean.

use obi_ebpf::{
    EVENT_CLOSE, EVENT_END, EVENT_FRAME, EVENT_HEAD, EVENT_PROCESS, EVENT_TIMES, EVENT_WEBSOCKET,
    close_event, end_event, frame_event, head_event, process_event, times_event, websocket_event,
};
use thiserror::Error;
use zerocopy::FromBytes;

/// One record from the kernel.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A piece of a request or response head, and its bytes.
    Head(&'a head_event, &'a [u8]),
    /// The last byte of a message has passed.
    End(&'a end_event),
    /// Where the time of the thread went that has served a request.
    Times(&'a times_event),
    /// Pending exchanges of a connection end without a whole response.
    Close(&'a close_event),
    /// An HTTP/2 frame, or a piece of it, and its payload bytes.
    Frame(&'a frame_event, &'a [u8]),
    /// A WebSocket has ended.
    WebSocket(&'a websocket_event),
    /// A process started, forked or ended; what one that started was given: its arguments, then its environment.
    Process(&'a process_event, &'a [u8]),
}

/// Why a record could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The record is shorter than its kind demands.
    #[error("record of {length} bytes is too short for kind {kind}")]
    Short {
        /// Bytes received.
        length: usize,
        /// `event_header.kind`, 0 when even that is missing.
        kind: u32,
    },
    /// The kind is none that this agent knows.
    #[error("unknown record kind {0}")]
    Kind(u32),
}

/// Reads one record. `bytes` must be 8-byte aligned, as ring-buffer records are.
///
/// # Errors
/// When the record is too short for its kind or payload length, misaligned, or of an unknown kind.
pub fn decode(bytes: &[u8]) -> Result<Event<'_>, DecodeError> {
    let kind = bytes.first_chunk::<4>().map_or(0, |first| u32::from_ne_bytes(*first));
    let short = DecodeError::Short { length: bytes.len(), kind };
    if bytes.len() < 4 {
        return Err(short);
    }
    match kind {
        EVENT_HEAD => {
            let (head, _) = head_event::ref_from_prefix(bytes).map_err(|_| short)?;
            // The payload begins with the last `lead` bytes of `carry`, which ends the structure.
            let start = size_of::<head_event>().checked_sub(usize::from(head.lead)).ok_or(short)?;
            let payload = bytes.get(start..start + usize::from(head.length)).ok_or(short)?;
            Ok(Event::Head(head, payload))
        }
        EVENT_FRAME => {
            let (frame, rest) = frame_event::ref_from_prefix(bytes).map_err(|_| short)?;
            Ok(Event::Frame(frame, rest.get(..usize::from(frame.length)).ok_or(short)?))
        }
        EVENT_WEBSOCKET => {
            Ok(Event::WebSocket(websocket_event::ref_from_prefix(bytes).map_err(|_| short)?.0))
        }
        EVENT_END => Ok(Event::End(end_event::ref_from_prefix(bytes).map_err(|_| short)?.0)),
        EVENT_TIMES => Ok(Event::Times(times_event::ref_from_prefix(bytes).map_err(|_| short)?.0)),
        EVENT_CLOSE => Ok(Event::Close(close_event::ref_from_prefix(bytes).map_err(|_| short)?.0)),
        EVENT_PROCESS => {
            let (process, rest) = process_event::ref_from_prefix(bytes).map_err(|_| short)?;
            let given =
                u64::from(process.n_arguments) + u64::from(process.n_environment) + u64::from(process.n_path);
            let given = usize::try_from(given).ok().and_then(|length| rest.get(..length)).ok_or(short)?;
            Ok(Event::Process(process, given))
        }
        other => Err(DecodeError::Kind(other)),
    }
}
