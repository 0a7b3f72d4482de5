//! W3C Trace Context: the caller's span from headers, and ids of our own.
//!
//! In: `traceparent` and `tracestate` as sent; numbers of exchanges. Out: the [`Parent`] that a header names, if it
//! keeps to the specification; ids. Refuses to know how headers travel.

use fastrand::Rng;
use std::hash::BuildHasher;

/// The caller's span as `traceparent` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Never all zero.
    pub trace_id: [u8; 16],
    /// Never all zero.
    pub span_id: [u8; 8],
    /// As sent; only the bits that its version defines.
    pub flags: u8,
}

/// "The caller may have recorded this trace", and what we set on traces that begin here.
pub const FLAG_SAMPLED: u8 = 1;
/// The trace id is random in its right-most seven bytes (Trace Context level 2).
pub const FLAG_RANDOM: u8 = 2;

/// Reads `traceparent` (W3C Trace Context §3.2). `None` when it is not valid: wrong lengths, upper-case
/// digits, version `ff`, ids of zeros. A version above `00` may be longer and is read as far as `00` goes.
#[must_use]
pub fn parse_traceparent(header: &str) -> Option<Parent> {
    const LENGTH_00: usize = 55;
    let header = header.trim_matches(OWS).as_bytes();
    let (known, rest) = header.split_at_checked(LENGTH_00)?;
    let [version] = hex(&known[..2])?;
    let extended = version > 0 && rest.first() == Some(&b'-');
    let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
    if version == 0xff || !dashes || !(rest.is_empty() || extended) {
        return None;
    }
    let parent = Parent {
        trace_id: hex(&known[3..35])?,
        span_id: hex(&known[36..52])?,
        flags: hex::<1>(&known[53..])?[0] & (FLAG_SAMPLED | FLAG_RANDOM),
    };
    (parent.trace_id != [0; 16] && parent.span_id != [0; 8]).then_some(parent)
}

/// An id of `N` bytes as people and other tools write it: hexadecimal digits, twice `N` of them, in either case.
#[must_use]
pub fn parse_id<const N: usize>(text: &str) -> Option<[u8; N]> {
    hex(text.to_ascii_lowercase().as_bytes())
}

/// Lower-case hexadecimal digits, twice `N` of them.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Optional white space of header values (RFC 9110 §5.6.3): nothing else may surround them.
const OWS: [char; 2] = [' ', '\t'];

/// Longest `tracestate` kept, bytes: what the specification asks everyone to carry (§3.3.1.5).
const TRACESTATE_BYTES: usize = 512;
/// Most list members of a valid `tracestate` (§3.3.1.1).
const TRACESTATE_MEMBERS: usize = 32;

/// The part of a `tracestate` that is kept: all of it when it is valid and at most 512 bytes long; members
/// are dropped from the end of a longer one. Empty when the list breaks the specification (§3.3.1).
#[must_use]
pub fn valid_tracestate(header: &str) -> &str {
    let header = header.trim_matches(OWS);
    let members =
        header.split(',').map(|member| member.trim_matches(OWS)).filter(|member| !member.is_empty());
    let mut n_members = 0;
    for member in members {
        n_members += 1;
        if n_members > TRACESTATE_MEMBERS || !is_member(member) {
            return "";
        }
    }
    match header.as_bytes().get(..=TRACESTATE_BYTES) {
        Some(longer) => {
            let comma = longer.iter().rposition(|byte| *byte == b',').unwrap_or(0);
            header[..comma].trim_end_matches(OWS)
        }
        None => header,
    }
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let key_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let key_begin = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let value_byte = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b',' && byte != b'=';
    key.len() <= 256
        && key.as_bytes().first().is_some_and(key_begin)
        && key.bytes().all(key_byte)
        && key.bytes().filter(|byte| *byte == b'@').count() <= 1
        && (1..=256).contains(&value.len())
        && value.bytes().all(value_byte)
}

/// Maker of ids. They follow from what is known of a request once its head was seen, so that who asks before the answer
/// has come gets the same ones. Two keys of 64 bits each, so that trace ids of a fleet have 128 bits of randomness.
#[derive(Debug, Clone)]
pub struct Ids {
    keys: [u64; 2],
}

impl Ids {
    /// Seeded by the operating system.
    #[must_use]
    pub fn from_entropy() -> Self {
        // The hasher's keys come from the operating system's random number generator; each use differs.
        let seed = || std::hash::RandomState::new().hash_one(std::process::id());
        Self { keys: [seed(), seed()] }
    }

