//! Redis: commands and replies of RESP 2 and 3 to calls.
//!
//! In: commands and replies of one connection, numbered in their order. Out: each call once. Subscriptions of RESP 2
//! and MONITOR turn a connection into a stream of messages without a question: from there on it is not followed, and
//! its commands are counted as lost. Refuses to know keys and values, which stay in the kernel.

use super::connection::Message;
use super::text::{OTHER, Texts};
use super::{Answer, Asked, Outcome};
use crate::protocol::loss::{NOT_FOLLOWED, PENDING_FULL, RECORDS_MISSING};
use obi_ebpf::redis_command;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Commands that may wait for their replies at once; of more, the oldest is lost.
const PENDING: usize = 65_536;

/// What is known of a connection.
#[derive(Debug)]
pub(super) struct Redis {
    pending: VecDeque<Pending>,
    /// The turn that comes next, of the client.
    next_turn: Option<u32>,
    /// Turns by which replies are behind: commands of RESP 3 that are answered by pushes have none.
    skew: u32,
    is_resp3: bool,
    is_followed: bool,
    /// `db.namespace`: the selected database's number, empty when not known.
    namespace: String,
}

#[derive(Debug)]
struct Pending {
    turn: u32,
    asked: Asked,
    effect: Effect,
}

/// What a command does to its connection, once it is answered without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    None,
    Select(String),
    Resp3,
    /// Messages come without a question.
    Subscribes,
    /// No reply is a reply any more.
    Unfollows,
}

impl Redis {
    pub(super) fn new(is_joined: bool) -> Self {
        Self {
            pending: VecDeque::new(),
            next_turn: (!is_joined).then_some(0),
            skew: 0,
            is_resp3: false,
            is_followed: true,
            namespace: if is_joined { String::new() } else { "0".to_owned() },
        }
    }

    /// Takes a message.
    pub(super) fn accept(&mut self, message: &Message<'_>, texts: &mut Texts, out: &mut impl Outcome) {
        let Ok((command, _)) = redis_command::read_from_prefix(message.payload) else { return };
        if message.is_request {
            self.request(message, &command, texts, out);
        } else if self.is_followed {
            self.reply(message, &command, out);
        }
    }

    /// The turn of the client that comes next; 0 before the first.
    pub(super) fn next_turn(&self) -> u32 {
        self.next_turn.unwrap_or(0)
    }

    /// Calls open now.
    pub(super) fn open(&self) -> usize {
        self.pending.len()
    }

    /// The connection has ended: hands over what is open.
    pub(super) fn end(&mut self, each: &mut impl FnMut(&Asked, &str, &str)) {
        for pending in std::mem::take(&mut self.pending) {
            each(&pending.asked, "", &self.namespace);
        }
    }

    fn request(
        &mut self,
        message: &Message<'_>,
        command: &redis_command,
        texts: &mut Texts,
        out: &mut impl Outcome,
    ) {
        if let Some(next) = self.next_turn {
            let missed = message.turn.wrapping_sub(next);
            if missed < 1 << 20 {
                out.lost(RECORDS_MISSING, missed as usize);
            }
        }
        self.next_turn = Some(message.turn.wrapping_add(1));
        if !self.is_followed {
            return out.lost(NOT_FOLLOWED, 1);
        }
        let operation = texts.command(first(&command.word, command.word_bytes));
        let argument = first(&command.argument, command.argument_bytes);
        let effect = effect_of(&operation, argument, self.is_resp3);
        if self.pending.len() >= PENDING && self.pending.pop_front().is_some() {
            out.lost(PENDING_FULL, 1);
        }
        let Message { tid, cause, arrival, started, .. } = *message;
        let asked = Asked { statement: None, operation, tid, cause, arrival, started };
        if effect == Effect::Unfollows {
            self.is_followed = false;
            out.lost(NOT_FOLLOWED, 1 + self.pending.len());
            self.pending.clear();
            return;
        }
        self.pending.push_back(Pending { turn: message.turn, asked, effect });
    }

    fn reply(&mut self, message: &Message<'_>, reply: &redis_command, out: &mut impl Outcome) {
        const PUSH: u8 = b'>';
        if message.kind == PUSH {
            let kind = first(&reply.word, reply.word_bytes);
            let is_answer = kind.is_empty() || kind.ends_with(b"subscribe");
            if is_answer && self.pending.front().is_some_and(|pending| pending.effect == Effect::Subscribes) {
                self.skew = self.skew.wrapping_add(1);
                self.answer(message, "", out);
            }
            return;
        }
        let turn = message.turn.wrapping_add(self.skew);
        while self.pending.front().is_some_and(|pending| turn.wrapping_sub(pending.turn).cast_signed() > 0) {
            self.pending.pop_front();
            out.lost(RECORDS_MISSING, 1);
        }
        if self.pending.front().is_none_or(|pending| pending.turn != turn) {
            return; // its command is missing, and counted
        }
        let word = first(&reply.word, reply.word_bytes);
        let code = match message.kind {
            b'-' => code_of(word),
            b'!' => OTHER,
            _ => "",
        };
        self.answer(message, code, out);
    }

    /// The oldest command is answered.
    fn answer(&mut self, message: &Message<'_>, code: &str, out: &mut impl Outcome) {
        let Some(Pending { asked, effect, .. }) = self.pending.pop_front() else { return };
        let answer = Answer { ended: message.ended, code, operation: "", namespace: &self.namespace };
        out.answered(&asked, &answer);
        if !code.is_empty() {
            return;
        }
        match effect {
            Effect::Select(number) => self.namespace = number,
            Effect::Resp3 => self.is_resp3 = true,
            Effect::Subscribes if !self.is_resp3 => {
                self.is_followed = false;
                out.lost(NOT_FOLLOWED, self.pending.len());
                self.pending.clear();
            }
            Effect::Subscribes | Effect::Unfollows | Effect::None => {}
        }
    }
}

fn effect_of(operation: &Arc<str>, argument: &[u8], is_resp3: bool) -> Effect {
    match &**operation {
        "SELECT" if !argument.is_empty() && argument.iter().all(u8::is_ascii_digit) => {
            Effect::Select(String::from_utf8_lossy(argument).into_owned())
        }
        "HELLO" if argument == b"3" => Effect::Resp3,
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" => Effect::Subscribes,
        "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" if is_resp3 => Effect::Subscribes,
        "MONITOR" | "SYNC" | "PSYNC" => Effect::Unfollows,
        "CLIENT" if argument.eq_ignore_ascii_case(b"reply") => Effect::Unfollows,
        _ => Effect::None,
    }
}

/// The first `n` of `bytes`.
fn first(bytes: &[u8], n: u8) -> &[u8] {
    &bytes[..usize::from(n).min(bytes.len())]
}

/// The first word of an error, which says what kind it is: `WRONGTYPE`.
fn code_of(word: &[u8]) -> &str {
    match std::str::from_utf8(word) {
        Ok(code) if !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()) => code,
        _ => OTHER,
    }
}
