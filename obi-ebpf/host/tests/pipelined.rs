//! Requests that do not wait for answers, on a connection that cannot be followed for a while: no request gets the
//! answer to another, and what is not reported is counted.

mod property;

use obi_ebpf::*;
use obi_ebpf_host::ledger::{Account, Fate};
use obi_ebpf_host::line::{Line, ids, is_counted};
use obi_ebpf_host::{Faults, Segment};
use proptest::prelude::*;

use self::property::cases;

/// What happens to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    None,
    /// No program sees it; the next one shows that bytes are missing.
    Missed,
    /// Its bytes cannot be read.
    Opaque,
    /// The walk along it is cut off somewhere.
    Cut,
}

#[derive(Debug, Clone)]
struct Exchange {
    request_body: u16,
    request_is_chunked: bool,
    response_body: u16,
    /// Its request's last bytes move with those of the next one, if that is of the same batch.
    goes_on: bool,
}

/// Requests that are sent before any of them is answered.
#[derive(Debug, Clone)]
struct Batch {
    exchanges: Vec<Exchange>,
    /// Of the segment with the nth request, and with the nth response.
    damage: [Vec<Damage>; 2],
}

const MOST: usize = 6;

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let body = prop_oneof![Just(0_u16), 1_u16..3000];
    let exchange = (body.clone(), any::<bool>(), body, prop::bool::weighted(0.7)).prop_map(
        |(request_body, request_is_chunked, response_body, goes_on)| Exchange {
            request_body,
            request_is_chunked,
            response_body,
            goes_on,
        },
    );
    let damage = prop_oneof![
        8 => Just(Damage::None),
        1 => Just(Damage::Missed),
        1 => Just(Damage::Opaque),
        1 => Just(Damage::Cut),
    ];
    let damages = move || proptest::collection::vec(damage.clone(), MOST);
    let batch = (proptest::collection::vec(exchange, 1..=MOST), [damages(), damages()])
        .prop_map(|(exchanges, damage)| Batch { exchanges, damage });
    proptest::collection::vec(batch, 1..6).prop_map(|mut batches| {
        // The first batch is whole, and shows what kind of connection this is.
        let first = &mut batches[0];
        first.damage = [vec![Damage::None; MOST], vec![Damage::None; MOST]];
        let again = first.exchanges[0].clone();
        first.exchanges.insert(0, Exchange { goes_on: true, ..again });
        first.exchanges.truncate(MOST);
        batches
    })
}

fn pass(line: &mut Line, sending: bool, bytes: &[u8], damage: Damage) {
    let steps = if damage == Damage::Cut { 64 } else { 0 };
    line.kernel.set_faults(Faults { steps, ..Faults::default() });
    match damage {
        Damage::Missed => line.miss(sending, bytes.len()),
        Damage::Opaque => {
            line.pass(sending, Segment::Opaque(u32::try_from(bytes.len()).expect("short"), false));
        }
        Damage::None | Damage::Cut => line.pass(sending, Segment::Buffer(bytes)),
    }
}

