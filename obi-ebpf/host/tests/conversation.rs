//! The capture logic against a plain reading of HTTP/1: random conversations, cut at random, from both ends.

mod property;

use obi_ebpf::*;
use obi_ebpf_host::conversation::{Conversation, Exchange};
use obi_ebpf_host::drive::{Cut, Plan, Played, play};
use obi_ebpf_host::ledger::{Account, Fate, Ledger};
use obi_ebpf_host::{Faults, Kernel, Segment};
use proptest::prelude::*;

use self::property::cases;

fn plans() -> impl Strategy<Value = Plan> {
    let cut =
        prop_oneof![Just(Cut::Bytes), Just(Cut::Tiny), Just(Cut::Any), Just(Cut::Any), Just(Cut::Whole)];
    let limit = prop_oneof![Just(8192u32), 64u32..4000];
    let reason = 1u8..=4;
    (any::<u64>(), any::<bool>(), cut, limit, any::<bool>(), any::<bool>(), reason).prop_map(
        |(seed, server, cut, head_limit, hide, cut_short, reason)| Plan {
            seed,
            server,
            cut,
            head_limit,
            hide,
            damage: 0,
            pipelined: seed % 4 != 0,
            cut_short,
            reason,
            faults: Faults::default(),
        },
    )
}

fn conversation(seed: u64, n: usize) -> Conversation {
    Conversation::random(&mut fastrand::Rng::with_seed(seed), n)
}

/// What the plain reading says became of an exchange whose request head has passed.
fn expected_end(played: &Played, exchange: &Exchange, plan: &Plan) -> bool {
    let clean = u32::from(plan.reason) == CLOSE_LOCAL || u32::from(plan.reason) == CLOSE_REMOTE;
    if exchange.until_close {
        clean && played.responses >= exchange.response.head.end
    } else {
        played.responses >= exchange.response.end
    }
}

fn check_delivered(conversation: &Conversation, plan: &Plan, played: &Played, nth: usize, account: &Account) {
    let exchange = &conversation.exchanges[nth];
    let limit = plan.head_limit as usize;
    let head = &conversation.requests.bytes[exchange.request.head.clone()];
    assert_eq!(account.request.head, head[..head.len().min(limit)], "request head of {nth}");
    assert_eq!(account.request.truncated, head.len() > limit, "request {nth} truncated");
    assert_eq!(account.request.offset as usize, exchange.request.head.start, "where request {nth} starts");
    assert_eq!(u32::from(account.side), if plan.server { SIDE_SERVER } else { SIDE_CLIENT });
    let passed = exchange.request.head.end..exchange.request.end.min(played.requests);
    // Behind an early answer, the record of the request's end is the only one whose loss is no exchange's.
    let is_end_lost = played.incomplete[nth] && plan.faults.ring > 0 && account.request.ended.is_none();
    let request_passed = played.requests >= exchange.request.end && !is_end_lost;
    let head = &conversation.responses.bytes[exchange.response.head.clone()];
    let response_passed = exchange.response.head.end
        ..exchange.response.end.min(played.responses).max(exchange.response.head.end);
    let response_bytes = conversation.responses.body_bytes(response_passed);
    if played.responses >= exchange.response.head.end {
        assert!(account.response.whole, "response head of {nth} passed");
        assert_eq!(account.response.head, head[..head.len().min(limit)], "response head of {nth}");
        assert_eq!(
            account.response.offset as usize, exchange.response.head.start,
            "where response {nth} starts"
        );
        assert_eq!(account.response.flags & FLAG_TUNNEL != 0, exchange.tunnel, "tunnel {nth}");
        assert_eq!(
            account.response.flags & FLAG_CLOSE_DELIMITED != 0,
            exchange.until_close,
            "until close {nth}"
        );
    }
    if expected_end(played, exchange, plan) {
        assert_eq!(account.fate, Fate::Whole, "exchange {nth}");
        assert_eq!(account.response.ended, Some(response_bytes), "response body of {nth}");
        assert_eq!(
            account.request.ended,
            request_passed.then_some(exchange.request.body_bytes),
            "request body of {nth}"
        );
        return;
    }
    let Fate::Broken(reason, request, response) = account.fate else {
        panic!("exchange {nth} is {:?}", account.fate);
    };
    assert_eq!(reason, plan.reason);
    assert_eq!(
        account.request.ended,
        request_passed.then_some(exchange.request.body_bytes),
        "request body of {nth}"
    );
    if let (Some(bytes), None) = (request, account.request.ended) {
        assert_eq!(bytes, conversation.requests.body_bytes(passed), "request body of {nth} so far");
    }
    if let Some(bytes) = response {
        assert_eq!(bytes, response_bytes, "response body of {nth} so far");
    }
}

