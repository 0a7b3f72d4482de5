//! Joining a connection in the middle: how much of what header blocks say is not known, block by block.
//!
//! In: connections with header-heavy requests, joined at random places. Out: a table of the share that is unknown, by
//! encoder; failure when anything known is wrong, or when fields whose names every encoder takes from the static table
//! are still unknown after the table has been turned over once.

use obi::protocol::http2::hpack::{Decoder, Head, Name};

use super::wire::header_block::{Coding, Encoder};

/// Blocks on a connection, and connections per encoder.
const BLOCKS: usize = 600;
const CONNECTIONS: u64 = 20;

/// The names whose values matter; those of requests stand in the static table, the others do not.
const STATIC: [(Name, &str); 4] = [
    (Name::Method, ":method"),
    (Name::Path, ":path"),
    (Name::Authority, ":authority"),
    (Name::UserAgent, "user-agent"),
];
const OTHER: [(Name, &str); 2] = [(Name::Traceparent, "traceparent"), (Name::Tracestate, "tracestate")];

fn request(rng: &mut fastrand::Rng) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        (":method", ["GET", "PUT", "PATCH"][rng.usize(..3)].to_owned()),
        (":path", format!("/orders/{}", rng.u32(..50))),
        (":authority", format!("shop-{}", rng.u32(..3))),
        ("user-agent", format!("client/{}", rng.u32(..4))),
        ("x-request-id", format!("{:032x}", rng.u128(..))),
        ("cookie", format!("session={:x}", rng.u32(..200))),
        ("x-a-header-of-some-length", format!("{}", rng.u32(..100))),
    ];
    if rng.bool() {
        fields.push(("traceparent", format!("00-{:032x}-{:016x}-01", rng.u128(1..), rng.u64(1..))));
        fields.push(("tracestate", "vendor=1".to_owned()));
    }
    fields
}

/// Unknown and all fields of some names, since the join and until the table was turned over, and after that.
#[derive(Default)]
struct Share {
    unknown: [usize; 2],
    all: [usize; 2],
}

impl Share {
    fn percent(&self, after: bool) -> f64 {
        let at = usize::from(after);
        100.0 * self.unknown[at] as f64 / self.all[at] as f64
    }
}

fn joined(coding: Coding) -> [Share; 2] {
    let mut shares = [Share::default(), Share::default()];
    for seed in 0..CONNECTIONS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut encoder, mut decoder, mut head) = (Encoder::new(seed), Decoder::default(), Head::default());
        let join = rng.usize(BLOCKS / 10..BLOCKS / 2);
        // Every byte of the table at the join is gone when so many have been inserted.
        let mut left = None;
        for nth in 0..BLOCKS {
            let fields = request(&mut rng);
            let before = encoder.inserted();
            let block = encoder.encode(&fields, coding);
            if nth < join {
                continue;
            }
            let left = left.get_or_insert(4096_usize);
            let is_turned_over = *left == 0;
            *left = left.saturating_sub(encoder.inserted() - before);
            decoder.decode(&block, &mut head).expect("an encoder made it");
            for (share, names) in shares.iter_mut().zip([&STATIC[..], &OTHER[..]]) {
                for (name, text) in names {
                    let right =
                        fields.iter().find(|(name, _)| name == text).map(|(_, value)| value.as_bytes());
                    let Some(right) = right else { continue };
                    let found = head.get(*name);
                    assert!(found.is_none_or(|found| found == right), "{text} is wrong: {found:?} {right:?}");
                    share.all[usize::from(is_turned_over)] += 1;
                    share.unknown[usize::from(is_turned_over)] += usize::from(found.is_none());
                }
            }
        }
    }
    shares
}

#[test]
fn what_is_unknown_after_joining() {
    println!("unknown after joining     of the request line, %      of other names, %");
    println!("encoder                  first turnover    later    first turnover    later");
    for coding in [Coding::Eager, Coding::Selective, Coding::Plain, Coding::Random] {
        let [line, other] = joined(coding);
        println!(
            "{:<22} {:>16.1} {:>8.1} {:>17.1} {:>8.1}",
            format!("{coding:?}"),
            line.percent(false),
            line.percent(true),
            other.percent(false),
            other.percent(true),
        );
        // By chance a name may refer to an entry whose name refers to an entry, and so on: it stays unknown.
        // Encoders of the wild take names from the static table where they can, so this concerns other names.
        if coding != Coding::Random {
            assert_eq!(line.unknown[1], 0, "{coding:?}: fields of the request line after a turnover");
        }
    }
}
