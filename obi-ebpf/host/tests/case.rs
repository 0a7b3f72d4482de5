//! Single stories of one connection, each of which went wrong once or looks as if it could.

use obi_ebpf::*;
use obi_ebpf_host::ledger::{Fate, Ledger};
use obi_ebpf_host::{Connection, Faults, Kernel, Segment};

/// One connection and the agent's books.
struct Story {
    kernel: Kernel,
    connection: Connection,
    ledger: Ledger,
    time: u64,
}

impl Story {
    fn new() -> Self {
        Self::with(Faults::default(), false)
    }

    fn with(faults: Faults, joined: bool) -> Self {
        let mut kernel = Kernel::boot(1, 8192, faults);
        let connection = kernel.connect(joined);
        Self { kernel, connection, ledger: Ledger::default(), time: 0 }
    }

    fn pass(&mut self, sending: bool, gap: u32, segment: Segment<'_>) -> &mut Self {
        self.time += 1000;
        self.kernel.segment(&mut self.connection, sending, gap, segment, self.time);
        self.ledger.read(&self.kernel);
        self
    }

    fn receive(&mut self, text: &str) -> &mut Self {
        self.pass(false, 0, Segment::Buffer(text.as_bytes()))
    }

    fn send(&mut self, text: &str) -> &mut Self {
        self.pass(true, 0, Segment::Buffer(text.as_bytes()))
    }

    fn receive_unread(&mut self, bytes: u32) -> &mut Self {
        self.pass(false, 0, Segment::Opaque(bytes, false))
    }

    fn send_unread(&mut self, bytes: u32) -> &mut Self {
        self.pass(true, 0, Segment::Opaque(bytes, false))
    }

    fn end(&mut self, reason: u32) -> &mut Self {
        self.time += 1000;
        self.kernel.end(&mut self.connection, reason, self.time);
        self.ledger.read(&self.kernel);
        assert_eq!(self.kernel.notes(), 0, "notes after the end");
        assert_eq!(self.kernel.current(), 0, "current exchange after the end");
        assert_eq!(self.ledger.count(|fate| fate == Fate::Open), 0, "open after the end");
        self
    }

    /// Spans, and exchanges counted as lost by either side.
    fn seen_and_lost(&self) -> (u64, u64) {
        (self.ledger.delivered(), self.ledger.abandoned() + self.kernel.lost())
    }

    /// The ids in the heads of the spans: `/id` in the request, `Id: id` in the response.
    fn check_pairs(&self) {
        for account in self.ledger.accounts.values().filter(|account| account.fate == Fate::Whole) {
            let request = String::from_utf8_lossy(&account.request.head).into_owned();
            let response = String::from_utf8_lossy(&account.response.head).into_owned();
            let asked = request
                .split_once('/')
                .map(|(_, rest)| rest.split(' ').next().unwrap_or_default().to_owned());
            let answered = response
                .split_once("Id: ")
                .map(|(_, rest)| rest.lines().next().unwrap_or_default().to_owned());
            assert_eq!(asked, answered, "{request:?} {response:?}");
        }
    }
}

fn get(id: u32) -> String {
    format!("GET /{id} HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\n\r\n")
}

fn answer(id: u32) -> String {
    format!("HTTP/1.1 200 OK\r\nId: {id}\r\nContent-Length: 2\r\n\r\nok")
}

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// What has to come of a story: spans, losses.
fn check(story: &Story, seen: u64, lost: u64) {
    assert_eq!(story.seen_and_lost(), (seen, lost), "seen and lost");
    story.check_pairs();
}

