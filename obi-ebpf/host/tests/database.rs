//! Conversations with databases, cut at random. The records are the same wherever a cut is, and hold no value.

use fastrand::Rng;
use obi_ebpf::*;
use obi_ebpf_host::frames::Frame;
use obi_ebpf_host::ledger::Ledger;
use obi_ebpf_host::{Connection, Faults, Kernel, Segment};
use proptest::prelude::*;
use std::fmt::Write as _;

const NONE: Faults = Faults { ring: 0, user: 0, note: 0, spare: 0, steps: 0 };
/// In every value, key and password, and nowhere else.
const SECRET: &str = "zqvalue";

/// PostgreSQL's length of a message: of the payload and so many bytes before it.
fn length_of(payload: &[u8], before: u32) -> [u8; 4] {
    (u32::try_from(payload.len()).expect("test sizes") + before).to_be_bytes()
}

/// What one side says before the other does, and what is to be reported of it.
#[derive(Debug, Clone)]
struct Said {
    by_client: bool,
    bytes: Vec<u8>,
    reported: Vec<Reported>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    kind: u8,
    turn: u32,
    payload: Vec<u8>,
    /// The payload may be missing where its beginning lies in more than one piece.
    is_cut_apart: bool,
}

/// A conversation as it is made: turns are counted as event.h says.
#[derive(Debug, Default)]
struct Script {
    said: Vec<Said>,
    turns: [u32; 2],
}

impl Script {
    fn say(&mut self, by_client: bool) -> &mut Said {
        if self.said.last().is_none_or(|last| last.by_client != by_client) {
            self.said.push(Said { by_client, bytes: Vec::new(), reported: Vec::new() });
        }
        self.said.last_mut().expect("just pushed")
    }

    fn tell(&mut self, by_client: bool, kind: u8, payload: &[u8]) {
        let turn = self.turns[usize::from(by_client)];
        self.say(by_client).reported.push(Reported {
            kind,
            turn,
            payload: payload.to_vec(),
            is_cut_apart: false,
        });
    }

    // PostgreSQL.

    fn startup(&mut self, parameters: &[u8]) {
        let mut bytes = length_of(parameters, 8).to_vec();
        bytes.extend(196_608_u32.to_be_bytes());
        bytes.extend(parameters);
        self.say(true).bytes.extend(bytes);
        self.tell(true, POSTGRES_STARTUP as u8, parameters);
        self.turns[1] += 1;
    }

    /// A message of which `reported` is to be reported, if anything.
    fn message(&mut self, by_client: bool, kind: u8, payload: &[u8], reported: Option<&[u8]>) {
        let said = self.say(by_client);
        said.bytes.push(kind);
        said.bytes.extend(length_of(payload, 4));
        said.bytes.extend(payload);
        if let Some(reported) = reported {
            self.tell(by_client, kind, reported);
            let said = self.say(by_client);
            let last = said.reported.last_mut().expect("just reported");
            last.is_cut_apart = reported.len() < payload.len();
        }
        if if by_client { b"QSF".contains(&kind) } else { kind == b'Z' } {
            self.turns[usize::from(by_client)] += 1;
        }
    }

    fn answer(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(..5) {
            let row = SECRET.repeat(rng.usize(1..20));
            self.message(false, b'D', row.as_bytes(), None);
        }
        if rng.u8(..4) == 0 {
            let shown = b"SERROR\0VERROR\0C22012\0";
            let whole = [shown, b"M".as_slice(), SECRET.as_bytes(), b"\0\0"].concat();
            self.message(false, b'E', &whole, Some(shown));
        } else {
            self.message(false, b'C', b"SELECT 1\0", Some(b"SELECT 1\0"));
        }
    }

    /// COPY by the extended protocol: the server passes over the first Sync.
    fn copy_in(&mut self, rng: &mut Rng) {
        let text = b"\0COPY t FROM STDIN\0\0\0";
        self.message(true, b'P', text, Some(text));
        self.message(true, b'B', b"\0\0\0\0\0\0\0\0", Some(b"\0\0"));
        self.message(true, b'E', b"\0\0\0\0\0", Some(b"\0\0\0\0\0"));
        self.message(true, b'S', b"", Some(b""));
        for kind in *b"12G" {
            self.message(false, kind, b"", None);
        }
        for _ in 0..rng.usize(..50) {
            self.message(true, b'd', SECRET.repeat(rng.usize(1..30)).as_bytes(), None);
        }
        self.turns[1] -= 1;
        if rng.bool() {
            self.message(true, b'c', b"", Some(b""));
        } else {
            self.message(true, b'f', SECRET.as_bytes(), Some(b""));
        }
        self.message(true, b'S', b"", Some(b""));
        self.answer(rng);
    }

