//! Stories of connections that go on in HTTP/2 or WebSocket: how they are recognised, what is reported, what is lost.

use obi_ebpf::*;
use obi_ebpf_host::ledger::{Fate, Ledger};
use obi_ebpf_host::{Connection, Faults, Kernel, Segment};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0];
const FULL: Faults = Faults { ring: 256, user: 0, note: 0, spare: 0, steps: 0 };
const NONE: Faults = Faults { ring: 0, user: 0, note: 0, spare: 0, steps: 0 };

struct Story {
    kernel: Kernel,
    connection: Connection,
    ledger: Ledger,
    time: u64,
}

impl Story {
    fn new(joined: bool) -> Self {
        let mut kernel = Kernel::boot(1, 256, NONE);
        let connection = kernel.connect(joined);
        Self { kernel, connection, ledger: Ledger::default(), time: 0 }
    }

    /// An HTTP/2 connection that a server has accepted.
    fn http2() -> Self {
        let mut story = Self::new(false);
        story.receive(PREFACE).receive(SETTINGS).send(SETTINGS);
        story
    }

    fn pass(&mut self, sending: bool, gap: u32, segment: Segment<'_>) -> &mut Self {
        self.time += 1000;
        self.kernel.segment(&mut self.connection, sending, gap, segment, self.time);
        self.ledger.read(&self.kernel);
        self
    }

    fn receive(&mut self, bytes: &[u8]) -> &mut Self {
        let exact = bytes.to_vec(); // so that a sanitizer sees a read beyond it
        self.pass(false, 0, Segment::Buffer(&exact))
    }

    fn send(&mut self, bytes: &[u8]) -> &mut Self {
        let exact = bytes.to_vec();
        self.pass(true, 0, Segment::Buffer(&exact))
    }

    fn end(&mut self, reason: u32) -> &mut Self {
        self.time += 1000;
        self.kernel.end(&mut self.connection, reason, self.time);
        self.ledger.read(&self.kernel);
        self
    }

    /// Frames reported: `r` or `s`, type, stream, how much of the payload.
    fn reported(&self) -> String {
        let reported = self.ledger.frames.frames.iter().map(|frame| {
            let names = [
                "data", "headers", "priority", "rst", "settings", "push", "ping", "goaway", "window", "cont",
            ];
            let cut = if frame.truncated { "+" } else { "" };
            let way = if frame.sent { "s" } else { "r" };
            let joined = if frame.joined { "j" } else { "" };
            format!(
                "{way}{joined}:{}/{}:{}{cut}",
                names[usize::from(frame.kind)],
                frame.stream,
                frame.payload.len()
            )
        });
        reported.collect::<Vec<_>>().join(" ")
    }

    fn side(&self) -> u32 {
        self.kernel.state(&self.connection).side
    }

