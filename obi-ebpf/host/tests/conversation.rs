//! The capture logic against a plain reading of HTTP/1: random conversations, cut at random, from both ends.

use obi_ebpf::*;
use obi_ebpf_host::Faults;
use obi_ebpf_host::conversation::{Conversation, Exchange};
use obi_ebpf_host::drive::{Cut, Plan, Played, play};
use obi_ebpf_host::ledger::{Account, Fate};
use proptest::prelude::*;

fn plans() -> impl Strategy<Value = Plan> {
    let cut = prop_oneof![Just(Cut::Bytes), Just(Cut::Tiny), Just(Cut::Any), Just(Cut::Any), Just(Cut::Whole)];
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
    let request_passed = played.requests >= exchange.request.end && !played.incomplete[nth];
    let head = &conversation.responses.bytes[exchange.response.head.clone()];
    let response_passed =
        exchange.response.head.end..exchange.response.end.min(played.responses).max(exchange.response.head.end);
    let response_bytes = conversation.responses.body_bytes(response_passed);
    if played.responses >= exchange.response.head.end {
        assert!(account.response.whole, "response head of {nth} passed");
        assert_eq!(account.response.head, head[..head.len().min(limit)], "response head of {nth}");
        assert_eq!(account.response.offset as usize, exchange.response.head.start, "where response {nth} starts");
        assert_eq!(account.response.flags & FLAG_TUNNEL != 0, exchange.tunnel, "tunnel {nth}");
        assert_eq!(account.response.flags & FLAG_CLOSE_DELIMITED != 0, exchange.until_close, "until close {nth}");
    }
    if expected_end(played, exchange, plan) {
        assert_eq!(account.fate, Fate::Whole, "exchange {nth}");
        assert_eq!(account.response.ended, Some(response_bytes), "response body of {nth}");
        assert_eq!(account.request.ended, request_passed.then_some(exchange.request.body_bytes), "request body of {nth}");
        return;
    }
    let Fate::Broken(reason, request, response) = account.fate else {
        panic!("exchange {nth} is {:?}", account.fate);
    };
    assert_eq!(reason, plan.reason);
    assert_eq!(account.request.ended, request_passed.then_some(exchange.request.body_bytes), "request body of {nth}");
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

fn cases(n: u32) -> ProptestConfig {
    let n = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(n);
    ProptestConfig { failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::with_cases(n) }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn conversations_are_told_exactly(n in 1usize..9, plan in plans()) {
        check(n, plan);
    }

    #[test]
    fn a_full_ring_loses_exchanges_and_counts_them(n in 1usize..9, plan in plans(), ring in 1u32..200) {
        check(n, Plan { faults: Faults { ring, ..Faults::default() }, ..plan });
    }
}
