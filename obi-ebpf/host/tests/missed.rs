//! Whole messages pass unseen, as when the kernel skips a program: what is reported is right, the rest is lost, nothing
//! breaks.

mod property;

use obi_ebpf::*;
use obi_ebpf_host::Segment;
use obi_ebpf_host::ledger::Fate;
use obi_ebpf_host::line::{Line, ids, is_counted};
use proptest::prelude::*;

use self::property::cases;

/// One request and its answer, one after the other on a connection that is kept.
#[derive(Debug, Clone)]
struct Turn {
    is_head: bool,
    status: u16,
    request_body: u16,
    response_body: u16,
    /// The messages are moved in several calls: a head, a body.
    apart: bool,
    /// Which of the four movements no program sees: request head and body, response head and body.
    missed: [bool; 4],
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let missed = prop_oneof![
        3 => Just([false; 4]),
        2 => proptest::array::uniform4(prop::bool::weighted(0.4)),
        1 => Just([false, false, true, true]),
        1 => Just([true, true, false, false]),
        1 => Just([true; 4]),
    ];
    let status = prop_oneof![Just(200_u16), Just(204), Just(304), Just(404)];
    let body = prop_oneof![Just(0_u16), 1_u16..3000];
    let turn = (any::<bool>(), status, body.clone(), body, any::<bool>(), missed).prop_map(
        |(is_head, status, request_body, response_body, apart, missed)| Turn {
            is_head,
            status,
            request_body,
            response_body,
            apart,
            missed,
        },
    );
    // A connection whose first bytes were unseen is one that was joined in the middle: the first turn is seen.
    proptest::collection::vec(turn, 1..8).prop_map(|mut turns| {
        turns[0].missed = [false; 4];
        turns
    })
}

fn pass(line: &mut Line, sending: bool, bytes: &[u8], missed: bool) {
    if missed || bytes.is_empty() {
        line.miss(sending, bytes.len());
    } else {
        line.pass(sending, Segment::Buffer(bytes));
    }
}

fn message(line: &mut Line, sending: bool, turn: &Turn, ((head, body), missed): ((&str, u16), [bool; 2])) {
    let body = vec![b'x'; body.into()];
    if turn.apart {
        pass(line, sending, head.as_bytes(), missed[0]);
        pass(line, sending, &body, missed[1]);
    } else {
        pass(line, sending, &[head.as_bytes(), &body].concat(), missed[0]);
    }
}

fn play(turns: &[Turn], server: bool, reason: u32) -> Line {
    let mut line = Line::default();
    for (nth, turn) in turns.iter().enumerate() {
        let Turn { is_head, status, request_body, response_body, missed, .. } = *turn;
        let method = if is_head { "HEAD" } else { "POST" };
        let request =
            format!("{method} /{nth} HTTP/1.1\r\nHost: a\r\nContent-Length: {request_body}\r\n\r\n");
        let response = format!("HTTP/1.1 {status} X\r\nId: {nth}\r\nContent-Length: {response_body}\r\n\r\n");
        let has_body = !is_head && status != 204 && status != 304;
        let response_body = if has_body { response_body } else { 0 };
        message(&mut line, !server, turn, ((&request, request_body), [missed[0], missed[1]]));
        message(&mut line, server, turn, ((&response, response_body), [missed[2], missed[3]]));
    }
    line.end(reason, server);
    line
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn nothing_breaks_that_only_passed_unseen(turns in turns(), server in any::<bool>(), local in any::<bool>()) {
        let line = play(&turns, server, if local { CLOSE_LOCAL } else { CLOSE_REMOTE });
        for (number, account) in &line.ledger.accounts {
            if account.fate != Fate::Whole {
                prop_assert!(is_counted(account), "{number:#x} is {:?}: {account:?}", account.fate);
                continue;
            }
            let (asked, answered) = ids(account);
            if asked.is_some() && answered.is_some() {
                prop_assert_eq!(asked, answered, "{:?}", account);
            }
        }
        let delivered = line.ledger.delivered();
        let lost = line.ledger.abandoned() + line.kernel.lost();
        let n = turns.len() as u64;
        prop_assert!(delivered + lost <= n, "{delivered} reported, {lost} lost of {n}");
        prop_assert!(delivered == n || lost > 0, "{delivered} reported of {n}, none lost");
    }
}
