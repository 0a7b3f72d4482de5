//! W3C Trace Context: the caller's span from headers, and ids of our own.
//!
//! In: `traceparent` and `tracestate` as sent. Out: a [`Context`] for a new span; a header that breaks the
//! specification makes a new trace, never an error. Refuses to know how headers travel.

use fastrand::Rng;
use std::hash::BuildHasher;

/// Place of a span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Never all zero.
    pub trace_id: [u8; 16],
    /// Of the new span; never all zero.
    pub span_id: [u8; 8],
    /// The caller's span; `None` for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// Trace flags that this agent knows: sampled (1) and random trace id (2).
    pub flags: u8,
}

/// The caller's span as `traceparent` tells it.
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
    let header = header.trim_ascii().as_bytes();
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

/// Longest `tracestate` kept, bytes: what the specification asks everyone to carry (§3.3.1.5).
const TRACESTATE_BYTES: usize = 512;
/// Most list members of a valid `tracestate` (§3.3.1.1).
const TRACESTATE_MEMBERS: usize = 32;

/// The part of a `tracestate` that is kept: all of it when it is valid and at most 512 bytes long; members
/// are dropped from the end of a longer one. Empty when the list breaks the specification (§3.3.1).
#[must_use]
pub fn valid_tracestate(header: &str) -> &str {
    let header = header.trim_ascii();
    let members = header.split(',').map(str::trim_ascii).filter(|member| !member.is_empty());
    let mut n_members = 0;
    for member in members {
        n_members += 1;
        if n_members > TRACESTATE_MEMBERS || !is_member(member) {
            return "";
        }
    }
    match header.as_bytes().get(..=TRACESTATE_BYTES) {
        Some(longer) => longer.iter().rposition(|byte| *byte == b',').map_or("", |comma| &header[..comma]),
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

/// Maker of ids. Two generators of 64 bits each, so that trace ids of a fleet have 128 bits of randomness.
#[derive(Debug, Clone)]
pub struct Ids {
    high: Rng,
    low: Rng,
}

impl Ids {
    /// Seeded by the operating system.
    #[must_use]
    pub fn from_entropy() -> Self {
        // The hasher's keys come from the operating system's random number generator; each use differs.
        let seed = || std::hash::RandomState::new().hash_one(std::process::id());
        Self { high: Rng::with_seed(seed()), low: Rng::with_seed(seed()) }
    }

    /// Always the same ids, for tests.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self { high: Rng::with_seed(seed), low: Rng::with_seed(!seed) }
    }

    /// A new span's place: below the caller's span when `traceparent` names one, else a new, sampled trace.
    pub fn context(&mut self, traceparent: &str) -> Context {
        let span_id = self.high.u64(1..).to_be_bytes();
        match parse_traceparent(traceparent) {
            Some(Parent { trace_id, span_id: parent, flags }) => {
                Context { trace_id, span_id, parent_span_id: Some(parent), flags }
            }
            None => {
                let trace_id = u128::from(self.high.u64(..)) << 64 | u128::from(self.low.u64(1..));
                let trace_id = trace_id.to_be_bytes();
                Context { trace_id, span_id, parent_span_id: None, flags: FLAG_SAMPLED | FLAG_RANDOM }
            }
        }
    }
}