    /// Records missing of what was received and sent.
    fn missing(&self) -> (u64, u64) {
        let missing = |sent| self.ledger.frames.missing.get(&sent).copied().unwrap_or(0);
        (missing(false), missing(true))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request or response head: END_HEADERS, `first` a field of the static table.
fn headers(stream: u32, first: u8, ends: bool) -> Vec<u8> {
    frame(1, 4 | u8::from(ends), stream, &[&[first][..], &[0xbf; 20]].concat())
}

fn request(stream: u32) -> Vec<u8> {
    headers(stream, 0x82, true)
}

fn response(stream: u32) -> Vec<u8> {
    headers(stream, 0x88, true)
}

#[test]
fn the_preface_tells_sides() {
    for (server, side) in [(true, SIDE_SERVER), (false, SIDE_CLIENT)] {
        for cut in 1..PREFACE.len() {
            let mut story = Story::new(false);
            story.pass(!server, 0, Segment::Buffer(&PREFACE[..cut]));
            story.pass(!server, 0, Segment::Buffer(&PREFACE[cut..]));
            assert_eq!(story.side(), side, "cut at {cut}");
            story.pass(server, 0, Segment::Buffer(SETTINGS)).pass(!server, 0, Segment::Buffer(&request(1)));
            let (client, other) = if server { ("r", "s") } else { ("s", "r") };
            assert_eq!(story.reported(), format!("{other}:settings/0:6 {client}:headers/1:21"));
            story.end(CLOSE_LOCAL);
            assert_eq!((story.kernel.lost(), story.kernel.uncovered()), (0, 0));
        }
    }
}

#[test]
fn what_only_looks_like_the_preface_is_uncovered() {
    for line in ["GET / HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n"] {
        let mut story = Story::new(false);
        story.receive(line.as_bytes()).receive(b"Host: example.com\r\n\r\n").send(SETTINGS).end(CLOSE_LOCAL);
        assert_eq!(story.kernel.tally(TALLY_UNCOVERED, UNCOVERED_HTTP2), 1, "{line}");
        assert_eq!((story.reported().as_str(), story.kernel.lost()), ("", 0), "{line}");
    }
}

#[test]
fn a_server_may_speak_first() {
    let mut story = Story::new(false);
    story.send(SETTINGS).receive(PREFACE).receive(SETTINGS).receive(&request(1)).send(&response(1));
    story.end(CLOSE_REMOTE);
    assert_eq!(story.reported(), "s:settings/0:6 r:settings/0:6 r:headers/1:21 s:headers/1:21");
    let close = story.ledger.frames.close.expect("reported");
    assert_eq!((close.last_stream, close.pieces, u32::from(close.reason)), (1, (2, 2), CLOSE_REMOTE));
}

/// What begins like SETTINGS and turns out to be something else is nothing.
#[test]
fn greetings_of_others_are_nothing() {
    for greeting in [
        &b"\0\0\x06\x04\0\0\0\0\0\0\0\0"[..],
        b"\0\0\0\x04\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\0",
    ] {
        let mut story = Story::new(false);
        story
            .send(greeting)
            .receive(b"\x01\x02 something")
            .send(b"abcdefghijklmnopqrst")
            .receive(b"else")
            .end(CLOSE_LOCAL);
        assert!(!story.reported().contains("headers"), "{greeting:?}");
        assert_eq!((story.kernel.lost(), story.kernel.uncovered()), (0, 0), "{greeting:?}");
        assert_eq!(story.ledger.frames.close, None, "{greeting:?}");
    }
}

#[test]
fn an_upgrade_goes_on_in_http2() {
    let ask = "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    for (server, side) in [(true, SIDE_SERVER), (false, SIDE_CLIENT)] {
        let mut story = Story::new(false);
        story.pass(!server, 0, Segment::Buffer(ask.as_bytes()));
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        story.pass(server, 0, Segment::Buffer(&[&answer[..], SETTINGS, &response(1)].concat()));
        story.pass(!server, 0, Segment::Buffer(&[PREFACE, SETTINGS, &request(3)].concat()));
        story.pass(server, 0, Segment::Buffer(&response(3))).end(CLOSE_LOCAL);
        let (client, other) = if server { ("r", "s") } else { ("s", "r") };
        let reported = format!(
            "{other}:settings/0:6 {other}:headers/1:21 {client}:settings/0:6 {client}:headers/3:21 {other}:headers/3:21"
        );
        assert_eq!((story.reported(), story.side()), (reported, side));
        let account = story.ledger.accounts.values().next().expect("the upgrade");
        assert_eq!(account.fate, Fate::Whole);
        assert_eq!(account.response.flags, FLAG_TUNNEL | FLAG_HTTP2);
        assert_eq!((story.kernel.lost(), story.kernel.uncovered()), (0, 0));
    }
}

#[test]
fn other_upgrades_are_tunnels() {
    for upgrade in ["TLS/1.0", "h2", "h2c-17", "websockets2", "websocke", ""] {
        let mut story = Story::new(false);
        story.receive(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
        story.send(format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: {upgrade}\r\n\r\n").as_bytes());
        story.receive(b"\x81\x80\0\0\0\0").send(b"\x88\0").end(CLOSE_LOCAL);
        let account = story.ledger.accounts.values().next().expect("the upgrade");
        assert_eq!(account.response.flags, FLAG_TUNNEL, "{upgrade}");
        assert_eq!((story.ledger.frames.websocket, story.reported()), (None, String::new()), "{upgrade}");
    }
}

#[test]
fn a_connection_joined_in_the_middle_is_found() {
    // One request that came by itself, as idle connections get them.
    let mut story = Story::new(true);
    story.receive(&request(7)).send(&response(7)).receive(&request(9)).send(&response(9)).end(CLOSE_LOCAL);
    assert_eq!(story.reported(), "rj:headers/7:21 sj:headers/7:21 rj:headers/9:21 sj:headers/9:21");
    assert_eq!((story.side(), story.ledger.frames.close.expect("reported").last_stream), (SIDE_SERVER, 9));
    drop(story);
    // Read by a program that reads headers by themselves; the response seen first.
    let mut story = Story::new(true);
    let (asked, answered) = (request(7), response(7));
    story.send(&answered[..9]).send(&answered[9..]);
    story.receive(&asked[..9]).receive(&asked[9..]).end(CLOSE_LOCAL);
    assert_eq!((story.reported().as_str(), story.side()), ("sj:headers/7:21 rj:headers/7:21", SIDE_SERVER));
    drop(story);
    // A block that begins with an entry of the dynamic table shows no side, a later one does.
    let mut story = Story::new(true);
    story.receive(&headers(7, 0xbe, true));
    assert_eq!(story.side(), SIDE_UNKNOWN);
    story.send(&headers(7, 0x48, true));
    assert_eq!(story.side(), SIDE_SERVER);
    drop(story);
    // In the middle of DATA, then a ping.
    let mut story = Story::new(true);
    story.receive(&[b'x'; 500]).receive(&frame(6, 0, 0, &[0; 8])).receive(&request(9)).end(CLOSE_LOCAL);
    assert_eq!(story.reported(), "rj:headers/9:21");
}

/// Bytes of other protocols in the middle of a connection are not taken for frames.
#[test]
fn other_bytes_are_not_found() {
    let mut rng = fastrand::Rng::with_seed(7);
    let texts: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x17\x03\x03\0\x2a abcdefghijklmnopqrstuvwxyz",
        b"\0\0\0\x2a\0\x12\0\x04\0\0\0\x01\0\x0aconsole-producer",
        b"\x05\0\0\0\x03SELECT 1",
        &[0; 64],
    ];
    for nth in 0..3000 {
        let mut story = Story::new(true);
        for _ in 0..20 {
            let mut bytes = if nth % 2 == 0 {
                let length = rng.usize(1..80);
                // Numbers below 256 in four bytes, as binary protocols are full of.
                (0..length).map(|at| if at % 4 == 3 || nth % 4 == 0 { rng.u8(..) } else { 0 }).collect()
            } else {
                texts[rng.usize(..texts.len())].to_vec()
            };
            bytes.truncate(rng.usize(1..=bytes.len()));
            story.pass(rng.bool(), 0, Segment::Buffer(&bytes));
        }
        story.end(CLOSE_LOCAL);
        assert_eq!(story.reported(), "", "story {nth}");
    }
}

#[test]
fn endless_blocks_cost_few_records() {
    let mut story = Story::http2();
    story.receive(&frame(1, 1, 1, &[0xbf; 100]));
    for _ in 0..1000 {
        story.receive(&frame(9, 0, 1, &[0xbf; 300]));
        story.receive(&frame(9, 0, 1, &[]));
    }
    story.receive(&frame(9, 4, 1, &[0xbf; 10])).receive(&request(3)).end(CLOSE_LOCAL);
    let reported = "r:settings/0:6 s:settings/0:6 r:headers/1:100 r:cont/1:300 r:cont/1:300 r:cont/1:300 r:cont/1:24+ r:cont/1:0+ r:headers/3:21";
    assert_eq!(story.reported(), reported);
    assert_eq!(story.missing(), (0, 0));
}

/// Fields that were left out may have gone into the header table: the end of the block has to say so.
#[test]
fn what_is_left_out_of_a_block_is_reported_by_its_end() {
    let check = |left_out: &[u8], reported: &str| {
        let mut story = Story::http2();
        story.receive(&frame(1, 1, 1, &[0xbf; 1024])).receive(&frame(9, 0, 1, left_out));
        story.receive(&frame(9, 4, 1, &[])).end(CLOSE_LOCAL);
        assert_eq!(story.reported(), format!("r:settings/0:6 s:settings/0:6 r:headers/1:1024 {reported}"));
    };
    check(&[0xbf; 300], "r:cont/1:0+");
    check(&[], "r:cont/1:0");
}

#[test]
fn a_goodbye_keeps_its_text() {
    let mut story = Story::http2();
    story.send(&frame(7, 0, 0, b"\0\0\0\x05\0\0\0\x0bcalm down, somebody")).end(CLOSE_LOCAL);
    assert_eq!(story.reported(), "r:settings/0:6 s:settings/0:6 s:goaway/0:8+");
}

#[test]
fn frames_that_cannot_be_are_a_gap() {
    for bad in [
        frame(0, 0, 0, b"data of no stream"),
        frame(4, 0, 0, b"seven b"),
        frame(4, 0, 3, b""),
        frame(6, 0, 0, b"seven b"),
        frame(8, 0, 0, b"five "),
        frame(1, 4, 0, b"headers of no stream"),
    ] {
        let mut story = Story::http2();
        story.receive(&request(1)).receive(&bad).receive(&request(3)).end(CLOSE_LOCAL);
        assert_eq!(
            story.reported(),
            "r:settings/0:6 s:settings/0:6 r:headers/1:21 rj:headers/3:21",
            "{bad:?}"
        );
        assert_eq!(story.missing(), (1, 0), "{bad:?}");
    }
}

#[test]
fn a_gap_between_frames_is_known() {
    let mut story = Story::http2();
    story
        .receive(&request(1))
        .pass(false, 30, Segment::Buffer(&request(5)))
        .send(&response(5))
        .end(CLOSE_LOCAL);
    assert_eq!(
        story.reported(),
        "r:settings/0:6 s:settings/0:6 r:headers/1:21 rj:headers/5:21 s:headers/5:21"
    );
    assert_eq!(story.missing(), (1, 0));
    assert_eq!(story.ledger.frames.close.expect("reported").last_stream, 5);
    assert_eq!(story.kernel.lost(), 0, "the agent counts");
}

#[test]
fn a_full_ring_shows_in_the_sequence() {
    let mut story = Story::http2();
    story.kernel.set_faults(FULL);
    story.receive(&request(1)).send(&frame(1, 4, 1, &[0x88; 300]));
    story.kernel.set_faults(NONE);
    story.receive(&request(3)).send(&response(3)).end(CLOSE_LOCAL);
    assert_eq!(story.reported(), "r:settings/0:6 s:settings/0:6 r:headers/3:21 s:headers/3:21");
    assert_eq!((story.missing(), story.kernel.lost()), ((1, 1), 0));
}

#[test]
fn a_close_that_cannot_be_reported_counts_open_streams() {
    let mut story = Story::http2();
    story.receive(&request(1)).receive(&request(3)).receive(&request(5)).send(&response(3));
    story.send(&frame(3, 0, 3, &[0; 4])).receive(&frame(3, 0, 5, &[0, 0, 0, 8]));
    story.kernel.set_faults(FULL);
    story.end(CLOSE_RESET);
    assert_eq!((story.ledger.frames.close, story.kernel.tally(TALLY_LOST, LOSS_RING_FULL)), (None, 1));
}

/// Prefixes of messages torn apart by frames of other streams.
#[test]
fn interleaved_messages_are_counted() {
    let message = |length: u8| [&[0, 0, 0, 0, length][..], &vec![1; usize::from(length)]].concat();
    let bytes = [message(4), message(0), message(0)].concat();
    for at in 0..=bytes.len() {
        let mut story = Story::http2();
        for stream in [1, 3, 5] {
            story.receive(&headers(stream, 0x83, false));
        }
        story.receive(&frame(0, 0, 1, &bytes[..at])).receive(&frame(0, 0, 5, &message(200)[..50]));
        story.receive(&frame(0, 1, 3, &message(7))).receive(&frame(0, 1, 1, &bytes[at..]));
        let reported: Vec<_> = story.ledger.frames.frames.iter().filter(|it| it.kind == 0).collect();
        assert_eq!(
            (reported[0].stream, reported[0].messages, reported[0].body_bytes),
            (3, 1, 12),
            "cut at {at}"
        );
        assert_eq!(
            (reported[1].stream, reported[1].messages, reported[1].body_bytes),
            (1, 3, 19),
            "cut at {at}"
        );
    }
}

#[test]
fn a_reset_forgets_content() {
    let mut story = Story::http2();
    for stream in [1, 3, 5, 7] {
        story.receive(&headers(stream, 0x83, false)).receive(&frame(0, 0, stream, b"\0\0\0\0\x09abc"));
        story.send(&headers(stream, 0x88, false)).send(&frame(0, 0, stream, b"\0\0\0\0\x09abc"));
    }
    assert_eq!(story.kernel.contents(), 6);
    for stream in [1, 3, 5, 7] {
        story.send(&frame(3, 0, stream, &[0; 4]));
    }
    assert_eq!(story.kernel.contents(), 0);
    story.end(CLOSE_LOCAL);
}

impl Story {
    /// What has records of its own: `r` or `s`, stream, bytes, messages, and when the last byte passed.
    fn carried(&self) -> String {
        let reported = self.ledger.frames.apart.iter().map(|apart| {
            let way = if apart.sent { "s" } else { "r" };
            let messages = match apart.messages {
                u32::MAX => "?".to_owned(),
                known => known.to_string(),
            };
            format!("{way}:{}:{}/{messages}@{}", apart.stream, apart.body_bytes, apart.last)
        });
        reported.collect::<Vec<_>>().join(" ")
    }

    /// Streams that the close record says the agent has to look for, which are there.
    fn aside(&self) -> u32 {
        let aside = self.ledger.frames.close.expect("reported").aside;
        assert_eq!(aside, self.kernel.contents());
        aside
    }
}

#[test]
fn a_reset_tells_what_was_carried() {
    let mut story = Story::http2(); // until 3000
    story.receive(&headers(1, 0x83, false)).receive(&frame(0, 0, 1, b"\0\0\0\0\x03abc\0\0\0\0\x09abc"));
    story.send(&headers(1, 0x88, false)).send(&frame(0, 0, 1, b"no messages"));
    // Another stream puts it aside; one has carried nothing, one is over.
    story.receive(&headers(3, 0x83, false)).receive(&frame(0, 0, 3, b"\0\0\0\0\x09abc"));
    story.receive(&request(5)).send(&response(5)).receive(&request(7)).send(&headers(7, 0x88, false));
    for stream in [1, 5, 7, 9] {
        story.send(&frame(3, 0, stream, &[0; 4]));
    }
    assert_eq!(story.carried(), "r:1:16/2@5000 s:1:11/?@7000 s:7:0/0@0");
    assert_eq!(story.missing(), (0, 0));
    story.end(CLOSE_LOCAL);
    // Stream 3 is aside as well, where the agent finds it.
    assert_eq!(story.carried(), "r:1:16/2@5000 s:1:11/?@7000 s:7:0/0@0");
    assert_eq!(story.aside(), 1);
}

/// curl reads as many bytes as were promised, and no frame behind them.
#[test]
fn a_close_tells_what_was_carried() {
    let mut story = Story::new(false);
    story.send(PREFACE).send(&request(1)).receive(SETTINGS); // until 3000
    story.receive(&headers(1, 0x88, false));
    story.receive(&frame(0, 0, 1, &[7; 300])[..200]).receive(&frame(0, 0, 1, &[7; 300])[200..]);
    story.end(CLOSE_LOCAL);
    assert_eq!(story.carried(), "r:1:300/?@6000");
    assert_eq!(story.ledger.frames.close.expect("reported").last_stream, 1);
    drop(story);
    // Of streams that were put aside the agent gets the number.
    let mut story = Story::http2();
    for stream in [1, 3, 5] {
        story.receive(&headers(stream, 0x83, false)).receive(&frame(0, 0, stream, b"\0\0\0\0\x09abc"));
    }
    story.end(CLOSE_LOCAL);
    assert_eq!(story.carried(), "r:5:8/1@9000");
    assert_eq!(story.aside(), 2);
    drop(story);
    // However many streams have come and gone since.
    let mut story = Story::http2();
    story.receive(&headers(1, 0x83, false)).receive(&frame(0, 0, 1, b"\0\0\0\0\x09abc"));
    for stream in (1..=1100).map(|nth| 2 * nth + 1) {
        story
            .receive(&headers(stream, 0x83, false))
            .receive(&frame(0, 1, stream, b""))
            .send(&response(stream));
    }
    story.end(CLOSE_LOCAL);
    assert_eq!((story.carried().as_str(), story.aside()), ("", 1));
    drop(story);
    // Nothing is reported of what was not followed from its beginning.
    let mut story = Story::new(true);
    story.receive(&request(7)).send(&frame(0, 0, 5, b"\0\0\0\0\x09abc")).end(CLOSE_LOCAL);
    assert_eq!(story.carried(), "");
}

const ASK: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
const AGREE: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade:\tWebSocket\r\nConnection: Upgrade\r\n\r\n";

/// A WebSocket frame.
fn message(opcode: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let length = match payload.len() {
        n @ 0..126 => vec![masked | u8::try_from(n).expect("short")],
        n @ 126..0x1_0000 => [&[masked | 126][..], &u16::try_from(n).expect("short").to_be_bytes()].concat(),
        n => [&[masked | 127][..], &(n as u64).to_be_bytes()].concat(),
    };
    let mask_bytes = mask.map_or(Vec::new(), |mask| mask.to_vec());
    let key = mask.unwrap_or_default();
    let payload: Vec<u8> = payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
    [&[opcode][..], &length, &mask_bytes, &payload].concat()
}

fn websocket() -> Story {
    let mut story = Story::new(false);
    story.receive(ASK).send(AGREE);
    story
}

#[test]
fn a_websocket_is_reported_at_its_end() {
    let mask = Some([1, 0xfe, 3, 0x80]);
    let close = |code: u16, mask| message(0x88, mask, &[&code.to_be_bytes()[..], b"bye"].concat());
    // Who closes first, with what, and how the connection ends.
    for (first, code, reason) in [(1, 1000u16, CLOSE_REMOTE), (2, 1011, CLOSE_LOCAL)] {
        for cut in 1..40 {
            let mut story = websocket();
            let said = [
                message(0x81, mask, b"hello"),
                message(0x02, mask, &[7; 300]),
                message(0x89, mask, b"ping"),
                message(0x80, mask, b"more"),
            ]
            .concat();
            for part in said.chunks(cut) {
                story.receive(part);
            }
            story.send(&message(0x82, None, &vec![8; 70_000])).send(&message(0x8a, None, b"ping"));
            assert_eq!(story.ledger.frames.websocket, None);
            let (theirs, ours) = (close(code, mask), close(code, None));
            for (sending, bytes) in
                if first == 1 { [(false, theirs), (true, ours)] } else { [(true, ours), (false, theirs)] }
            {
                for part in bytes.chunks(cut) {
                    story.pass(sending, 0, Segment::Buffer(part));
                }
            }
            let reported = story.ledger.frames.websocket.expect("reported");
            assert_eq!(reported.exchange, 1 << ORDINAL_BITS);
            assert_eq!((reported.bytes, reported.messages), ((309, 70_000), (2, 1)), "cut {cut}");
            assert_eq!((reported.close, u32::from(reported.reason)), ((code, first), reason), "cut {cut}");
            story.end(CLOSE_RESET);
            assert_eq!((story.kernel.lost(), story.kernel.uncovered()), (0, 0));
        }
    }
}

#[test]
fn a_websocket_may_end_without_a_close_frame() {
    for (bytes, close) in
        [(vec![], (0, 0)), (message(0x88, None, b""), (0, 2)), (message(0x88, None, b"\x03\xe9"), (1001, 2))]
    {
        let mut story = websocket();
        story.send(&message(0x81, None, b"hello")).send(&bytes).end(CLOSE_RESET);
        let reported = story.ledger.frames.websocket.expect("reported");
        assert_eq!(
            (reported.messages, reported.close, u32::from(reported.reason)),
            ((0, 1), close, CLOSE_RESET)
        );
    }
}

#[test]
fn payload_of_a_websocket_may_pass_unseen() {
    let mut story = websocket();
    let said = message(0x82, None, &[7; 1000]);
    story.send(&said[..10]).pass(true, 500, Segment::Buffer(&said[510..])).pass(
        true,
        0,
        Segment::Buffer(&said[..4]),
    );
    story.pass(true, 0, Segment::Opaque(1000, true)).send(&message(0x81, None, b"x")).end(CLOSE_LOCAL);
    let reported = story.ledger.frames.websocket.expect("reported");
    assert_eq!(
        (reported.messages, reported.bytes, u32::from(reported.reason)),
        ((0, 3), (0, 2001), CLOSE_LOCAL)
    );
}

#[test]
fn a_websocket_that_cannot_be_followed_is_abandoned_once() {
    for (gap, spoil) in [
        (7, Segment::Buffer(b"\x81\x01x")),
        (0, Segment::Opaque(9, false)),
        (0, Segment::Buffer(b"\x83\x01x")),
    ] {
        let mut story = websocket();
        story.send(&message(0x81, None, b"hello")).pass(true, gap, spoil);
        let reported = story.ledger.frames.websocket.expect("reported");
        assert_eq!(u32::from(reported.reason), CLOSE_ABANDONED);
        story.send(b"\x81\x01x").receive(b"\x81\x01x").end(CLOSE_LOCAL);
        assert_eq!(story.kernel.lost(), 0, "the agent counts");
    }
}

#[test]
fn a_websocket_whose_end_cannot_be_reported_is_one_loss() {
    let mut story = websocket();
    story.kernel.set_faults(FULL);
    story.end(CLOSE_LOCAL);
    assert_eq!((story.ledger.frames.websocket, story.kernel.lost()), (None, 1));
    assert_eq!(story.ledger.accounts.len(), 1);
}

#[test]
fn an_upgrade_that_was_lost_has_no_websocket() {
    let mut story = Story::new(false);
    story.receive(ASK);
    story.kernel.set_faults(FULL);
    story.send(AGREE);
    story.kernel.set_faults(NONE);
    story.send(b"\x81\x01x").end(CLOSE_LOCAL);
    assert_eq!((story.ledger.frames.websocket, story.kernel.lost()), (None, 1));
}