    fn postgres(rng: &mut Rng, n: usize) -> Self {
        let mut script = Self::default();
        script.startup(b"user\0u\0database\0d\0\0");
        script.message(false, b'R', &[0, 0, 0, 0], None);
        script.message(false, b'S', b"server_version\x0015\0", None);
        script.message(false, b'Z', b"I", Some(b"I"));
        for nth in 0..n {
            if rng.u8(..4) == 0 {
                script.copy_in(rng);
            } else if rng.bool() {
                let text = format!("SELECT {nth} FROM t WHERE {}\0", "a ".repeat(rng.usize(..1500)));
                let reported = &text.as_bytes()[..text.len().min(1896)];
                script.message(true, b'Q', text.as_bytes(), Some(reported));
                script.answer(rng);
            } else {
                let n_calls = rng.usize(1..4);
                for call in 0..n_calls {
                    let parse = format!("s{call}\0SELECT {nth}\0\0\0");
                    script.message(true, b'P', parse.as_bytes(), Some(parse.as_bytes()));
                    let names = format!("p{call}\0s{call}\0");
                    let bind = format!("{names}{}", SECRET.repeat(rng.usize(1..30)));
                    script.message(true, b'B', bind.as_bytes(), Some(names.as_bytes()));
                    script.message(true, b'D', format!("Pp{call}\0").as_bytes(), None);
                    let execute = format!("p{call}\0\0\0\0\0");
                    script.message(true, b'E', execute.as_bytes(), Some(execute.as_bytes()));
                }
                script.message(true, b'S', b"", Some(b""));
                for _ in 0..n_calls {
                    script.message(false, b'1', b"", None);
                    script.message(false, b'2', b"", None);
                    script.answer(rng);
                }
            }
            script.message(false, b'Z', b"T", Some(b"T"));
        }
        script
    }

    // Redis.

    fn command(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(text, "${}\r\n{word}\r\n", word.len());
        }
        self.say(true).bytes.extend(text.as_bytes());
        let has_argument = ["select", "client", "hello"].contains(&words[0].to_lowercase().as_str());
        let argument = words.get(1).filter(|argument| has_argument && argument.len() <= 8).unwrap_or(&"");
        let word = if words[0].len() <= 24 { words[0] } else { "" };
        let reported = format!("{}|{word}|{argument}", words.len());
        self.tell(true, b'*', reported.as_bytes());
        self.turns[1] += 1;
    }

    fn reply(&mut self, text: &str, code: &str) {
        self.say(false).bytes.extend(text.as_bytes());
        self.tell(false, text.as_bytes()[0], format!("0|{code}|").as_bytes());
        if !text.starts_with('>') {
            self.turns[0] += 1;
        }
    }

    fn redis(rng: &mut Rng, n: usize) -> Self {
        const VALUE: &str = SECRET;
        let mut script = Self::default();
        for _ in 0..n {
            let n_pipelined = rng.usize(1..6);
            for _ in 0..n_pipelined {
                let long = VALUE.repeat(rng.usize(1..400));
                match rng.u8(..7) {
                    0 => script.command(&["GET", VALUE]),
                    1 => script.command(&["set", VALUE, &long]),
                    2 => script.command(&["SELECT", "3"]),
                    3 => script.command(&["AUTH", VALUE]),
                    4 => script.command(&["PING"]),
                    5 => script.command(&["a-command-that-is-longer-than-any-that-is-known", "", VALUE]),
                    _ => script.command(&["client", "setname", VALUE]),
                }
            }
            for _ in 0..n_pipelined {
                let long = VALUE.repeat(rng.usize(1..400));
                match rng.u8(..9) {
                    0 => script.reply("+OK\r\n", ""),
                    1 => script.reply(&format!("${}\r\n{long}\r\n", long.len()), ""),
                    2 => script.reply("$-1\r\n", ""),
                    3 => script.reply("-WRONGTYPE zqvalue of another kind\r\n", "WRONGTYPE"),
                    4 => script.reply(&format!("*3\r\n${}\r\n{long}\r\n:5\r\n*1\r\n$-1\r\n", long.len()), ""),
                    5 => script.reply("%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n", ""),
                    6 => script.reply("|1\r\n+ttl\r\n:3\r\n#t\r\n", ""),
                    7 => script.reply(&format!("+{long}\r\n"), ""),
                    _ => script.reply(",1.5\r\n", ""),
                }
                match rng.u8(..20) {
                    0 => script.reply(">2\r\n+message\r\n+zqvalue\r\n", ""),
                    1 => script.reply(">2\r\n*1\r\n$7\r\nzqvalue\r\n$7\r\nzqvalue\r\n", ""),
                    2 => script.reply(">2\r\n$-1\r\n$7\r\nzqvalue\r\n", ""),
                    3 => script.reply(">2\r\n$6\r\nclient\r\n$7\r\nzqvalue\r\n", "client"),
                    4 => script.reply(">2\r\n$10\r\ninvalidate\r\n*1\r\n$7\r\nzqvalue\r\n", "invalidate"),
                    _ => {}
                }
            }
        }
        script
    }
}

