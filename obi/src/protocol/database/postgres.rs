//! PostgreSQL: messages of the frontend/backend protocol 3 to calls.
//!
//! In: messages of one connection. Out: each call once. A call is a simple query up to ReadyForQuery, or one Execute up
//! to its own answer (PostgreSQL's documentation, chapter "Frontend/Backend Protocol", Message Flow). After an error
//! the server skips what follows up to the Sync: that was not run, and is no call. Refuses to know what statements
//! mean.

use super::connection::Message;
use super::sql::Statement;
use super::text::Texts;
use super::{Answer, Asked, Outcome};
use crate::protocol::loss::RECORDS_MISSING;
use hashbrown::HashMap;
use obi_ebpf::POSTGRES_STARTUP;
use std::collections::VecDeque;
use std::sync::Arc;

/// Prepared statements, and portals, that a connection keeps by name; of more, the text is not known.
const NAMED: usize = 256;
/// Longest name that is kept, bytes (PostgreSQL cuts at 63).
const NAME_BYTES: usize = 64;
/// Turns that may be open at once; of more, the oldest is lost.
const TURNS: usize = 256;
/// Executes of one turn; more are lost.
const EXECUTES: usize = 4_096;
/// Longest `db.namespace`, bytes.
const NAMESPACE_BYTES: usize = 64;
const STARTUP: u8 = POSTGRES_STARTUP as u8;

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Postgres {
    database: String,
    statements: HashMap<Box<[u8]>, Arc<Statement>>,
    portals: HashMap<Box<[u8]>, Arc<Statement>>,
    turns: VecDeque<Turn>,
    /// The turn that the client's last message belongs to.
    last_turn: Option<u32>,
    /// And the one that comes next.
    next_turn: u32,
}

/// What lies between two ReadyForQuery.
#[derive(Debug, Default)]
struct Turn {
    number: u32,
    /// Its calls that have not been answered.
    calls: VecDeque<Asked>,
    /// One simple query: its answer ends with the turn.
    is_simple: bool,
    /// A Parse without an Execute so far: an error is its.
    parsed: Option<Asked>,
    /// Code of the error; empty without one.
    code: String,
    /// Something was answered.
    is_answered: bool,
    /// Records are missing.
    is_damaged: bool,
    /// What the server says was done.
    tag: String,
}

impl Postgres {
    pub(super) fn new(is_joined: bool) -> Self {
        // The start-up message is turn 0.
        Self { last_turn: (!is_joined).then_some(0), ..Self::default() }
    }

    /// Takes a message.
    pub(super) fn accept(&mut self, message: &Message<'_>, texts: &mut Texts, out: &mut impl Outcome) {
        if message.is_request {
            self.request(message, texts, out);
        } else {
            self.response(message, out);
        }
    }

    /// The turn of the client that comes next, as far as is known.
    pub(super) fn next_turn(&self) -> u32 {
        self.next_turn
    }

    /// Calls open now.
    pub(super) fn open(&self) -> usize {
        self.turns.iter().map(|turn| turn.calls.len()).sum()
    }

    /// The connection has ended: hands over what is open, with the code of an error that came before.
    pub(super) fn end(&mut self, texts: &mut Texts, each: &mut impl FnMut(&Asked, &str, &str)) {
        for turn in std::mem::take(&mut self.turns) {
            for asked in &turn.calls {
                each(asked, &turn.code, &self.database);
            }
        }
        texts.give_back(self.statements.len());
        self.statements.clear();
    }