fn request(id: usize, exchange: &Exchange) -> Vec<u8> {
    let n = usize::from(exchange.request_body);
    let body = vec![b'x'; n];
    let (framing, body) = match exchange.request_is_chunked {
        true if n == 0 => ("Transfer-Encoding: chunked".to_owned(), b"0\r\n\r\n".to_vec()),
        true => {
            let size = format!("{n:x}\r\n");
            ("Transfer-Encoding: chunked".to_owned(), [size.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat())
        }
        false => (format!("Content-Length: {n}"), body),
    };
    [format!("POST /{id} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes(), &body].concat()
}

fn response(id: usize, exchange: &Exchange) -> Vec<u8> {
    let n = usize::from(exchange.response_body);
    let head = format!("HTTP/1.1 200 OK\r\nId: {id}\r\nContent-Length: {n}\r\n\r\n");
    [head.as_bytes(), &vec![b'y'; n]].concat()
}

fn play(batches: &[Batch], server: bool) -> Line {
    let mut line = Line::default();
    let mut first = 0;
    for batch in batches {
        let mut waiting = Vec::new();
        for (nth, exchange) in batch.exchanges.iter().enumerate() {
            waiting.extend(request(first + nth, exchange));
            if !exchange.goes_on || nth + 1 == batch.exchanges.len() {
                pass(&mut line, !server, &std::mem::take(&mut waiting), batch.damage[0][nth]);
            }
        }
        for (nth, exchange) in batch.exchanges.iter().enumerate() {
            pass(&mut line, server, &response(first + nth, exchange), batch.damage[1][nth]);
        }
        first += batch.exchanges.len();
    }
    line.end(CLOSE_REMOTE, server);
    line
}

/// Of many answers without a request that end together, kernels before 5.17 take back the first eight (`SWEEP_LIMIT`).
/// The agent forgets the others by their age. All of them are counted.
fn is_left_behind(line: &Line, number: u64) -> bool {
    const SWEEP_LIMIT: u64 = 8;
    let accounts = &line.ledger.accounts;
    let is_open = |number: &u64| {
        let open = |account: &Account| account.fate == Fate::Open && account.ahead && !account.request.begun;
        accounts.get(number).is_some_and(open)
    };
    // Eight that were taken back, or counted before, stand before all that are left.
    let n_left = (0..).take_while(|back| is_open(&(number - back))).count() as u64;
    let first = number + 1 - n_left;
    let is_swept = |number: u64| accounts.get(&number).is_none_or(is_counted);
    cfg!(feature = "portable") && n_left > 0 && (1..=SWEEP_LIMIT).all(|back| is_swept(first - back))
}

/// Every exchange is reported as it was, or counted.
fn check(batches: &[Batch], server: bool) -> Result<(), TestCaseError> {
    let line = play(batches, server);
    let exchanges: Vec<&Exchange> = batches.iter().flat_map(|batch| &batch.exchanges).collect();
    for (number, account) in &line.ledger.accounts {
        if account.fate != Fate::Whole {
            let is_reported = is_counted(account) || is_left_behind(&line, *number);
            prop_assert!(is_reported, "{number:#x} is {:?}: {account:?}", account.fate);
            continue;
        }
        let (Some(asked), Some(answered)) = ids(account) else {
            return Err(TestCaseError::fail(format!("a head without its id: {account:?}")));
        };
        prop_assert_eq!(asked, answered, "{:?}", account);
        let truth = exchanges[asked];
        prop_assert_eq!(account.request.ended, Some(truth.request_body.into()), "{:?}", account);
        prop_assert_eq!(account.response.ended, Some(truth.response_body.into()), "{:?}", account);
    }
    let delivered = line.ledger.delivered();
    let lost = line.ledger.abandoned() + line.kernel.lost();
    let n = exchanges.len() as u64;
    prop_assert!(delivered + lost <= n, "{delivered} reported, {lost} lost of {n}");
    // With one direction whole, that one is counted by; its end is known when nothing is missing there.
    let damaged =
        |way: usize| batches.iter().any(|batch| batch.damage[way].iter().any(|d| *d != Damage::None));
    if !damaged(0) || !damaged(1) {
        prop_assert_eq!(delivered + lost, n, "{} reported, {} lost", delivered, lost);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn no_request_gets_the_answer_to_another(batches in batches(), server in any::<bool>()) {
        check(&batches, server)?;
    }
}

/// Requests that pass unseen, several at once, and answers that are all seen: the last answers have no request to wait
/// for when the connection ends.
#[test]
fn answers_without_a_request_end_with_their_connection() {
    let exchange =
        |goes_on| Exchange { request_body: 0, request_is_chunked: false, response_body: 0, goes_on };
    let batch = |goes_on: &[bool], missed: &[usize]| {
        let mut damage = [vec![Damage::None; MOST], vec![Damage::None; MOST]];
        missed.iter().for_each(|nth| damage[0][*nth] = Damage::Missed);
        Batch { exchanges: goes_on.iter().copied().map(exchange).collect(), damage }
    };
    let batches = [
        batch(&[true, false], &[]),
        batch(&[false, true, true, false], &[3]),
        batch(&[true, true, false, true, true, false], &[2, 5]),
    ];
    for server in [false, true] {
        check(&batches, server).unwrap();
    }
}
