//! Messages of databases to calls.

use obi_ebpf::{
    CLOSE_DATABASE, CLOSE_LOCAL, EVENT_CLOSE, EVENT_FRAME, FRAME_FIRST_PIECE, FRAME_LAST_PIECE, ORDINAL_BITS,
    POSTGRES_STARTUP, PROTOCOL_POSTGRES, PROTOCOL_REDIS, SIDE_CLIENT, close_event, frame_event,
    redis_command,
};
use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::{Databases, Settings};
use crate::protocol::{Exchange, Limits, Loss, Message, Sink};

/// Calls as lines: operation, summary, code, failure, duration in the script's steps.
#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Message::Database(said) = exchange.message else { panic!("no database") };
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        let failure = exchange.failure.map_or("", |failure| failure.error_type());
        let took = exchange.ended - exchange.arrival;
        let (operation, summary, code) = (said.operation, said.summary, said.code);
        self.0.push(format!("{operation}|{summary}|{}|{code}{failure}|{took}", said.namespace));
    }

    fn lost(&mut self, loss: Loss) {
        self.0.push(format!("lost {}", loss.reason));
    }
}

/// A client's connection, one step of time for each message.
struct Script {
    databases: Databases,
    lines: Lines,
    protocol: u32,
    time: u64,
    sequences: [u32; 2],
    turns: [u32; 2],
}

impl Script {
    fn new(protocol: u32) -> Self {
        let mut databases = Databases::new(Limits::default());
        databases.set(Settings::default());
        Self { databases, lines: Lines::default(), protocol, time: 0, sequences: [0; 2], turns: [0; 2] }
    }

    fn frame(&mut self, is_request: bool, kind: u8, length: usize) -> frame_event {
        self.time += 1;
        let mut frame = frame_event::new_zeroed();
        frame.header.kind = EVENT_FRAME;
        (frame.header.tgid, frame.header.tid) = (7, 8);
        frame.header.flags = FRAME_FIRST_PIECE | FRAME_LAST_PIECE;
        (frame.header.time, frame.arrival) = (self.time, self.time);
        frame.header.exchange = 5 << ORDINAL_BITS;
        (frame.protocol, frame.type_, frame.side) = (self.protocol as u8, kind, SIDE_CLIENT as u8);
        frame.sent = u8::from(is_request);
        frame.stream = self.turns[usize::from(is_request)];
        frame.sequence = self.sequences[usize::from(is_request)];
        frame.length = length as u16;
        self.sequences[usize::from(is_request)] += 1;
        frame
    }

    fn message(&mut self, is_request: bool, kind: u8, payload: &[u8]) -> &mut Self {
        let frame = self.frame(is_request, kind, payload.len());
        self.databases.accept(&frame, payload, &mut self.lines);
        self
    }

    // PostgreSQL.