    /// Always the same ids, for tests.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self { keys: [seed, !seed] }
    }

    /// Of the span of an exchange, by its number and when it `started`. Numbers are used again after very many
    /// exchanges of one connection, hence the time.
    #[must_use]
    pub fn span_id(&self, number: u64, started: u64) -> [u8; 8] {
        self.generators(number, started)[0].u64(1..).to_be_bytes()
    }

    /// Of a trace that begins with this exchange.
    #[must_use]
    pub fn trace_id(&self, number: u64, started: u64) -> [u8; 16] {
        let [mut high, mut low] = self.generators(number, started);
        let _span = high.u64(1..);
        (u128::from(high.u64(..)) << 64 | u128::from(low.u64(1..))).to_be_bytes()
    }

    /// Of the span of a WebSocket, by the number of the exchange that was upgraded to it.
    #[must_use]
    pub fn socket_id(&self, number: u64, started: u64) -> [u8; 8] {
        let [_, mut low] = self.generators(number, started);
        let _trace = low.u64(1..);
        low.u64(1..).to_be_bytes()
    }

    /// Odd factors keep numbers and times apart, which differ in few bits.
    fn generators(&self, number: u64, started: u64) -> [Rng; 2] {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ started.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32);
        self.keys.map(|key| Rng::with_seed(key ^ mixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(header: &str, flags: Option<u8>) {
        let expected = flags.map(|flags| Parent {
            trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes(),
            span_id: 0xb7ad_6b71_6920_3331_u64.to_be_bytes(),
            flags,
        });
        assert_eq!(parse_traceparent(header), expected, "`{header}`");
    }

    #[test]
    fn traceparent() {
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        check(&format!("00-{ids}-01"), Some(1));
        check(&format!(" 00-{ids}-00 "), Some(0));
        check(&format!("00-{ids}-ff"), Some(3));
        check(&format!("00-{ids}-01-extra"), None);
        check(&format!("00-{ids}-011"), None);
        check(&format!("01-{ids}-01"), Some(1));
        check(&format!("cc-{ids}-01-what-comes"), Some(1));
        check(&format!("cc-{ids}-01.what"), None);
        check(&format!("ff-{ids}-01"), None);
        check(&format!("0A-{ids}-01"), None);
        check(&format!("00-{}-01", ids.to_uppercase()), None);
        check(&format!("00-{ids}-0"), None);
        check(&format!("00-{ids}-0x"), None);
        check(&format!("00_{ids}-01"), None);
        check(&format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), None);
        check(&format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)), None);
        check("", None);
        check(&"é".repeat(40), None);
    }

    #[test]
    fn tracestate() {
        let check = |header: &str, expected: &str| assert_eq!(valid_tracestate(header), expected);
        check("", "");
        check("a=1", "a=1");
        check(" a=1 , ,b@c/d=x y ", "a=1 , ,b@c/d=x y");
        check("a", "");
        check("A=1", "");
        check("@a=1", "");
        check("a@b@c=1", "");
        check("=1", "");
        check("a=", "");
        check("a=1=2", "");
        check("a=\u{7f}", "");
        check("a=1,\u{c}", "");
        check(&format!("a=1{},b={}", " ".repeat(500), "2".repeat(20)), "a=1");
        check(&format!("{}=1", "k".repeat(257)), "");
        check(&format!("k={}", "v".repeat(257)), "");
        let members = |n: usize, width: usize| vec![format!("k={}", "v".repeat(width)); n].join(",");
        check(&members(32, 1), &members(32, 1));
        check(&members(33, 1), "");
        check(&members(5, 100), &members(4, 100));
        check(&members(2, 254), &members(1, 254));
    }

    #[test]
    fn ids_differ_and_are_never_zero() {
        let ids = Ids::from_entropy();
        let mut seen = std::collections::HashSet::new();
        for nth in 0..10_000 {
            // Exchanges of a few connections, a microsecond apart; now and then with a number that was used before.
            let (number, started) = (((nth % 7) << 24) | (nth % 1_000), 1_000 * nth);
            let made = || {
                (ids.trace_id(number, started), ids.span_id(number, started), ids.socket_id(number, started))
            };
            let (trace, span, socket) = made();
            assert_eq!(made(), (trace, span, socket));
            assert!(trace != [0; 16] && span != [0; 8] && socket != [0; 8]);
            assert!(
                seen.insert(trace.to_vec()) && seen.insert(span.to_vec()) && seen.insert(socket.to_vec())
            );
        }
        assert_ne!(Ids::from_entropy().trace_id(1, 1), Ids::from_entropy().trace_id(1, 1));
    }

    proptest! {
        #[test]
        fn any_text(header in "\\PC{0,80}", hexish in "[0-9a-fA-F-]{50,60}") {
            for header in [header, hexish] {
                let _ = parse_traceparent(&header);
                prop_assert!(valid_tracestate(&header).len() <= 512);
            }
        }

        #[test]
        fn what_is_written_is_read(trace in 1u128.., span in 1u64.., flags in 0u8..4) {
            let parent = parse_traceparent(&format!("00-{trace:032x}-{span:016x}-{flags:02x}"));
            prop_assert_eq!(
                parent,
                Some(Parent { trace_id: trace.to_be_bytes(), span_id: span.to_be_bytes(), flags })
            );
        }
    }
}