    fn request(&mut self, message: &Message<'_>, texts: &mut Texts, out: &mut impl Outcome) {
        if message.is_behind_gap {
            // What names stand for now is not known.
            self.portals.clear();
            self.forget(b"", texts);
        }
        if message.kind == STARTUP {
            self.database = database_of(message.payload);
            self.last_turn = Some(message.turn);
            self.next_turn = message.turn.wrapping_add(1);
            return;
        }
        self.advance_to(message, out);
        self.next_turn = message.turn.wrapping_add(u32::from(b"QSF".contains(&message.kind)));
        let payload = message.payload;
        match message.kind {
            b'Q' => {
                let statement = texts.statement(until_zero(payload).0);
                self.unprepare(&statement, texts);
                let asked = asked(message, Some(statement));
                let turn = self.turn(message.turn, out);
                turn.is_simple = true;
                turn.calls.push_back(asked);
            }
            b'F' => {
                let asked = asked(message, None);
                let turn = self.turn(message.turn, out);
                turn.is_simple = true;
                turn.calls.push_back(asked);
            }
            b'P' => {
                let (name, rest) = until_zero(payload);
                let statement = texts.statement(until_zero(rest).0);
                let asked = asked(message, Some(Arc::clone(&statement)));
                self.prepare(name, statement, texts);
                self.turn(message.turn, out).parsed = Some(asked);
            }
            b'B' => self.bind(payload),
            b'E' => {
                let statement = self.portals.get(until_zero(payload).0).cloned();
                let asked = asked(message, statement);
                let turn = self.turn(message.turn, out);
                turn.parsed = None;
                if turn.calls.len() < EXECUTES {
                    turn.calls.push_back(asked);
                } else {
                    out.lost(crate::protocol::loss::PENDING_FULL, 1);
                }
            }
            b'C' if payload.first() == Some(&b'S') => self.forget(until_zero(&payload[1..]).0, texts),
            _ => {}
        }
    }

    /// Turns between the last message and this one were missed.
    fn advance_to(&mut self, message: &Message<'_>, out: &mut impl Outcome) {
        if let Some(last) = self.last_turn.filter(|_| message.is_behind_gap) {
            let missed = message.turn.wrapping_sub(last).saturating_sub(1);
            if missed < 1 << 20 {
                out.lost(RECORDS_MISSING, missed as usize);
            }
        }
        self.last_turn = Some(message.turn);
    }

    /// The turn of that number, begun if need be.
    fn turn(&mut self, number: u32, out: &mut impl Outcome) -> &mut Turn {
        if self.turns.back().is_none_or(|turn| turn.number != number) {
            if self.turns.len() >= TURNS
                && let Some(oldest) = self.turns.pop_front()
            {
                out.lost(RECORDS_MISSING, oldest.calls.len());
            }
            self.turns.push_back(Turn { number, ..Turn::default() });
        }
        let last = self.turns.len() - 1;
        &mut self.turns[last]
    }

    fn prepare(&mut self, name: &[u8], statement: Arc<Statement>, texts: &mut Texts) {
        if let Some(held) = self.statements.get_mut(name) {
            *held = statement;
        } else if name.len() <= NAME_BYTES && self.statements.len() < NAMED && texts.may_keep() {
            self.statements.insert(name.into(), statement);
        }
    }

    /// A portal is made of a statement.
    fn bind(&mut self, payload: &[u8]) {
        let (portal, rest) = until_zero(payload);
        match self.statements.get(until_zero(rest).0) {
            Some(statement) if portal.len() <= NAME_BYTES && self.portals.len() < NAMED => {
                self.portals.insert(portal.into(), Arc::clone(statement));
            }
            _ => {
                self.portals.remove(portal);
            }
        }
    }

    fn forget(&mut self, name: &[u8], texts: &mut Texts) {
        texts.give_back(usize::from(self.statements.remove(name).is_some()));
    }

    /// Statements of SQL that take prepared ones away. Which one, is not looked at: its text comes again.
    fn unprepare(&mut self, statement: &Statement, texts: &mut Texts) {
        if matches!(statement.operation, "DEALLOCATE" | "DISCARD") {
            texts.give_back(self.statements.len());
            self.statements.clear();
            self.portals.clear();
        }
    }