    fn ask(&mut self, kind: u8, payload: &[u8]) -> &mut Self {
        self.message(true, kind, payload);
        self.turns[1] += u32::from(b"QSF".contains(&kind) || u32::from(kind) == POSTGRES_STARTUP);
        self
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> &mut Self {
        self.message(false, kind, payload);
        self.turns[0] += u32::from(kind == b'Z');
        self
    }

    fn begin() -> Self {
        let mut script = Self::new(PROTOCOL_POSTGRES);
        script.ask(POSTGRES_STARTUP as u8, b"user\0u\0database\0shop\0\0").answer(b'Z', b"I");
        script
    }

    // Redis.

    fn command(&mut self, word: &str, argument: &str) -> &mut Self {
        let mut command = redis_command::new_zeroed();
        command.word[..word.len()].copy_from_slice(word.as_bytes());
        command.argument[..argument.len()].copy_from_slice(argument.as_bytes());
        (command.word_bytes, command.argument_bytes) = (word.len() as u8, argument.len() as u8);
        self.message(true, b'*', command.as_bytes());
        self.turns[1] += 1;
        self
    }

    fn reply(&mut self, kind: u8, word: &str) -> &mut Self {
        let mut reply = redis_command::new_zeroed();
        reply.word[..word.len()].copy_from_slice(word.as_bytes());
        reply.word_bytes = word.len() as u8;
        self.message(false, kind, reply.as_bytes());
        self.turns[0] += u32::from(kind != b'>');
        self
    }

    /// A record that is lost on its way.
    fn lose(&mut self, is_request: bool, turns: u32) -> &mut Self {
        self.sequences[usize::from(is_request)] += 1;
        self.turns[usize::from(is_request)] += turns;
        self
    }

    fn close(&mut self) -> &mut Self {
        let mut close = close_event::new_zeroed();
        (close.header.kind, close.header.flags) = (EVENT_CLOSE, CLOSE_DATABASE);
        (close.header.exchange, close.header.time) = (5 << ORDINAL_BITS, self.time + 1);
        close.reason = CLOSE_LOCAL as u8;
        (close.received_pieces, close.sent_pieces) = (self.sequences[0], self.sequences[1]);
        self.databases.close(&close, &mut self.lines);
        self
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(self.lines.0, expected);
    }
}

#[test]
fn simple_queries() {
    let mut script = Script::begin();
    script.ask(b'Q', b"SELECT * FROM t WHERE a = 'x'\0").answer(b'C', b"SELECT 5\0").answer(b'Z', b"I");
    script.ask(b'Q', b"nonsense\0").answer(b'E', b"SERROR\0C42601\0").answer(b'Z', b"I");
    script.ask(b'Q', b"\0").answer(b'I', b"").answer(b'Z', b"I");
    script.check(&["SELECT|SELECT t|shop||2", "||shop|42601|2", "||shop||2"]);
}

#[test]
fn several_statements_of_which_one_fails() {
    let mut script = Script::begin();
    script
        .ask(b'Q', b"SELECT 1; SELECT 1/0\0")
        .answer(b'C', b"SELECT 1\0")
        .answer(b'E', b"C22012\0")
        .answer(b'Z', b"I");
    script.check(&["|SELECT SELECT|shop|22012|3"]);
}

#[test]
fn prepared_statements() {
    let mut script = Script::begin();
    script.ask(b'P', b"s1\0INSERT INTO t VALUES ($1)\0").ask(b'S', b"").answer(b'Z', b"I");
    for _ in 0..2 {
        script
            .ask(b'B', b"\0s1\0")
            .ask(b'E', b"\0")
            .ask(b'S', b"")
            .answer(b'C', b"INSERT 0 1\0")
            .answer(b'Z', b"I");
    }
    script.ask(b'C', b"Ss1\0").ask(b'S', b"").answer(b'Z', b"I");
    script
        .ask(b'B', b"\0s1\0")
        .ask(b'E', b"\0")
        .ask(b'S', b"")
        .answer(b'C', b"INSERT 0 1\0")
        .answer(b'Z', b"I");
    script.check(&["INSERT|INSERT t|shop||2", "INSERT|INSERT t|shop||2", "INSERT||shop||2"]);
}

/// Behind an error the server skips to the Sync: what was skipped is no call.
#[test]
fn a_pipeline_of_which_one_fails() {
    let mut script = Script::begin();
    for text in ["UPDATE a SET b = 1", "UPDATE b SET b = 1", "UPDATE c SET b = 1"] {
        script.ask(b'P', format!("\0{text}\0").as_bytes()).ask(b'B', b"\0\0").ask(b'E', b"\0");
    }
    script.ask(b'S', b"");
    script.answer(b'C', b"UPDATE 1\0").answer(b'E', b"C23505\0").answer(b'Z', b"I");
    script.check(&["UPDATE|UPDATE a|shop||8", "UPDATE|UPDATE b|shop|23505|6"]);
}

#[test]
fn a_parse_that_fails() {
    let mut script = Script::begin();
    script.ask(b'P', b"s\0SELECT nothing FROM\0").ask(b'S', b"").answer(b'E', b"C42601\0").answer(b'Z', b"I");
    script.check(&["SELECT|SELECT|shop|42601|2"]);
}

#[test]
fn a_connection_ends_before_the_answer() {
    let mut script = Script::begin();
    script.ask(b'Q', b"SELECT 1\0").close();
    script.check(&["SELECT|SELECT|shop|connection_aborted|1"]);
    let mut script = Script::begin();
    script.ask(b'Q', b"SELECT 1\0").answer(b'E', b"SFATAL\0C57P01\0").close();
    script.check(&["SELECT|SELECT|shop|57P01|2"]);
}

/// Sent = seen + lost, whatever record is missing, and no answer is given to another question.
#[test]
fn missing_records() {
    let ask = |script: &mut Script, table: &str| {
        script.ask(b'Q', format!("SELECT * FROM {table}\0").as_bytes());
    };
    let mut script = Script::begin();
    script.lose(true, 1).answer(b'C', b"SELECT 1\0").answer(b'Z', b"I");
    ask(&mut script, "b");
    script.answer(b'C', b"SELECT 1\0").answer(b'Z', b"I");
    script.check(&["lost records_missing", "SELECT|SELECT b|shop||2"]);

    let mut script = Script::begin();
    ask(&mut script, "a");
    script.lose(false, 0).answer(b'Z', b"I");
    ask(&mut script, "b");
    script.answer(b'C', b"SELECT 1\0").lose(false, 1);
    ask(&mut script, "c");
    script.answer(b'C', b"SELECT 1\0").answer(b'Z', b"I");
    script.check(&["lost records_missing", "lost records_missing", "lost records_missing"]);

    let mut script = Script::begin();
    ask(&mut script, "a");
    script.lose(false, 1).close();
    script.check(&["lost records_missing"]);
}

/// The end of the connection itself finds no room in the ring: its number says how many turns there were.
#[test]
fn a_lost_end() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("A", "").command("B", "").reply(b'+', "").lose(true, 3);
    assert!(script.databases.forget(5 << ORDINAL_BITS | 5, &mut script.lines));
    script.check(&["A||0||2", "lost ring_full", "lost ring_full", "lost ring_full", "lost ring_full"]);
    let mut script = Script::begin();
    script.ask(b'Q', b"SELECT 1\0");
    assert!(script.databases.forget(5 << ORDINAL_BITS | 2, &mut script.lines));
    assert!(!script.databases.forget(5 << ORDINAL_BITS | 2, &mut script.lines));
    script.check(&["lost ring_full"]);
}