#[test]
fn an_answer_after_an_interim_one_of_a_given_up_request_is_nobodys() {
    let mut story = Story::new();
    story.receive("POST /1 HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n");
    story.send(CONTINUE).receive("not a chunk size\r\n").send(&answer(1));
    story.receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn a_client_that_gave_up_on_a_request_pairs_the_next_ones_rightly() {
    let mut story = Story::new();
    story.send(&get(1)).receive(&answer(1)).send_unread(100).receive(&answer(2));
    story.send(&get(3)).receive(&answer(3)).send(&get(4)).receive(&answer(4)).end(CLOSE_LOCAL);
    check(&story, 3, 1);
}

#[test]
fn an_unread_request_is_counted_by_its_answer_once() {
    let mut story = Story::new();
    story.receive(&get(1)).send(&answer(1)).receive_unread(100).send(&answer(2));
    story.receive(&get(3)).send(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 2, 1);
}

#[test]
fn a_whole_request_outlives_one_that_cannot_be_read() {
    let mut story = Story::new();
    story.receive(&get(1)).receive_unread(100).send(&answer(1)).send(&answer(2));
    story.receive(&get(3)).send(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 2, 1);
}

#[test]
fn answers_of_given_up_requests_are_not_taken_for_the_next_ones() {
    let mut story = Story::new();
    // The second is lost in the middle of its head, and the first with it: its answer is yet to come.
    story.receive(&get(1)).receive("GET /2 HTTP/1.1\r\nHost: example.com\r\nAccept: anything\r\n");
    story.pass(false, 10, Segment::Buffer(get(3).as_bytes()));
    story.send(&answer(1)).send(&answer(2)).send(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 1, 2);
}

#[test]
fn a_head_behind_a_gap_between_messages_is_seen() {
    let mut story = Story::new();
    story.receive(&get(1)).send(&answer(1));
    story.pass(false, 10, Segment::Buffer(get(2).as_bytes())).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 2, 1); // what the gap held: at least one request
}

#[test]
fn a_request_that_waits_in_the_carry_outlives_the_end_of_what_was_before() {
    let mut story = Story::new();
    story.receive(&get(1)).receive("POST /2 HTTP/1.1\r\n"); // withheld
    story.send("HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n");
    story
        .receive("Content-Length: 4\r\nHost: example.com\r\n\r\n")
        .receive("body")
        .send(&answer(2))
        .end(CLOSE_LOCAL);
    check(&story, 1, 1);
    let span = story.ledger.accounts.values().find(|account| account.fate == Fate::Whole).expect("a span");
    assert_eq!(span.request.ended, Some(4));
}

