//! What the kernel says of the cause of an exchange.
//!
//! In: the block of facts on the first piece of a message. Out: [`Cause`]. Refuses to know what follows from them.

use super::Side;
use obi_ebpf::{
    CARRY_BYTES, CAUSE_BASES, CAUSE_COUNTED, CAUSE_NO_POSITION, CAUSE_RUNTIME, CAUSE_STARTED_BIT,
    CAUSE_WAITS_MANY, FLAG_CAUSE, FRAME_CAUSE, cause, frame_event, head_event,
};
use zerocopy::FromBytes as _;

/// Facts about the thread that read or sent a request's head, and about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cause {
    /// The exchange whose request this thread has read last and not answered yet; 0: none, or not known.
    pub candidate: u64,
    /// The candidate is what the program's own runtime says, whatever its threads do; 0: it works for no request.
    pub by_runtime: bool,
    /// With that: who calls is not who has read the request, but was started for it.
    pub is_started: bool,
    /// With `by_runtime`: the call was made by promises that went on behind a callback of the candidate, which may also
    /// be a call whose answer was read then. So long before the call the callback began, ns.
    pub behind: Option<u64>,
    /// The thread has waited for many things at once since it lives: it is an event loop, or a part of one.
    pub waits_many: bool,
    /// What both ends of the exchange say of it; `None` where it is not known.
    pub wire: Option<Wire>,
}

/// An exchange as it is on the wire: both of its ends say the same, also through address translation.
///
/// Two sockets are the ends of one connection when what the one receives begins where the other's sent bytes begin.
/// Both numbers are random for each connection (RFC 6528).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wire {
    /// TCP sequence number of the first byte from client to server.
    pub asked: u32,
    /// TCP sequence number of the first byte from server to client.
    pub answered: u32,
    /// Of the request's first byte among the client's, modulo 2^32; of a stream its identifier, from 2^32 on.
    pub position: u64,
}

impl Wire {
    /// A number for the exchange that every agent which sees one of its ends comes to by itself, whatever its version:
    /// promised to users (docs/traces.md). No key and no address is part of it.
    #[must_use]
    pub fn id(self) -> u64 {
        let Self { asked, answered, position } = self;
        mix(mix(u64::from(asked) << 32 | u64::from(answered)) ^ position)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Who sent the head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answerer {
    /// Thread.
    pub tid: u32,
    /// As [`Cause::waits_many`], by then.
    pub waits_many: bool,
}

/// A request whose head has come, of which nothing else is known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun<'a> {
    /// The kernel's exchange number.
    pub number: u64,
    /// Server or client.
    pub side: Side,
    /// Observed process.
    pub tgid: u32,
    /// Thread that read or sent the head.
    pub tid: u32,
    /// As [`Exchange::started`](super::Exchange::started).
    pub started: u64,
    /// `traceparent` as sent; empty when there is none.
    pub traceparent: &'a str,
    /// Facts.
    pub cause: Cause,
}

/// In a runtime's candidate.
const STARTED: u64 = 1 << CAUSE_STARTED_BIT;
/// Bytes of a head that have waited before its first piece lie behind the block, if there are no more.
const LEAD: usize = CARRY_BYTES as usize - size_of::<cause>();

/// Of the positions of streams, so that none is that of a byte.
const STREAMS: u64 = 1 << 32;

impl Cause {
    /// Of a request's head, by the piece that begins it.
    #[must_use]
    pub fn of_head(head: &head_event, side: Option<Side>) -> Self {
        let Some(block) = block_of(head) else { return Self::default() };
        let ends = side.and_then(|side| ends(&block, side));
        let wire = ends.and_then(|(asked, answered)| {
            let is_encrypted = head.encrypted != 0;
            let counts = block.flags & CAUSE_NO_POSITION == 0;
            let offset = if is_encrypted { head.offset } else { head.offset.wrapping_sub(asked) };
            (counts || !is_encrypted).then_some(Wire { asked, answered, position: u64::from(offset) })
        });
        Self::new(&block, wire)
    }

    fn new(block: &cause, wire: Option<Wire>) -> Self {
        let by_runtime = block.flags & CAUSE_RUNTIME != 0;
        Self {
            candidate: if by_runtime { block.candidate & !STARTED } else { block.candidate },
            by_runtime,
            is_started: by_runtime && block.candidate & STARTED != 0,
            behind: (by_runtime && block.behind_us > 0).then(|| u64::from(block.behind_us) * 1_000),
            waits_many: block.flags & CAUSE_WAITS_MANY != 0,
            wire,
        }
    }