#[test]
fn commands() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("get", "").command("LPUSH", "").command("FT.SEARCH", "");
    script.reply(b'$', "").reply(b'-', "WRONGTYPE").reply(b'*', "");
    script.check(&["GET||0||3", "LPUSH||0|WRONGTYPE|3", "FT.SEARCH||0||3"]);
}

#[test]
fn the_selected_database() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script
        .command("SELECT", "9")
        .reply(b'+', "")
        .command("SELECT", "99")
        .reply(b'-', "ERR")
        .command("GET", "");
    script.reply(b'_', "");
    script.check(&["SELECT||0||1", "SELECT||9|ERR|1", "GET||9||1"]);
}

#[test]
fn subscriptions() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("SUBSCRIBE", "").reply(b'*', "").reply(b'*', "").command("PING", "").reply(b'*', "");
    script.check(&["SUBSCRIBE||0||1", "lost not_followed"]);
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("HELLO", "3").reply(b'%', "").command("SUBSCRIBE", "").reply(b'>', "").reply(b'>', "");
    script.command("PING", "").reply(b'+', "").command("GET", "").reply(b'>', "").reply(b'$', "");
    script.check(&["HELLO||0||1", "SUBSCRIBE||0||1", "PING||0||1", "GET||0||2"]);
    // What is pushed about something else is no answer.
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("HELLO", "3").reply(b'%', "").command("SUBSCRIBE", "").reply(b'>', "invalidate");
    script.reply(b'>', "message").reply(b'>', "subscribe").command("PING", "").reply(b'+', "");
    script.check(&["HELLO||0||1", "SUBSCRIBE||0||3", "PING||0||1"]);
}

#[test]
fn streams_without_replies_are_not_followed() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("CLIENT", "REPLY").command("SET", "").command("MONITOR", "");
    script.check(&["lost not_followed", "lost not_followed", "lost not_followed"]);
}

#[test]
fn missing_commands_and_replies() {
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("A", "").lose(true, 1).command("C", "").command("D", "").command("E", "");
    script.reply(b'+', "").reply(b'+', "").reply(b'+', "").lose(false, 1).reply(b'+', "");
    script.check(&["lost records_missing", "A||0||4", "C||0||5", "lost records_missing", "E||0||4"]);
    let mut script = Script::new(PROTOCOL_REDIS);
    script.lose(true, 2).lose(false, 2).command("C", "").reply(b'+', "");
    script.check(&["lost records_missing", "lost records_missing", "C||0||1"]);
    let mut script = Script::new(PROTOCOL_REDIS);
    script.command("A", "").command("B", "").lose(true, 1).reply(b'+', "").lose(false, 1).close();
    script.check(&["A||0||2", "lost records_missing", "lost records_missing"]);
}

proptest! {
    /// Any records at all: nothing panics, and nothing is kept without bound.
    #[test]
    fn any_records(
        is_redis: bool,
        records in proptest::collection::vec(
            (any::<bool>(), any::<u8>(), 0u32..6, 0u32..4, 0u32..4, proptest::collection::vec(any::<u8>(), 0..60)),
            0..60,
        ),
    ) {
        let mut script = Script::new(if is_redis { PROTOCOL_REDIS } else { PROTOCOL_POSTGRES });
        for (is_request, kind, turn, skip, flags, payload) in records {
            let kind = [b'Q', b'P', b'B', b'E', b'S', b'C', b'Z', b'*', b'>', kind][usize::from(kind) % 10];
            let mut frame = script.frame(is_request, kind, payload.len());
            frame.sequence += skip;
            frame.stream = turn;
            frame.header.flags = flags;
            script.databases.accept(&frame, &payload, &mut script.lines);
        }
        script.close();
        prop_assert_eq!(script.databases.open(), 0);
    }
}
