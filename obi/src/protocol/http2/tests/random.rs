//! Random streams, in any order, with any records missing.

use super::*;
use proptest::prelude::*;

/// A stream of a random connection.
#[derive(Debug, Clone)]
struct Script {
    path: u8,
    status: u16,
    has_request_body: bool,
    has_response_body: bool,
    is_interim: bool,
    has_trailers: bool,
    /// 0: answered, 1: reset by the client, 2: by the server, 3: never answered.
    fate: u8,
}

fn script() -> impl Strategy<Value = Script> {
    (
        0..20_u8,
        200..600_u16,
        any::<[bool; 4]>(),
        prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)],
    )
        .prop_map(
            |(path, status, [has_request_body, has_response_body, is_interim, has_trailers], fate)| Script {
                path,
                status,
                has_request_body,
                has_response_body,
                is_interim,
                has_trailers,
                fate,
            },
        )
}

/// The steps of one stream, each of which makes a frame.
fn step(c: &mut Connection, id: u32, script: &Script, nth: u32) -> Option<Vec<Record>> {
    let (path, status) = (format!("/path/{}", script.path), script.status.to_string());
    let Script { has_request_body, has_response_body, has_trailers, .. } = *script;
    match (nth, script.fate) {
        (0, _) => Some(c.headers(Client, id, !has_request_body, &[(":method", "PUT"), (":path", &path)])),
        (1, _) if has_request_body => Some(c.data_end(Client, id, 11, 0)),
        (2, 1) => Some(c.reset(Client, id, 8)),
        (2, 2) => Some(c.reset(Server, id, 7)),
        (2, 0) if script.is_interim => Some(c.headers(Server, id, false, &[(":status", "103")])),
        (3, 0) => {
            let is_end = !has_response_body && !has_trailers;
            Some(c.headers(Server, id, is_end, &[(":status", &status), ("x-path", &path)]))
        }
        (4, 0) if has_trailers => Some(c.headers(Server, id, true, &[("x-trailer", &path)])),
        (4, 0) if has_response_body => Some(c.data_end(Server, id, 22, 0)),
        _ => None,
    }
}

/// Ordinal, path, status if there was a response, failure.
type SeenExchange = (u64, String, Option<Option<u16>>, Option<Failure>);

#[derive(Default)]
struct Seen {
    exchanges: Vec<SeenExchange>,
    n_lost: usize,
}

impl Sink for Seen {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        let Message::Http(http) = exchange.message else { panic!("not HTTP") };
        let status = http.response.map(|response| response.status);
        let ordinal = exchange.number & ((1 << ORDINAL_BITS) - 1);
        self.exchanges.push((ordinal, http.request.path.to_owned(), status, exchange.failure));
    }

    fn lost(&mut self, _: Loss) {
        self.n_lost += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Streams in any order, in any pieces, with any records missing: each is seen or lost, once, and nothing that is
    /// reported of it is wrong. Without missing records all are seen, and everything of them.
    #[test]
    fn each_stream_counts_once(
        scripts in prop::collection::vec(script(), 1..60),
        concurrency in 1..12_usize,
        piece in prop_oneof![Just(1880_usize), 1..60_usize],
        coding in prop::sample::select(vec![Coding::Random, Coding::Eager, Coding::Selective, Coding::Plain]),
        is_client: bool,
        drops in prop_oneof![Just(0_u32), 1..300_u32],
        seed: u64,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut c = if is_client { Connection::client(seed >> 30 | 1) } else { Connection::server(seed >> 30 | 1) };
        (c.piece, c.coding) = (piece, coding);
        let (mut exchanges, mut seen) = (Exchanges::new(Limits::default()), Seen::default());
        let (mut open, mut next, mut time) = (Vec::new(), 0, 1);
        while next < scripts.len() || !open.is_empty() {
            if next < scripts.len() && (open.is_empty() || open.len() < concurrency && rng.bool()) {
                open.push((next, 0));
                next += 1;
            }
            // Requests are opened in the order of their numbers.
            let first_new = open.iter().position(|(_, nth)| *nth == 0);
            let at = first_new.unwrap_or_else(|| rng.usize(..open.len()));
            let (stream, nth) = &mut open[at];
            let records = step(c.at(time), *stream as u32 * 2 + 1, &scripts[*stream], *nth);
            time += 1;
            *nth += 1;
            if *nth == 5 {
                open.swap_remove(at);
            }
            for record in records.into_iter().flatten() {
                if rng.u32(..1_000) >= drops {
                    exchanges.accept(&decode(record.bytes()).unwrap(), &mut seen);
                }
            }
        }
        for record in c.at(time).close(CLOSE_REMOTE, |_| {}) {
            exchanges.accept(&decode(record.bytes()).unwrap(), &mut seen);
        }
        prop_assert_eq!(exchanges.open(), 0);
        prop_assert_eq!(seen.exchanges.len() + seen.n_lost, scripts.len(), "sent = seen + lost");
        seen.exchanges.sort();
        prop_assert!(seen.exchanges.windows(2).all(|pair| pair[0].0 != pair[1].0), "no stream twice");
        prop_assert!(drops > 0 || seen.n_lost == 0);
        for (ordinal, path, status, failure) in &seen.exchanges {
            let script = &scripts[*ordinal as usize - 1];
            let right = format!("/path/{}", script.path);
            prop_assert!(*path == right || path.is_empty() && drops > 0, "{} {}", path, right);
            if script.fate == 0 && failure.is_none() {
                let is_unknown = *status == Some(None) && drops > 0;
                prop_assert!(*status == Some(Some(script.status)) || is_unknown, "{:?}", status);
            }
            prop_assert_eq!(failure.is_some(), script.fate != 0, "{:?} {:?}", failure, script);
        }
    }
}