    fn response(&mut self, message: &Message<'_>, out: &mut impl Outcome) {
        while self.turns.front().is_some_and(|turn| turn.number < message.turn) {
            let passed = self.turns.pop_front().unwrap_or_default();
            out.lost(RECORDS_MISSING, passed.calls.len());
        }
        let database = &self.database;
        let Some(turn) = self.turns.front_mut().filter(|turn| turn.number == message.turn) else { return };
        turn.is_damaged |= message.is_behind_gap;
        match message.kind {
            b'C' | b'I' | b's' => turn.complete(message, database, out),
            b'E' => turn.fail(message, database, out),
            b'Z' => {
                turn.finish(message, database, out);
                self.turns.pop_front();
            }
            _ => {}
        }
        if message.kind == b'Z' && self.turns.is_empty() && self.portals.len() > NAMED / 2 {
            self.portals.clear(); // portals end with their transaction; unnamed ones are bound anew
        }
    }
}

impl Turn {
    fn complete(&mut self, message: &Message<'_>, database: &str, out: &mut impl Outcome) {
        self.is_answered = true;
        let tag = operation_of(until_zero(message.payload).0);
        if self.is_simple {
            if self.tag.is_empty() {
                tag.clone_into(&mut self.tag);
            }
            return;
        }
        match self.calls.pop_front() {
            Some(asked) => {
                let answer = Answer { ended: message.ended, code: "", operation: tag, namespace: database };
                out.answered(&asked, &answer);
            }
            None => out.lost(RECORDS_MISSING, usize::from(self.is_damaged)),
        }
    }

    fn fail(&mut self, message: &Message<'_>, database: &str, out: &mut impl Outcome) {
        self.is_answered = true;
        code_of(message.payload).clone_into(&mut self.code);
        if self.is_simple {
            return;
        }
        let failed = self.calls.pop_front().or_else(|| self.parsed.take());
        if let Some(asked) = failed {
            let code = &self.code;
            out.answered(&asked, &Answer { ended: message.ended, code, operation: "", namespace: database });
        }
        self.calls.clear(); // not run: the server skips to the Sync
    }

    /// ReadyForQuery.
    fn finish(&mut self, message: &Message<'_>, database: &str, out: &mut impl Outcome) {
        let is_whole = self.is_simple && self.is_answered && !self.is_damaged;
        if !is_whole {
            // Of an empty query's text nothing is said but that it is empty; all else should have been answered.
            out.lost(RECORDS_MISSING, self.calls.len());
            return;
        }
        for asked in &self.calls {
            let answer =
                Answer { ended: message.ended, code: &self.code, operation: &self.tag, namespace: database };
            out.answered(asked, &answer);
        }
    }
}

fn asked(message: &Message<'_>, statement: Option<Arc<Statement>>) -> Asked {
    Asked {
        statement,
        operation: Arc::default(),
        tid: message.tid,
        cause: message.cause,
        arrival: message.arrival,
        started: message.started,
    }
}

/// What stands before the first zero, and what behind it.
fn until_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// The database of a start-up message's parameters; without one it is called as the user is.
fn database_of(payload: &[u8]) -> String {
    let (mut user, mut database, mut rest) = (&[][..], &[][..], payload);
    while !rest.is_empty() {
        let (name, behind) = until_zero(rest);
        let (value, next) = until_zero(behind);
        match name {
            b"user" => user = value,
            b"database" => database = value,
            _ => {}
        }
        rest = next;
    }
    let name = if database.is_empty() { user } else { database };
    String::from_utf8_lossy(&name[..name.len().min(NAMESPACE_BYTES)]).into_owned()
}

/// The SQLSTATE of an ErrorResponse's fields; `_OTHER` where it was not copied.
fn code_of(payload: &[u8]) -> &str {
    let mut rest = payload;
    while let Some((b'A'..=b'Z' | b'a'..=b'z', _)) = rest.split_first() {
        let (field, next) = until_zero(rest);
        if let Some((b'C', code)) = field.split_first()
            && code.len() == 5
            && code.iter().all(u8::is_ascii_alphanumeric)
        {
            return std::str::from_utf8(code).unwrap_or(super::text::OTHER);
        }
        rest = next;
    }
    super::text::OTHER
}

/// The first word of a command's tag: `INSERT` of `INSERT 0 1`.
fn operation_of(tag: &[u8]) -> &str {
    let word = tag.split(|byte| !byte.is_ascii_uppercase()).next().unwrap_or_default();
    std::str::from_utf8(&word[..word.len().min(16)]).unwrap_or_default()
}