    /// Of a stream, by the frame that opens it.
    #[must_use]
    pub fn of_frame(frame: &frame_event, side: Option<Side>) -> Self {
        if frame.header.flags & FRAME_CAUSE == 0 {
            return Self::default();
        }
        let block = frame.cause;
        let ends = side.and_then(|side| ends(&block, side));
        let wire = ends.map(|(asked, answered)| Wire {
            asked,
            answered,
            position: STREAMS | u64::from(frame.stream),
        });
        Self::new(&block, wire)
    }
}

impl Answerer {
    /// Of a response's head, by the piece that begins it; `None` when the kernel does not report it.
    #[must_use]
    pub fn of_head(head: &head_event) -> Option<Self> {
        let block = block_of(head)?;
        Some(Self { tid: head.header.tid, waits_many: block.flags & CAUSE_WAITS_MANY != 0 })
    }
}

fn block_of(head: &head_event) -> Option<cause> {
    let is_there = head.header.flags & FLAG_CAUSE != 0 && usize::from(head.lead) <= LEAD;
    is_there.then(|| cause::read_from_prefix(&head.carry).ok()).flatten().map(|(block, _)| block)
}

/// Where the client's and the server's bytes begin.
fn ends(block: &cause, side: Side) -> Option<(u32, u32)> {
    if block.flags & CAUSE_BASES == 0 {
        return None;
    }
    let connects = side == Side::Client && block.flags & CAUSE_COUNTED != 0;
    let sent = block.sent_base.wrapping_add(u32::from(connects));
    Some(match side {
        Side::Server => (block.received_base, sent),
        Side::Client => (sent, block.received_base),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use obi_ebpf::event_header;
    use zerocopy::IntoBytes as _;

    fn head(block: cause, offset: u32, encrypted: u8) -> head_event {
        let mut head = head_event {
            header: event_header { flags: FLAG_CAUSE, tid: 9, ..event_header::default() },
            offset,
            encrypted,
            ..head_event::default()
        };
        head.carry[..size_of::<cause>()].copy_from_slice(block.as_bytes());
        head
    }

    fn block(received_base: u32, sent_base: u32, flags: u32) -> cause {
        cause { candidate: 7, received_base, sent_base, flags, ..cause::default() }
    }

    #[test]
    fn both_ends_say_the_same() {
        let check = |server: (u32, u32, u32), client: (u32, u32, u32), offset: u32, expected: Option<u64>| {
            let server =
                Cause::of_head(&head(block(server.0, server.1, server.2), offset, 0), Some(Side::Server));
            let client =
                Cause::of_head(&head(block(client.0, client.1, client.2), offset, 0), Some(Side::Client));
            assert_eq!(server.wire, client.wire);
            assert_eq!(server.wire.map(|wire| wire.position), expected);
        };
        const BASES: u32 = CAUSE_BASES;
        check((100, 900, BASES), (900, 100, BASES), 100, Some(0));
        check((100, 900, BASES), (900, 100, BASES), 4_100, Some(4_000));
        // The stream passes the last number.
        check((u32::MAX, 5, BASES), (5, u32::MAX, BASES), 1, Some(2));
        // Joined in the middle: the client's SYN is among its bytes.
        check((100, 900, BASES | CAUSE_COUNTED), (900, 99, BASES | CAUSE_COUNTED), 150, Some(50));
        check((100, 900, 0), (900, 100, 0), 100, None);
    }

    /// Agents of different versions meet: these stay as they are. The first is the first number of SplitMix64 from 0,
    /// mixed once more.
    #[test]
    fn an_exchange_has_the_same_number_everywhere() {
        let check = |asked: u32, answered: u32, position: u64, expected: u64| {
            assert_eq!(Wire { asked, answered, position }.id(), expected, "{asked} {answered} {position}");
        };
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        check(0, 0, 0, mix(0xe220_a839_7b1d_cdaf));
        check(1, 2, 3, mix(mix(0x1_0000_0002) ^ 3));
        check(2, 1, 3, mix(mix(0x2_0000_0001) ^ 3));
    }

    #[test]
    fn plain_bytes_of_tls_have_positions_of_their_own() {
        let check = |flags: u32, expected: Option<u64>| {
            let cause =
                Cause::of_head(&head(block(100, 900, CAUSE_BASES | flags), 30, 1), Some(Side::Server));
            assert_eq!(cause.wire.map(|wire| wire.position), expected);
        };
        check(0, Some(30));
        check(CAUSE_NO_POSITION, None);
    }

    #[test]
    fn without_a_block_nothing_is_known() {
        let reported = head(block(1, 2, CAUSE_BASES | CAUSE_WAITS_MANY), 1, 0);
        assert_eq!(Answerer::of_head(&reported), Some(Answerer { tid: 9, waits_many: true }));
        let expected = Cause { candidate: 7, waits_many: true, ..Cause::default() };
        assert_eq!(Cause::of_head(&reported, None), expected);
        let named = Cause { candidate: 7, by_runtime: true, ..Cause::default() };
        for (candidate, is_started) in [(7, false), (STARTED | 7, true)] {
            let block = cause { candidate, ..block(1, 2, CAUSE_RUNTIME) };
            assert_eq!(Cause::of_head(&head(block, 1, 0), None), Cause { is_started, ..named });
        }
        let unreported = head_event { header: event_header { flags: 0, ..reported.header }, ..reported };
        let beside = head_event { lead: 24, ..reported };
        assert_eq!(Cause::of_head(&beside, None), Cause::of_head(&reported, None));
        let behind = head_event { lead: 25, ..reported };
        for head in [unreported, behind] {
            assert_eq!(Cause::of_head(&head, Some(Side::Server)), Cause::default());
            assert_eq!(Answerer::of_head(&head), None);
        }
    }

    #[test]
    fn streams_are_reported_apart_from_bytes() {
        let mut frame =
            frame_event { stream: 3, cause: block(100, 900, CAUSE_BASES), ..frame_event::default() };
        assert_eq!(Cause::of_frame(&frame, Some(Side::Client)), Cause::default());
        frame.header.flags = FRAME_CAUSE;
        let wire = Wire { asked: 100, answered: 900, position: STREAMS | 3 };
        assert_eq!(Cause::of_frame(&frame, Some(Side::Server)).wire, Some(wire));
    }
}