struct Play {
    kernel: Kernel,
    connection: Connection,
    ledger: Ledger,
    time: u64,
}

impl Play {
    fn new(joined: bool) -> Self {
        let mut kernel = Kernel::boot(1, 256, NONE);
        let connection = kernel.connect(joined);
        Self { kernel, connection, ledger: Ledger::default(), time: 0 }
    }

    fn pass(&mut self, sending: bool, bytes: &[u8], rng: &mut Rng) {
        self.time += 1000;
        let exact = bytes.to_vec();
        // A protocol is recognised by sixteen bytes in one buffer.
        if self.time == 1000 || rng.bool() || bytes.len() < 2 {
            self.kernel.segment(&mut self.connection, sending, 0, Segment::Buffer(&exact), self.time);
        } else {
            let (first, second) = bytes.split_at(rng.usize(..bytes.len()));
            let (first, second) = (first.to_vec(), second.to_vec());
            let vector = [&first[..], &[], &second[..]];
            self.kernel.segment(&mut self.connection, sending, 0, Segment::Vector(&vector), self.time);
        }
        self.ledger.read(&self.kernel);
    }

    /// Plays a script in pieces of at most `most` bytes.
    fn play(&mut self, script: &Script, is_server: bool, most: usize, rng: &mut Rng) {
        for said in &script.said {
            let mut rest = &said.bytes[..];
            while !rest.is_empty() {
                let least = if self.time == 0 { 16 } else { 1 };
                let (piece, behind) = rest.split_at(rng.usize(1..=most).max(least).min(rest.len()));
                self.pass(said.by_client != is_server, piece, rng);
                rest = behind;
            }
        }
    }
}

/// What of a Redis record's payload has a meaning.
fn shown(frame: &Frame, is_redis: bool) -> Vec<u8> {
    if !is_redis {
        return frame.payload.clone();
    }
    let n_words = frame.payload.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let (word, argument) = (usize::from(frame.payload[4]), usize::from(frame.payload[5]));
    let text = |from: usize, n: usize| String::from_utf8_lossy(&frame.payload[from..from + n]).into_owned();
    format!("{n_words}|{}|{}", text(6, word), text(32, argument)).into_bytes()
}