#[test]
fn a_request_partly_seen_outlives_the_end_of_what_was_before() {
    let mut story = Story::new();
    story
        .receive(&get(1))
        .receive("POST /2 HTTP/1.1\r\nX-Long: 0123456789012345678901234567890123456789\r\n");
    story.send("HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n");
    story.receive("Content-Length: 4\r\n\r\n").receive("body").send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn malformed_framing_is_one_lost_exchange() {
    for nth in 0..2 {
        let mut story = Story::new();
        for id in 0..nth {
            story.receive(&get(id)).send(&answer(id));
        }
        story.receive("POST /7 HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello");
        story
            .send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .end(CLOSE_LOCAL);
        check(&story, u64::from(nth), 1);
    }
}

#[test]
fn malformed_framing_in_a_later_piece_is_one_lost_exchange() {
    for joined in [false, true] {
        let mut story = Story::with(Faults::default(), joined);
        story.receive("POST /7 HTTP/1.1\r\nHost: an.example.com\r\nAccept: anything\r\n");
        story.receive("Content-Length: +5\r\n\r\nhello");
        story.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        story.receive(&get(8)).send(&answer(8)).end(CLOSE_LOCAL);
        check(&story, 1, 1);
    }
}

#[test]
fn a_request_with_an_unknown_coding_is_one_lost_exchange() {
    let mut story = Story::new();
    story.receive("POST /7 HTTP/1.1\r\nTransfer-Encoding: zip\r\nHost: example.com\r\n\r\n");
    story.send("HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n").end(CLOSE_LOCAL);
    check(&story, 0, 1);
}

#[test]
fn text_that_only_begins_like_a_request_is_nothing() {
    for text in [
        "SELECT column_a, column_b, column_c FROM a_table WHERE a = 1 AND ",
        "USERNAME-IS-ANYBODY-AND-NO-SPACE-COMES-IN-HERE--",
    ] {
        for tail in ["x\n", "\r\nno version\r\n"] {
            let mut story = Story::new();
            story.receive(text).receive(tail).send("+OK\r\n").receive("QUIT\r\n").end(CLOSE_REMOTE);
            check(&story, 0, 0);
            assert_eq!(story.kernel.uncovered(), 0);
            drop(story);
            let mut story = Story::new();
            story.receive(text).end(CLOSE_REMOTE);
            check(&story, 0, 0);
        }
    }
}

#[test]
fn an_early_answer_to_half_a_head_makes_an_exchange() {
    let mut story = Story::new();
    story.receive("POST /2 HTTP/1.1\r\nX-Long: 0123456789012345678901234567890123456789\r\n");
    story.send("HTTP/1.1 431 Too Large\r\nContent-Length: 0\r\n\r\n");
    let account = story.ledger.accounts.values().next().expect("begun");
    assert!(account.response.whole && !account.request.whole);
    assert_ne!(account.response.flags & FLAG_REQUEST_INCOMPLETE, 0);
}

#[test]
fn a_body_that_ends_after_its_answer_has_a_size() {
    let mut story = Story::new();
    story.receive("POST /3 HTTP/1.1\r\nContent-Length: 9\r\n\r\nfour");
    story.send("HTTP/1.1 413 Too Large\r\nId: 3\r\nContent-Length: 0\r\n\r\n");
    let account = story.ledger.accounts.values().next().expect("begun");
    assert_eq!((account.fate, account.request.ended), (Fate::Whole, None));
    assert_ne!(account.response.flags & FLAG_REQUEST_INCOMPLETE, 0);
    story.receive("later");
    assert_eq!(story.ledger.accounts.values().next().expect("begun").request.ended, Some(9));
    story.receive(&get(4)).send(&answer(4)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
}

#[test]
fn a_body_that_ends_after_an_answer_seen_ahead_has_a_size() {
    let mut story = Story::new();
    story.receive("HTTP/1.1 200 OK\r\nId: 5\r\nContent-Length: 0\r\n\r\n");
    story.send("POST /5 HTTP/1.1\r\nContent-Length: 9\r\n\r\nfour").send("later").end(CLOSE_LOCAL);
    assert_eq!(story.ledger.accounts.values().next().expect("begun").request.ended, Some(9));
    check(&story, 1, 0);
}

/// The ring is full while `pass` is played, if `full`.
fn with_full_ring(story: &mut Story, pass: impl FnOnce(&mut Story)) {
    story.kernel.set_faults(Faults { ring: 256, ..Faults::default() });
    pass(story);
    story.kernel.set_faults(Faults::default());
}

#[test]
fn the_end_of_a_request_lost_behind_an_interim_answer_is_one_loss() {
    let mut story = Story::new();
    story.receive("POST /1 HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n").send(CONTINUE);
    with_full_ring(&mut story, |story| {
        story.receive("body");
    });
    story.send(&answer(1)).receive(&get(2)).send(&answer(2));
    assert_eq!(story.kernel.notes(), 0);
    story.end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn the_end_of_a_request_lost_while_the_answer_is_under_way_is_one_loss() {
    let mut story = Story::new();
    story.receive("POST /1 HTTP/1.1\r\nContent-Length: 4\r\n\r\n");
    story.send("HTTP/1.1 200 OK\r\nId: 1\r\nContent-Length: 2\r\n\r\n");
    with_full_ring(&mut story, |story| {
        story.receive("body");
    });
    story.send("ok").receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn a_lost_close_counts_and_forgets_all_that_were_pending() {
    let mut story = Story::new();
    story.receive(&format!("{}{}", get(1), get(2)));
    with_full_ring(&mut story, |story| {
        story.receive(&get(3));
    });
    story.receive(&get(4));
    with_full_ring(&mut story, |story| {
        story.end(CLOSE_RESET);
    });
    check(&story, 0, 4);
    assert_eq!(story.ledger.count(|fate| fate == Fate::Forgotten), 3);
}

#[test]
fn a_half_lost_head_answered_early_is_one_loss() {
    let mut story = Story::new();
    story.receive("POST /2 HTTP/1.1\r\nX-Long: 0123456789012345678901234567890123456789\r\n");
    with_full_ring(&mut story, |story| {
        story.receive("X-Long: 01234567890123456789012345678901234567890123456789\r\n");
    });
    story.send("HTTP/1.1 431 Too Large\r\nContent-Length: 0\r\n\r\n").end(CLOSE_LOCAL);
    check(&story, 0, 1);
}

#[test]
fn a_head_request_needs_no_room_for_its_note() {
    let mut story = Story::with(Faults { note: 256, ..Faults::default() }, false);
    story.receive("HEAD /1 HTTP/1.1\r\nHost: example.com\r\n\r\n");
    story.send("HTTP/1.1 200 OK\r\nId: 1\r\nContent-Length: 20\r\n\r\n");
    story.receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
}

#[test]
fn a_pipelined_head_request_without_room_for_its_note_is_one_loss() {
    let mut story = Story::with(Faults { note: 256, ..Faults::default() }, false);
    story.receive("HEAD /1 HTTP/1.1\r\n\r\nHEAD /2 HTTP/1.1\r\n\r\n");
    story.send("HTTP/1.1 200 OK\r\nId: 1\r\nContent-Length: 20\r\n\r\n").end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn a_response_that_cannot_be_followed_is_one_loss() {
    let mut story = Story::new();
    story.receive(&get(1)).send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello");
    story.receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 1);
}

#[test]
fn a_connection_joined_in_the_middle_finds_the_next_head() {
    let mut story = Story::with(Faults::default(), true);
    story.receive("the middle of a body").send("the middle of a page").send("GET /not HTTP");
    story.receive(&get(2)).send(&answer(2)).receive(&get(3)).send(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
    drop(story); // one kernel at a time
    let mut story = Story::with(Faults::default(), true);
    // The answer to a request before our time.
    story.send(&answer(1)).receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 0);
    drop(story);
    let mut story = Story::with(Faults::default(), true);
    story.receive(&answer(1)).send(&get(2)).receive(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 1, 0);
}

#[test]
fn a_partial_request_is_taken_back_when_the_connection_turns_out_to_be_something_else() {
    let long = "X-Long: 0123456789012345678901234567890123456789\r\n";
    let mut story = Story::new();
    story
        .receive("LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL")
        .send("LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL");
    assert_eq!(story.ledger.count(|fate| fate == Fate::Open), 0);
    drop(story);
    let mut story = Story::new();
    story.receive(&format!("GET /1 HTTP/1.1\r\n{long}")).send("* not HTTP at all").end(CLOSE_LOCAL);
    check(&story, 0, 1);
    assert_eq!(story.ledger.count(|fate| fate == Fate::Open), 0);
    drop(story);
    let mut story = Story::new();
    story.receive("CONNECT a:1 HTTP/1.1\r\n\r\n").receive(&format!("GET /1 HTTP/1.1\r\n{long}"));
    story.send("HTTP/1.1 200 OK\r\n\r\n").end(CLOSE_LOCAL);
    assert_eq!(story.seen_and_lost(), (1, 0));
    assert_eq!(story.ledger.count(|fate| fate == Fate::Open), 0);
}

#[test]
fn abandoned_answers_that_passed_unseen_are_not_waited_for() {
    let mut story = Story::new();
    story.receive(&get(1)).send_unread(80); // its answer: the response direction is lost
    story.receive("GET /2 HTTP/1.1\r\nHost: example.com\r\nAccept: anything\r\n").receive_unread(10);
    story.send_unread(80); // the answer to the second
    story.receive(&get(3)).send(&answer(3)).receive(&get(4)).send(&answer(4)).end(CLOSE_LOCAL);
    check(&story, 2, 2);
}

#[test]
fn a_client_that_lost_a_response_takes_no_other_for_one_before_its_request() {
    let mut story = Story::new();
    story.send(&get(1)).send(&get(2)).receive_unread(80).receive(&answer(2));
    story
        .send(&get(3))
        .receive(&answer(3))
        .receive(&answer(9))
        .send(&get(4))
        .receive(&answer(4))
        .end(CLOSE_LOCAL);
    check(&story, 2, 2);
}

/// The answer to a HEAD request, as long as its GET would be, without the bytes.
const NO_BODY: &str = "HTTP/1.1 200 OK\r\nId: 1\r\nContent-Length: 500\r\n\r\n";

#[test]
fn an_answer_seen_before_its_head_request_ends_with_it() {
    let mut story = Story::new();
    story
        .receive(NO_BODY)
        .send("HEAD /1 HTTP/1.1\r\n\r\n")
        .send(&get(2))
        .receive(&answer(2))
        .end(CLOSE_LOCAL);
    check(&story, 2, 0);
}

#[test]
fn an_answer_that_began_before_its_head_request_has_no_body() {
    let mut story = Story::new();
    let (begin, end) = NO_BODY.split_at(NO_BODY.len() - 4);
    story.receive(begin).send("HEAD /1 HTTP/1.1\r\n\r\n").receive(end);
    story.send(&get(2)).receive(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
    let account = story.ledger.accounts.values().next().expect("begun");
    assert_eq!(account.response.ended, Some(0));
}

#[test]
fn what_was_read_as_the_body_of_an_early_answer_is_given_up() {
    let mut story = Story::new();
    story.receive(&[NO_BODY, &answer(2)].concat()).send("HEAD /1 HTTP/1.1\r\n\r\n");
    story.send(&get(2)).send(&get(3)).receive(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 0, 1);
}

#[test]
fn a_body_that_a_head_request_s_answer_did_not_have_is_noticed_in_its_own_segment_too() {
    // All that is taken for the body comes with the head.
    let no_body = NO_BODY.replace("500", "17");
    let mut story = Story::new();
    story.receive(&format!("{no_body}{}", answer(2))).send("HEAD /1 HTTP/1.1\r\n\r\n").end(CLOSE_LOCAL);
    check(&story, 0, 1);
    drop(story); // one kernel at a time
    // Behind answers of other requests; the one in question is not the first that is ahead.
    for before in [1, 20] {
        let mut story = Story::new();
        story.receive(&format!("{}{no_body}{}", answer(2).repeat(before), answer(2)));
        for _ in 0..before {
            story.send(&get(2));
        }
        story.send("HEAD /1 HTTP/1.1\r\n\r\n").end(CLOSE_LOCAL);
        check(&story, before as u64, 1);
    }
}

#[test]
fn the_body_of_another_answer_seen_ahead_does_not_concern_a_head_request() {
    let no_content = "HTTP/1.1 204 No Content\r\nId: 2\r\n\r\n";
    let mut story = Story::new();
    story.receive(&answer(1)).send(&get(1)).receive(no_content).send("HEAD /2 HTTP/1.1\r\n\r\n");
    story.receive(&[&answer(3), no_content].concat()).send(&get(3)).send("HEAD /2 HTTP/1.1\r\n\r\n");
    story.send(&get(4)).receive(&answer(4)).end(CLOSE_LOCAL);
    check(&story, 5, 0);
}

#[test]
fn answers_whose_requests_never_come_into_sight_are_lost() {
    let mut story = Story::new();
    story.receive(&answer(1)).receive(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 0, 2);
}

#[test]
fn an_answer_whose_request_passed_unseen_is_not_given_to_the_next() {
    let mut story = Story::new();
    story.send(&get(1)).receive(&answer(1)).receive(&answer(2));
    let unseen = u32::try_from(get(2).len()).unwrap();
    story.pass(true, unseen, Segment::Buffer(get(3).as_bytes())).receive(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 2, 1);
}

#[test]
fn what_was_begun_ends_when_the_connection_speaks_something_else() {
    const LONG: &str = "X-Long: 0123456789012345678901234567890123456789\r\n";
    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &str = "\0\0\0\u{4}\0\0\0\0\0\0\0\0\u{4}\u{1}\0\0\0\0\0\0\0\u{4}\0\0\0\0\0";
    let half = format!("HTTP/1.1 200 OK\r\n{LONG}");
    // What passes at a client, sent or received, and how many exchanges of it are reported and lost.
    let check = |passes: &[(bool, &str)], seen: u64, lost: u64| {
        let mut story = Story::new();
        for (sending, text) in passes {
            story.pass(*sending, 0, Segment::Buffer(text.as_bytes()));
        }
        story.end(CLOSE_LOCAL);
        assert_eq!(story.seen_and_lost(), (seen, lost), "{passes:?}");
    };
    // An answer under way whose request turns out to be none.
    check(&[(false, &half), (true, "\0\0 of something else")], 0, 1);
    check(&[(false, &half), (true, "\u{16}\u{3}\u{1}handshake")], 0, 1);
    check(&[(false, &half), (true, PREFACE)], 0, 1);
    check(&[(false, &answer(1)), (true, PREFACE)], 0, 1);
    // Requests that cannot be answered any more.
    check(&[(true, &get(1)), (true, &get(2)), (true, PREFACE)], 0, 2);
    check(&[(true, &get(1)), (false, &half), (true, PREFACE)], 0, 1);
    for protocol in ["websocket", "h2c", "other"] {
        let up = format!("HTTP/1.1 101 On\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
        let after = u64::from(protocol == "h2c");
        // Behind h2c requests go on, until the preface or the end: unanswered then.
        check(&[(true, &get(1)), (true, &get(2)), (false, &up)], 1 + after, 1 - after);
        check(&[(true, &get(1)), (true, &format!("GET / HTTP/1.1\r\n{LONG}")), (false, &up)], 1, 0);
        check(&[(false, &up)], 0, 1);
        check(&[(false, &up), (true, &get(1))], after, 1 - after);
    }
    // As the fuzzer found it: what only looked like a request, and frames behind a gap.
    let mut story = Story::new();
    story.receive("LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL").pass(true, 6, Segment::Opaque(0, true));
    story.send(SETTINGS).end(CLOSE_LOCAL);
    assert_eq!(story.seen_and_lost(), (0, 0));
}

#[test]
fn an_exchange_answered_ahead_is_lost_once_whatever_fails() {
    let (answer_1, get_1) = (answer(1), get(1));
    let (head, body) = answer_1.split_at(answer_1.len() - 2);
    // The answer may be over when its request comes, or not. Each pass alone finds no room.
    for passes in
        [&[(false, head), (true, &get_1[..]), (false, body)][..], &[(false, &answer_1), (true, &get_1)]]
    {
        for full in 0..passes.len() {
            let mut story = Story::new();
            for (nth, (sending, text)) in passes.iter().enumerate() {
                let ring = if nth == full { 256 } else { 0 };
                story.kernel.set_faults(Faults { ring, ..Faults::default() });
                story.pass(*sending, 0, Segment::Buffer(text.as_bytes()));
            }
            story.kernel.set_faults(Faults::default());
            story.send(&get(2)).receive(&answer(2)).end(CLOSE_LOCAL);
            check(&story, 1, 1);
        }
    }
}

/// A request that asks whether its body is wanted, and the answer that it is not.
fn expecting(id: u32, framing: &str) -> String {
    format!("POST /{id} HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\n{framing}\r\n\r\n")
}

fn refusal(id: u32) -> String {
    format!("HTTP/1.1 417 Expectation Failed\r\nId: {id}\r\nContent-Length: 2\r\n\r\nno")
}

/// How the bodies are announced that a refusal may keep back.
const ANNOUNCED: &[&str] = &["Content-Length: 2000000", "Transfer-Encoding: chunked"];

/// A story as seen from one of the two ends.
struct End(Story, bool);

impl End {
    fn ask(&mut self, text: &str) -> &mut Self {
        if self.1 {
            self.0.receive(text)
        } else {
            self.0.send(text)
        };
        self
    }

    fn reply(&mut self, text: &str) -> &mut Self {
        if self.1 {
            self.0.send(text)
        } else {
            self.0.receive(text)
        };
        self
    }

    /// The bytes of the bodies of the requests that were reported, in order.
    fn bodies(&self) -> Vec<Option<u64>> {
        self.0.ledger.accounts.values().map(|account| account.request.ended).collect()
    }

    fn end(&mut self) -> &mut Story {
        self.0.end(if self.1 { CLOSE_LOCAL } else { CLOSE_REMOTE })
    }
}

#[test]
fn behind_a_refused_body_comes_the_next_request() {
    for (server, framing) in [false, true].into_iter().flat_map(|end| ANNOUNCED.iter().map(move |f| (end, f)))
    {
        let mut story = End(Story::new(), server);
        story.ask(&expecting(1, framing)).reply(&refusal(1));
        story.ask("POST /2 HTTP/1.1\r\nContent-Length: 4\r\n\r\n").ask("body").reply(&answer(2));
        story.ask(&expecting(3, framing)).reply(&refusal(3)).ask(&expecting(4, framing)).reply(&refusal(4));
        // The next head comes in pieces.
        story.ask("GET /").ask("5 HTTP/1.1\r\n\r\n").reply(&answer(5));
        check(story.end(), 5, 0);
        assert_eq!(story.bodies(), [Some(0), Some(4), Some(0), Some(0), Some(0)], "{framing}, {server}");
    }
}

#[test]
fn a_body_that_comes_although_it_was_answered_is_a_body() {
    for server in [false, true] {
        for body in ["body", "GET", "GET ", "\0\0\0\0", "A /b", "{}\r\n"] {
            let mut story = End(Story::new(), server);
            story.ask(&expecting(1, "Content-Length: 4")).reply(&refusal(1));
            let (first, rest) = body.split_at(1);
            story.ask(first).ask(rest).ask(&"xxxx"[body.len()..]);
            story.ask(&get(2)).reply(&answer(2));
            story.ask(&expecting(3, "Transfer-Encoding: chunked")).reply(&refusal(3));
            story.ask("4\r\nbody\r\n0\r\n\r\n").ask(&get(4)).reply(&answer(4));
            check(story.end(), 4, 0);
            assert_eq!(story.bodies(), [Some(4), Some(0), Some(4), Some(0)], "{body:?}, {server}");
        }
    }
}

#[test]
fn a_body_that_its_request_did_not_ask_about_is_a_body_whatever_it_looks_like() {
    let mut story = Story::new();
    story.receive("POST /1 HTTP/1.1\r\nContent-Length: 18\r\n\r\n").send(&answer(1));
    story.receive("GET / HTTP/1.1\r\n\r\n").receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
}

#[test]
fn what_cannot_be_read_behind_a_refused_body_is_counted_by_its_answer() {
    for framing in ANNOUNCED {
        let mut story = Story::new();
        story.receive(&expecting(1, framing)).send(&refusal(1)).receive_unread(80).send(&answer(2));
        story.end(CLOSE_LOCAL);
        check(&story, 1, 1);
    }
}

#[test]
fn a_body_that_looks_like_a_request_and_is_as_long_as_announced_is_a_body() {
    let mut story = Story::new();
    story.receive(&expecting(1, "Content-Length: 18")).send(&refusal(1)).receive("GET / HTTP/1.1\r\n\r\n");
    story.receive(&get(2)).send(&answer(2)).end(CLOSE_LOCAL);
    check(&story, 2, 0);
    // A request that happens to be as long is lost then, and counted.
    drop(story);
    let mut story = Story::new();
    story.receive(&expecting(1, "Content-Length: 19")).send(&refusal(1)).receive("GET /2 HTTP/1.1\r\n\r\n");
    story.send(&answer(2)).receive(&get(3)).send(&answer(3)).end(CLOSE_LOCAL);
    check(&story, 2, 1);
}

/// A method is any token, with `HTTP/1.x` at the line's end.
#[test]
fn methods_of_any_letters_and_digits_are_requests() {
    for method in
        ["get", "Get", "foo", "x", "CUSTOM2", "M-SEARCH", "a_very.long~token!#$%&'*+^`|of-33-letters", "7"]
    {
        let mut story = Story::new();
        story.receive(&get(1).replace("GET", method)).send(&answer(1));
        story.receive(&get(2).replace("GET", method)).send(&answer(2)).end(CLOSE_LOCAL);
        check(&story, 2, 0);
        drop(story);
        // In pieces of one byte.
        let mut story = Story::new();
        for byte in get(1).replace("GET", method).chars() {
            story.receive(&byte.to_string());
        }
        story.send(&answer(1)).end(CLOSE_LOCAL);
        check(&story, 1, 0);
    }
}

/// Text of other protocols that looks like methods: nothing is claimed, nothing lost, nothing left.
#[test]
fn commands_of_other_protocols_are_nothing() {
    for (asked, answered) in [
        ("PING\r\n", "+PONG\r\n"),
        ("set key value-of-some-length-that-is-more-than-forty-bytes\r\n", "+OK\r\n"),
        ("get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n"),
        ("set k 0 0 5\r\nvalue\r\n", "STORED\r\n"),
        ("CONNECT {\"verbose\":false}\r\nPING\r\n", "INFO {\"server_id\":\"N\"}\r\nPONG\r\n"),
        ("PUB subject 5\r\nhello\r\n", "+OK\r\n"),
        ("EHLO client.example.com\r\n", "220 mail.example.com ESMTP Postfix\r\n"),
        ("MAIL FROM:<a@example.com>\r\n", "250 2.1.0 Ok\r\n"),
        ("USER anonymous\r\n", "331 Please specify the password.\r\n"),
        ("RETR file.txt\r\n", "150 Opening BINARY mode data connection.\r\n"),
        ("a1 LOGIN user secret\r\n", "a1 OK LOGIN completed\r\n"),
        ("SSH-2.0-OpenSSH_9.2p1\r\n", "SSH-2.0-OpenSSH_9.2p1\r\n"),
    ] {
        for is_server in [true, false] {
            let mut story = Story::new();
            for _ in 0..3 {
                story.pass(!is_server, 0, Segment::Buffer(asked.as_bytes()));
                story.pass(is_server, 0, Segment::Buffer(answered.as_bytes()));
            }
            story.end(CLOSE_LOCAL);
            check(&story, 0, 0);
            assert_eq!(story.ledger.count(|fate| fate == Fate::Open), 0, "{asked:?}");
        }
    }
}