/// Every exchange whose request head passed is delivered exactly, or counted once.
fn check(n: usize, plan: Plan) {
    let conversation = conversation(plan.seed, n);
    let played = play(&conversation, &plan);
    let begun = conversation.exchanges.iter().filter(|e| e.request.head.end <= played.requests).count();
    for (number, account) in &played.ledger.accounts {
        let nth = usize::try_from(number - played.first).expect("numbers in order");
        match account.fate {
            Fate::Whole | Fate::Broken(..) => {
                assert!(nth < begun, "phantom {nth}");
                check_delivered(&conversation, &plan, &played, nth, account);
            }
            Fate::Dropped => assert!(nth >= begun, "exchange {nth} dropped"),
            Fate::Forgotten => assert!(plan.faults.ring > 0 || nth >= begun, "exchange {nth} forgotten"),
            Fate::Open | Fate::Abandoned(_) => panic!("exchange {nth} is {:?}", account.fate),
        }
    }
    let lost = played.kernel.tally(TALLY_LOST, LOSS_RING_FULL);
    assert_eq!(played.kernel.lost(), lost, "nothing is lost but to the full ring");
    assert!(lost == 0 || plan.faults.ring > 0);
    assert_eq!(played.ledger.delivered() + lost, begun as u64, "sent = seen + lost");
    assert_eq!(played.kernel.uncovered(), 0);
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn conversations_are_reported_exactly(n in 1usize..9, plan in plans()) {
        check(n, plan);
    }

    #[test]
    fn a_full_ring_loses_exchanges_and_counts_them(n in 1usize..9, plan in plans(), ring in 1u32..200) {
        check(n, Plan { faults: Faults { ring, ..Faults::default() }, ..plan });
    }
}

/// The id in a head as `put_message` writes it.
fn id(head: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(head);
    let (_, rest) = text.split_once("\nX-Id: ")?;
    rest.split_once(['\r', '\n'])?.0.parse().ok()
}

proptest! {
    #![proptest_config(cases(600))]

    /// Whatever passes unseen, unreadable or unstored: nothing is invented, nothing counted twice.
    #[test]
    fn damage_invents_nothing(
        n in 1usize..9,
        plan in plans(),
        damage in 1u8..60,
        user in prop_oneof![Just(0u32), 1u32..30],
        ring in prop_oneof![Just(0u32), 1u32..100],
        spare in prop_oneof![Just(0u32), 1u32..200],
        steps in prop_oneof![Just(0u32), 1u32..100],
    ) {
        let plan = Plan { damage, head_limit: 8192, faults: Faults { ring, user, spare, note: 0, steps }, ..plan };
        let conversation = conversation(plan.seed, n).with_plain_bodies();
        let played = play(&conversation, &plan);
        let begun = conversation.exchanges.iter().filter(|e| e.request.head.start < played.requests).count() as u64;
        for account in played.ledger.accounts.values() {
            if !matches!(account.fate, Fate::Whole | Fate::Broken(..)) || !account.request.whole {
                continue;
            }
            // Found again in the middle of a head it may lack its beginning, never have anything in between.
            let mut sent = conversation.requests.bytes.windows(account.request.head.len());
            prop_assert!(sent.any(|bytes| bytes == account.request.head), "bytes as they were sent");
        }
        if !plan.pipelined {
            for account in played.ledger.accounts.values().filter(|account| account.fate == Fate::Whole) {
                if let (Some(asked), Some(answered)) = (id(&account.request.head), id(&account.response.head)) {
                    prop_assert_eq!(asked, answered, "a response with its own request");
                }
            }
            // The middle of a head may look like a request. Where its beginning was missed, the exchange was counted as
            // lost already, and is shown or counted once more.
            let is_inside = |account: &&Account| {
                let at = account.request.offset as usize;
                let mut heads = conversation.exchanges.iter().map(|exchange| &exchange.request.head);
                account.fate != Fate::Forgotten && heads.any(|head| head.start < at && at < head.end)
            };
            let mut again = played.ledger.accounts.values().filter(is_inside).count() as u64;
            // Where that one began did not come through.
            again += played.kernel.tally(TALLY_LOST, LOSS_RING_FULL);
            let lost = (played.ledger.abandoned() + played.kernel.lost()).saturating_sub(again);
            prop_assert!(played.ledger.delivered() + lost <= begun, "{} + {lost} of {begun}", played.ledger.delivered());
        }
        prop_assert!(played.ledger.accounts.values().all(|account| account.fate != Fate::Open));
        prop_assert!(played.ledger.delivered() <= begun);
    }

    #[test]
    fn other_protocols_are_nothing(
        greeting in prop_oneof![
            Just(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
            Just(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
            Just(b"220 mail.example.com ESMTP\r\nEHLO x\r\n".to_vec()),
            Just(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec()),
            Just(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n".to_vec()),
            Just(b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x4e\0\x03\0\0user\0x\0".to_vec()),
            Just(b"SELECT a, b, c, d, e, f FROM a_long_table WHERE nothing = everything\r\n".to_vec()),
            Just(b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 1..200),
        ],
        tail in proptest::collection::vec(any::<u8>(), 0..2000),
        seed in any::<u64>(),
    ) {
        let covered = greeting.starts_with(b"PRI ") || greeting.starts_with(b"\x16") || greeting.starts_with(b"\x17");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut kernel = Kernel::boot(seed, 8192, Faults::default());
        let mut ledger = Ledger::default();
        let mut connection = kernel.connect(false);
        let all = [greeting, tail].concat();
        let mut left = &all[..];
        while !left.is_empty() {
            let most = [3, 50, 3000][rng.usize(..3)];
            let (now, rest) = left.split_at(rng.usize(1..=left.len().min(most)));
            left = rest;
            let exact = now.to_vec(); // so that a sanitizer sees a read beyond it
            kernel.segment(&mut connection, rng.bool() && left.len() < 50, 0, Segment::Buffer(&exact), 1000);
        }
        kernel.end(&mut connection, CLOSE_REMOTE, 2000);
        ledger.read(&kernel);
        prop_assert_eq!(ledger.delivered() + ledger.abandoned() + kernel.lost(), 0);
        prop_assert!(kernel.uncovered() <= u64::from(covered));
    }
}
