//! Payloads of HTTP/2 frames (RFC 9113 §6).
//!
//! In: a frame's type, flags and payload. Out: the parts of it that matter. Refuses to know streams.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const GOAWAY: u8 = 7;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Error codes (RFC 9113 §7) that mean something of their own here.
pub(super) mod code {
    pub(in super::super) const NO_ERROR: u32 = 0;
    pub(in super::super) const STREAM_CLOSED: u32 = 5;
    pub(in super::super) const REFUSED_STREAM: u32 = 7;
    pub(in super::super) const CANCEL: u32 = 8;
}

/// Where the header block's bytes are in the payload of HEADERS, PUSH_PROMISE or CONTINUATION, as `start..end`.
/// `None` when the payload is too short. With `is_cut` its end, and the padding with it, is missing.
pub(super) fn fragment(kind: u8, flags: u8, payload: &[u8], is_cut: bool) -> Option<(usize, usize)> {
    if kind == CONTINUATION {
        return Some((0, payload.len()));
    }
    let is_padded = flags & PADDED != 0;
    let padding = if is_padded { usize::from(*payload.first()?) } else { 0 };
    let fixed = match kind {
        PUSH_PROMISE => 4,
        _ if flags & PRIORITY != 0 => 5,
        _ => 0,
    };
    let start = usize::from(is_padded) + fixed;
    let end = if is_cut { payload.len() } else { payload.len().checked_sub(padding)? };
    (start <= end).then_some((start, end))
}

/// The `nth` four bytes of a payload.
pub(super) fn word(payload: &[u8], nth: usize) -> Option<u32> {
    let bytes = payload.get(nth * 4..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments() {
        let check = |kind, flags, payload: &[u8], expected: Option<&[u8]>| {
            let found = fragment(kind, flags, payload, false).map(|(start, end)| &payload[start..end]);
            assert_eq!(found, expected, "{kind} {flags:x} {payload:x?}");
        };
        check(HEADERS, END_HEADERS, b"abc", Some(b"abc"));
        check(HEADERS, PADDED, b"\x02abc..", Some(b"abc"));
        check(HEADERS, PRIORITY, b"12345abc", Some(b"abc"));
        check(HEADERS, PADDED | PRIORITY, b"\x0112345abc.", Some(b"abc"));
        check(HEADERS, PADDED | PRIORITY, b"\x0112345.", Some(b""));
        check(HEADERS, PADDED | PRIORITY, b"\x0112345", None);
        check(HEADERS, PADDED, b"", None);
        check(HEADERS, PRIORITY, b"1234", None);
        check(HEADERS, PADDED, b"\x04abc", None);
        check(PUSH_PROMISE, PADDED, b"\x011234abc.", Some(b"abc"));
        check(CONTINUATION, PADDED | PRIORITY, b"abc", Some(b"abc"));
        assert_eq!(fragment(HEADERS, PADDED, b"\x09abc", true), Some((1, 4)));
        assert_eq!(
            (word(b"\x00\x00\x00\x07\x80\x00\x00\x00x", 1), word(b"\x00\x00\x00", 0)),
            (Some(1 << 31), None)
        );
    }
}
