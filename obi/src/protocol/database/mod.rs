//! Databases: records of messages to exchanges, one per call.
//!
//! In: records of messages and of closed connections, in ring order. Out: each call once, to a [`Sink`]: an exchange,
//! or lost with a reason. Turns, which the kernel side counts in both directions, pair what is asked with what is
//! answered; a step in them is a loss. Literals of statements end here. Refuses to know spans.
//!
//! - `connection`: what is kept of a connection, whatever it speaks; messages put together from their pieces.
//! - `postgres`, `redis`: what the messages of a protocol mean.
//! - [`sql`]: what may be shown of a statement.

mod connection;
mod postgres;
mod redis;
pub mod sql;
mod text;

use super::exchange::close_failure;
use super::loss::{self, Loss};
use super::{Cause, Database, Exchange, Limits, Message, Side, Sink, System};
use crate::config::Databases as Settings;
use connection::{Connection, Session};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::{CLOSE_ABANDONED, FRAME_FIRST_PIECE, LOSS_RING_FULL, ORDINAL_BITS, close_event, frame_event};
use std::sync::Arc;
use text::Texts;

/// A call that has been asked and not yet answered.
#[derive(Debug, Clone)]
struct Asked {
    /// Of SQL; `None` when its text was not seen.
    statement: Option<Arc<sql::Statement>>,
    /// Of Redis, or of SQL whose text was not seen.
    operation: Arc<str>,
    tid: u32,
    cause: Cause,
    arrival: u64,
    started: u64,
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
struct Answer<'a> {
    ended: u64,
    /// The code of an error; empty without one.
    code: &'a str,
    /// What the answer says was done, where the question was not seen.
    operation: &'a str,
    /// What the connection is about.
    namespace: &'a str,
}

/// What a session hands over.
trait Outcome {
    fn answered(&mut self, asked: &Asked, answer: &Answer<'_>);
    fn lost(&mut self, reason: &'static str, n: usize);
}

/// All connections that speak a database's protocol.
#[derive(Debug)]
pub(super) struct Databases {
    connections: HashMap<u64, Connection, RandomState>,
    limit: usize,
    texts: Texts,
    settings: Settings,
}

impl Databases {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            connections: HashMap::default(),
            limit: limits.open,
            texts: Texts::default(),
            settings: Settings::default(),
        }
    }

    pub(super) fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Takes one record.
    pub(super) fn accept(&mut self, frame: &frame_event, payload: &[u8], sink: &mut impl Sink) {
        let Some(side) = Side::from_wire(frame.side) else { return };
        if side == Side::Server && !self.settings.server_spans {
            return;
        }
        let number = frame.header.exchange >> ORDINAL_BITS;
        let n_connections = self.connections.len();
        let connection = match self.connections.entry(number) {
            hashbrown::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) if n_connections < self.limit => {
                let Some(made) = Connection::of(side, frame) else { return };
                entry.insert(made)
            }
            hashbrown::hash_map::Entry::Vacant(_) => {
                // Counted once a turn, or nearly: what a client says begins with a first piece.
                if (frame.sent != 0) == (side == Side::Client) && frame.header.flags & FRAME_FIRST_PIECE != 0
                {
                    let tgid = frame.header.tgid;
                    let stage = loss::STAGE_PROTOCOL;
                    sink.lost(Loss { stage, reason: loss::PENDING_FULL, side: Some(side), tgid });
                }
                return;
            }
        };
        connection.note(frame);
        let (about, session, message) = connection.take(frame, payload);
        let mut out = Handover { about, number, settings: self.settings, sink };
        match (session, message) {
            (Session::Postgres(postgres), Some(message)) => {
                postgres.accept(&message, &mut self.texts, &mut out);
            }
            (Session::Redis(redis), Some(message)) => redis.accept(&message, &mut self.texts, &mut out),
            (_, None) => {}
        }
    }

    /// A connection has ended, and what was not answered on it.
    pub(super) fn close(&mut self, close: &close_event, sink: &mut impl Sink) {
        let number = close.header.exchange >> ORDINAL_BITS;
        let Some(mut connection) = self.connections.remove(&number) else { return };
        let (missed_requests, missed_replies) = connection.missed(close);
        let (about, session) = connection.parts();
        let reason = u32::from(close.reason);
        let side = Some(about.side);
        if missed_requests > 0 {
            // A turn of PostgreSQL has several messages: how many calls they were is not known, but that there was one.
            let n = if about.system == System::Redis { missed_requests } else { 1 };
            let (stage, reason) = (loss::STAGE_PROTOCOL, loss::RECORDS_MISSING);
            sink.lost_many(Loss { stage, reason, side, tgid: about.tgid }, n);
        }
        let (stage, tgid) = (loss::STAGE_KERNEL, about.tgid);
        let mut each = |asked: &Asked, code: &str, namespace: &str| {
            if reason >= CLOSE_ABANDONED {
                let reason = loss::kernel_reason(u32::from(close.loss));
                return sink.lost(Loss { stage, reason, side, tgid });
            }
            if missed_replies > 0 {
                // Its answer may be among them.
                let (stage, reason) = (loss::STAGE_PROTOCOL, loss::RECORDS_MISSING);
                return sink.lost(Loss { stage, reason, side, tgid });
            }
            let failure = close_failure(reason, side, false, false);
            let answer = Answer { ended: close.header.time, code, operation: "", namespace };
            let exchange = about.exchange(number, asked, &answer, self.settings);
            sink.exchange(&Exchange { failure: failure.filter(|_| code.is_empty()), ..exchange });
        };
        match session {
            Session::Postgres(postgres) => postgres.end(&mut self.texts, &mut each),
            Session::Redis(redis) => redis.end(&mut each),
        }
    }

    /// A connection's end was lost: what is open there is, too, and the turns that were not seen up to the ordinal.
    /// `false` when it is not known.
    pub(super) fn forget(&mut self, number: u64, sink: &mut impl Sink) -> bool {
        const ORDINALS: u64 = 1 << ORDINAL_BITS;
        let Some(mut connection) = self.connections.remove(&(number >> ORDINAL_BITS)) else { return false };
        let (about, session) = connection.parts();
        let (stage, reason) = (loss::STAGE_KERNEL, loss::kernel_reason(LOSS_RING_FULL));
        let loss = Loss { stage, reason, side: Some(about.side), tgid: about.tgid };
        let next = match &*session {
            Session::Postgres(postgres) => postgres.next_turn(),
            Session::Redis(redis) => redis.next_turn(),
        };
        let unseen = (number % ORDINALS).wrapping_sub(u64::from(next)) % ORDINALS;
        // A turn that is behind the last one seen is none.
        if unseen > 0 && unseen < ORDINALS / 2 {
            sink.lost_many(loss, u32::try_from(unseen).unwrap_or(u32::MAX));
        }
        let mut each = |_: &Asked, _: &str, _: &str| sink.lost(loss);
        match session {
            Session::Postgres(postgres) => postgres.end(&mut self.texts, &mut each),
            Session::Redis(redis) => redis.end(&mut each),
        }
        true
    }

    /// Calls open now.
    pub(super) fn open(&self) -> usize {
        self.connections.values().map(Connection::open).sum()
    }

    /// Memory of statements, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.texts.held_bytes()
    }
}

