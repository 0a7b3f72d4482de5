//! One connection to a database: who is who, what was missed, messages put together from their pieces.
//!
//! In: records of messages. Out: whole messages in the order of their direction. Refuses to know what they mean.

use super::postgres::Postgres;
use super::redis::Redis;
use super::{About, System};
use crate::protocol::{Cause, Endpoints, Side};
use obi_ebpf::{
    FRAME_FIRST_PIECE, FRAME_JOINED, FRAME_LAST_PIECE, PROTOCOL_POSTGRES, PROTOCOL_REDIS, close_event,
    frame_event,
};

/// Longest message that is put together, bytes: what the kernel side copies of a statement.
const MESSAGE_BYTES: usize = 2_048;

/// What the messages of a connection come to.
#[derive(Debug)]
pub(super) enum Session {
    Postgres(Box<Postgres>),
    Redis(Redis),
}

/// A message, or as much of it as is copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    /// The client's.
    pub(super) is_request: bool,
    /// Records were missing before it, in its direction.
    pub(super) is_behind_gap: bool,
    /// `frame_event.type`.
    pub(super) kind: u8,
    pub(super) turn: u32,
    pub(super) payload: &'a [u8],
    pub(super) tid: u32,
    pub(super) cause: Cause,
    pub(super) arrival: u64,
    /// When its first byte was read or sent.
    pub(super) started: u64,
    /// When what was copied of it had passed.
    pub(super) ended: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    about: About,
    directions: [Direction; 2],
    session: Session,
}

#[derive(Debug, Default)]
struct Direction {
    /// The sequence number that comes next; `None` before the first record of a connection joined in the middle.
    expected: Option<u32>,
    is_behind_gap: bool,
    /// Pieces of a message that has not come to its end.
    partial: Vec<u8>,
    begun: Beginning,
}

/// Of a message's first byte.
#[derive(Debug, Clone, Copy, Default)]
struct Beginning {
    time: u64,
    cause: Cause,
}

impl Connection {
    /// A connection as its first record shows it; `None` for a protocol of a newer kernel side.
    pub(super) fn of(side: Side, frame: &frame_event) -> Option<Self> {
        let is_joined = frame.header.flags & FRAME_JOINED != 0;
        let (system, session) = match u32::from(frame.protocol) {
            PROTOCOL_POSTGRES => (System::Postgres, Session::Postgres(Box::new(Postgres::new(is_joined)))),
            PROTOCOL_REDIS => (System::Redis, Session::Redis(Redis::new(is_joined))),
            _ => return None,
        };
        let (local, remote) =
            ((frame.local_address, frame.local_port), (frame.remote_address, frame.remote_port));
        let about = About {
            system,
            side,
            tgid: frame.header.tgid,
            endpoints: Endpoints::from_wire(frame.family, local, remote),
            encrypted: frame.encrypted != 0,
            n_calls: 0,
        };
        Some(Self {
            about,
            directions: [(); 2]
                .map(|()| Direction { expected: (!is_joined).then_some(0), ..Direction::default() }),
            session,
        })
    }

    /// Updates the connection's process and addresses from a record.
    pub(super) fn note(&mut self, frame: &frame_event) {
        self.about.tgid = frame.header.tgid;
        if self.about.endpoints == Endpoints::Unknown {
            let (local, remote) =
                ((frame.local_address, frame.local_port), (frame.remote_address, frame.remote_port));
            self.about.endpoints = Endpoints::from_wire(frame.family, local, remote);
        }
    }

    /// Takes a record; the message that it ends, if it ends one.
    pub(super) fn take<'a>(
        &'a mut self,
        frame: &frame_event,
        piece: &'a [u8],
    ) -> (&'a mut About, &'a mut Session, Option<Message<'a>>) {
        let is_request = (frame.sent != 0) == (self.about.side == Side::Client);
        let direction = &mut self.directions[usize::from(is_request)];
        let message = direction.take(frame, piece).map(|(payload, is_behind_gap, begun)| Message {
            is_request,
            is_behind_gap,
            kind: frame.type_,
            turn: frame.stream,
            payload,
            tid: frame.header.tid,
            cause: begun.cause,
            arrival: frame.arrival,
            started: begun.time,
            ended: frame.header.time,
        });
        (&mut self.about, &mut self.session, message)
    }

    /// Records of the requests', and of the answers', direction that have not come, now that it has ended.
    pub(super) fn missed(&self, close: &close_event) -> (u32, u32) {
        let (sent, received) = (close.sent_pieces, close.received_pieces);
        let (requests, answers) =
            if self.about.side == Side::Client { (sent, received) } else { (received, sent) };
        let missed = |direction: &Direction, n: u32| {
            let step = n.wrapping_sub(direction.expected.unwrap_or(0)).cast_signed();
            u32::try_from(step).unwrap_or(0)
        };
        (missed(&self.directions[1], requests), missed(&self.directions[0], answers))
    }

    /// What is known of it, and what is open.
    pub(super) fn parts(&mut self) -> (&mut About, &mut Session) {
        (&mut self.about, &mut self.session)
    }

    /// Calls open now.
    pub(super) fn open(&self) -> usize {
        match &self.session {
            Session::Postgres(postgres) => postgres.open(),
            Session::Redis(redis) => redis.open(),
        }
    }
}

impl Direction {
    /// The payload that ends with this piece, whether records are missing before it, and when it began.
    fn take<'a>(&'a mut self, frame: &frame_event, piece: &'a [u8]) -> Option<(&'a [u8], bool, Beginning)> {
        let step = self.expected.map_or(0, |expected| frame.sequence.wrapping_sub(expected).cast_signed());
        if step < 0 {
            return None; // a later one has come already
        }
        self.expected = Some(frame.sequence.wrapping_add(1));
        let (is_first, is_last) =
            (frame.header.flags & FRAME_FIRST_PIECE != 0, frame.header.flags & FRAME_LAST_PIECE != 0);
        self.is_behind_gap |= step > 0;
        if is_first {
            self.partial.clear();
            // The other end counts its turns from where it was joined itself.
            let cause = Cause { wire: None, ..Cause::of_frame(frame, None) };
            self.begun = Beginning { time: frame.header.time, cause };
        } else if step > 0 || self.partial.is_empty() {
            self.partial.clear();
            return None; // its beginning is missing
        }
        if is_first && is_last {
            return Some((piece, std::mem::take(&mut self.is_behind_gap), self.begun));
        }
        let room = MESSAGE_BYTES.saturating_sub(self.partial.len());
        self.partial.extend_from_slice(&piece[..piece.len().min(room)]);
        is_last.then(|| (&*self.partial, std::mem::take(&mut self.is_behind_gap), self.begun))
    }
}