fn check(script: &Script, is_redis: bool, is_server: bool, most: usize, seed: u64) {
    let mut play = Play::new(false);
    play.play(script, is_server, most, &mut Rng::with_seed(seed));
    for by_client in [true, false] {
        let expected: Vec<&Reported> = script
            .said
            .iter()
            .filter(|said| said.by_client == by_client)
            .flat_map(|said| &said.reported)
            .collect();
        let reported: Vec<&Frame> =
            play.ledger.frames.frames.iter().filter(|frame| frame.sent == (by_client != is_server)).collect();
        assert_eq!(reported.len(), expected.len(), "by client: {by_client}");
        for (frame, expected) in reported.iter().zip(expected) {
            assert_eq!((frame.kind, frame.stream), (expected.kind, expected.turn));
            let payload = shown(frame, is_redis);
            let is_right = payload == expected.payload || (expected.is_cut_apart && payload.is_empty());
            assert!(
                is_right,
                "{}: {:?} for {:?}",
                char::from(frame.kind),
                String::from_utf8_lossy(&payload),
                String::from_utf8_lossy(&expected.payload)
            );
        }
    }
    let secret = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
    assert!(!play.ledger.frames.frames.iter().any(|frame| secret(&frame.payload)), "a value was reported");
    assert_eq!((play.kernel.lost(), play.kernel.uncovered()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn postgres_is_reported_wherever_it_is_cut(seed: u64, n in 1usize..6, is_server: bool, most in 1usize..5000) {
        check(&Script::postgres(&mut Rng::with_seed(seed), n), false, is_server, most, seed);
    }

    #[test]
    fn redis_is_reported_wherever_it_is_cut(seed: u64, n in 1usize..6, is_server: bool, most in 1usize..3000) {
        check(&Script::redis(&mut Rng::with_seed(seed), n), true, is_server, most, seed);
    }

    #[test]
    fn any_bytes_behind_a_beginning(seed: u64, is_redis: bool, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut rng = Rng::with_seed(seed);
        let script = if is_redis { Script::redis(&mut rng, 1) } else { Script::postgres(&mut rng, 1) };
        let mut play = Play::new(false);
        play.play(&script, false, 100_000, &mut rng);
        play.pass(true, &[&b"x"[..], &bytes].concat(), &mut rng);
        play.pass(false, &[&b"y"[..], &bytes].concat(), &mut rng);
        // It is found again, in both directions.
        let before = play.ledger.frames.frames.len();
        let again = if is_redis { Script::redis(&mut rng, 2) } else { Script::postgres(&mut rng, 2) };
        let skip = usize::from(!is_redis) * 2;
        for said in &again.said[skip..] {
            let segment = Segment::Buffer(&said.bytes);
            play.kernel.segment(&mut play.connection, said.by_client, 0, segment, 9);
            play.ledger.read(&play.kernel);
        }
        prop_assert!(play.ledger.frames.frames.len() > before);
    }
}

/// What begins like a database's protocol and is none.
#[test]
fn others_are_left_alone() {
    for bytes in [
        &b"*1\n$4\nPING\n"[..],
        b"*many\r\n$4\r\n",
        b"\0\0\0\x10\0\x02\0\0 0123456789",
        b"Q\0\0\0\x09SELEC",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"\0\0\0\x05\0\0\0\0\0",
        b"get k\r\n",
    ] {
        let mut play = Play::new(false);
        play.pass(true, bytes, &mut Rng::with_seed(1));
        play.pass(false, b"anything", &mut Rng::with_seed(1));
        assert_eq!(play.ledger.frames.frames, [], "{bytes:?}");
    }
}

/// Behind the answer to an SSLRequest TLS begins, or it does not.
#[test]
fn a_request_for_tls() {
    const ASKED: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
    let rng = &mut Rng::with_seed(1);
    let mut play = Play::new(false);
    play.pass(true, ASKED, rng);
    play.pass(false, b"S", rng);
    play.pass(true, b"\x16\x03\x01\x00\x05hello", rng);
    play.pass(false, b"\x16\x03\x03\x00\x05hello", rng);
    play.time += 1000;
    play.kernel.end(&mut play.connection, CLOSE_LOCAL, play.time);
    assert_eq!((play.ledger.frames.frames.len(), play.kernel.uncovered()), (0, 1));

    drop(play);
    let mut play = Play::new(false);
    play.pass(true, ASKED, rng);
    play.pass(false, b"N", rng);
    play.play(&Script::postgres(rng, 2), false, 100_000, rng);
    assert!(play.ledger.frames.frames.len() > 4);
    assert_eq!((play.kernel.lost(), play.kernel.uncovered()), (0, 0));
}

/// An end that finds no room in the ring says how many turns were asked for.
#[test]
fn an_end_without_room() {
    for (is_redis, n, turns) in [(false, 0, 1), (false, 1, 2), (true, 1, 1), (true, 3, 3)] {
        let mut play = Play::new(false);
        let text = |text: &[u8]| [text, &[0]].concat();
        if is_redis {
            for _ in 0..n {
                play.pass(true, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", &mut Rng::with_seed(1));
            }
        } else {
            let startup = text(b"user\0someone\0database\0shop\0");
            let length = length_of(&startup, 8);
            let first = [&length[..], &[0, 3, 0, 0], &startup].concat();
            play.pass(true, &first, &mut Rng::with_seed(1));
            for _ in 0..n {
                let query = text(b"SELECT 1");
                play.pass(true, &[&b"Q"[..], &length_of(&query, 4), &query].concat(), &mut Rng::with_seed(1));
            }
        }
        play.kernel.set_faults(Faults { ring: 256, ..NONE });
        play.kernel.end(&mut play.connection, CLOSE_LOCAL, play.time);
        play.ledger.read(&play.kernel);
        assert_eq!(play.ledger.frames.turns, Some(turns), "redis: {is_redis}, {n} times");
    }
}

/// Joined in the middle: from the next question on.
#[test]
fn joined() {
    let rng = &mut Rng::with_seed(7);
    for is_redis in [false, true] {
        let script = if is_redis { Script::redis(rng, 4) } else { Script::postgres(rng, 4) };
        let mut play = Play::new(true);
        play.pass(false, if is_redis { b"the rest of a value\r\n" } else { b"\0\0the rest of a row" }, rng);
        for said in &script.said[2..] {
            play.kernel.segment(
                &mut play.connection,
                said.by_client,
                0,
                Segment::Buffer(&said.bytes.clone()),
                9,
            );
            play.ledger.read(&play.kernel);
        }
        let expected: usize = script.said[2..].iter().map(|said| said.reported.len()).sum();
        assert_eq!(play.ledger.frames.frames.len(), expected, "Redis: {is_redis}");
        let turns = |sent: bool| {
            play.ledger
                .frames
                .frames
                .iter()
                .filter(|frame| frame.sent == sent && frame.kind != b'>') // a push has no turn
                .map(|frame| frame.stream)
                .max()
        };
        assert_eq!(turns(true), turns(false), "questions and answers are in step");
    }
}