/// What is known of the connection of a call.
#[derive(Debug)]
struct About {
    system: System,
    side: Side,
    tgid: u32,
    endpoints: super::Endpoints,
    encrypted: bool,
    n_calls: u32,
}

impl About {
    /// A call that was answered, as an exchange.
    fn exchange<'a>(
        &mut self,
        connection: u64,
        asked: &'a Asked,
        answer: &Answer<'a>,
        settings: Settings,
    ) -> Exchange<'a> {
        self.n_calls = self.n_calls.wrapping_add(1);
        let ordinal = u64::from(self.n_calls) & ((1 << ORDINAL_BITS) - 1);
        let statement = asked.statement.as_deref();
        let operation = match statement {
            Some(statement) => statement.operation,
            None if asked.operation.is_empty() => answer.operation,
            None => &asked.operation,
        };
        Exchange {
            number: connection << ORDINAL_BITS | ordinal,
            side: self.side,
            tgid: self.tgid,
            tid: asked.tid,
            cause: asked.cause,
            answerer: None,
            endpoints: self.endpoints,
            encrypted: self.encrypted,
            arrival: asked.arrival.min(answer.ended),
            started: asked.started.clamp(asked.arrival.min(answer.ended), answer.ended),
            ended: answer.ended,
            times: None,
            request_bytes: None,
            response_bytes: None,
            failure: None,
            message: Message::Database(Database {
                system: self.system,
                operation,
                summary: statement.map_or("", |statement| &statement.summary),
                collection: statement.map_or("", |statement| &statement.collection),
                text: statement.filter(|_| settings.query_text).map_or("", |statement| &statement.text),
                namespace: answer.namespace,
                code: answer.code,
            }),
        }
    }
}

/// Calls of one connection on their way to the sink.
struct Handover<'a, S> {
    about: &'a mut About,
    number: u64,
    settings: Settings,
    sink: &'a mut S,
}

impl<S: Sink> Outcome for Handover<'_, S> {
    fn answered(&mut self, asked: &Asked, answer: &Answer<'_>) {
        self.sink.exchange(&self.about.exchange(self.number, asked, answer, self.settings));
    }

    fn lost(&mut self, reason: &'static str, n: usize) {
        if n == 0 {
            return;
        }
        let loss =
            Loss { stage: loss::STAGE_PROTOCOL, reason, side: Some(self.about.side), tgid: self.about.tgid };
        self.sink.lost_many(loss, u32::try_from(n).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests;
