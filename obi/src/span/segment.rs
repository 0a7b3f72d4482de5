//! One path segment: text, or something that varies?
//!
//! In: the text between two slashes. Out: [`Segment::Variable`] for what is an identifier by its shape (numbers, UUIDs,
//! hashes, dates, encoded values, addresses), else text, with `{id}` in place of the identifiers in it. Without memory:
//! words that vary are for [`super::route`] to find out, helped by [`suspicion`]. All identifiers share one
//! placeholder: a value of digits alone may be a number or a hash, and a route must not depend on which values came
//! along.

/// Stands for what varies.
pub const ID: &str = "{id}";

/// Hexadecimal digits that are a hash whatever they spell; English has no such word of a–f.
const HASH_BYTES: usize = 16;
/// Hexadecimal digits that are a hash when both a letter and a digit are among them (short commits).
const SHORT_HASH_BYTES: usize = 7;
/// Length from which a segment is examined as one encoded value (base64, JSON web token).
const ENCODED_BYTES: usize = 20;

/// What a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Words, as sent or with placeholders.
    Text(&'a str),
    /// An identifier from end to end.
    Variable,
}

/// Looks at one segment. `scratch` holds the text when it is not the segment's own. Path parameters (`;name=value`)
/// are not part of a route.
pub fn examine<'a>(segment: &'a str, scratch: &'a mut String) -> Segment<'a> {
    let segment = segment.split(';').next().unwrap_or_default();
    let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-' || byte == b'_';
    if segment.len() < HASH_BYTES && segment.bytes().all(word) {
        // The common case.
        return Segment::Text(segment);
    }
    let bytes = segment.as_bytes();
    // Addresses (`bob@example.com`, `@bob`) are personal and without number.
    if segment == ID
        || is_uuid(bytes)
        || segment.contains('@')
        || is_encoded(bytes)
        || is_ulid(bytes)
        || is_time(bytes)
    {
        return Segment::Variable;
    }
    scratch.clear();
    let (mut rest, mut words) = (segment, false);
    while !rest.is_empty() {
        let token = token_length(rest.as_bytes());
        let (word, after) = rest.split_at(token);
        let identifier = is_identifier(word.as_bytes());
        words |= !identifier && !word.is_empty();
        scratch.push_str(if identifier { ID } else { word });
        let (separator, after) = after.split_at(separator_length(after));
        words |= separator.contains('%');
        scratch.push_str(separator);
        rest = after;
    }
    if !words && scratch.contains(ID) { Segment::Variable } else { Segment::Text(scratch) }
}

/// How much a text speaks for its place being a variable, from 1 for a plain word. Few suspicious texts in one place
/// say as much as many plain ones.
#[must_use]
pub fn suspicion(text: &str) -> u16 {
    if is_version(text) {
        return 1;
    }
    let bytes = text.as_bytes();
    let digits = bytes.iter().any(u8::is_ascii_digit) || text.contains(ID);
    let parts = bytes.iter().filter(|byte| !byte.is_ascii_alphanumeric()).count();
    let upper_inside =
        bytes.windows(2).any(|pair| !pair[0].is_ascii_alphanumeric() && pair[1].is_ascii_uppercase());
    match () {
        () if digits => 4,
        () if parts > 0 || upper_inside || text.len() > 24 => 2,
        () => 1,
    }
}

/// `v1`, `v2beta1`, `v1.2`: a version of an interface.
#[must_use]
pub fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let tail = rest[digits..].trim_end_matches(|c: char| c.is_ascii_digit());
    (1..=2).contains(&digits) && ["", ".", "alpha", "beta", "rc"].contains(&tail) && rest.len() <= 9
}

/// Letters and digits, and whatever is not ASCII, in a row.
fn token_length(text: &[u8]) -> usize {
    text.iter().position(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric()).unwrap_or(text.len())
}

/// What stands between tokens; a percent-encoded byte counts, so that its digits are no number.
fn separator_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(byte) = bytes.get(length).filter(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric()) {
        let encoded =
            bytes.get(length + 1..length + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        length += if *byte == b'%' && encoded { 3 } else { 1 };
    }
    length
}

fn is_identifier(token: &[u8]) -> bool {
    let seen = Census::of(token);
    let hexadecimal = token.iter().all(u8::is_ascii_hexdigit);
    let mixed = seen.digits > 0 && seen.letters > 0;
    seen.digits == token.len() && !token.is_empty()
        || hexadecimal && (token.len() >= HASH_BYTES || mixed && token.len() >= SHORT_HASH_BYTES)
        || mixed && (seen.digits >= 4 || token.len() >= 10 && seen.digits >= 2 && seen.changes >= 2)
}

/// Long, with upper and lower case and digits, and changing between them all the time.
fn is_encoded(segment: &[u8]) -> bool {
    let seen = Census::of(segment);
    segment.len() >= ENCODED_BYTES
        && segment.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_=.~+".contains(byte))
        && seen.digits >= 2
        && seen.upper >= 2
        && seen.letters >= seen.upper + 2
        && seen.changes >= segment.len() / 4
}

fn is_uuid(segment: &[u8]) -> bool {
    segment.len() == 36
        && segment.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A date and time of ISO 8601, such as `2024-01-05T10:00Z`.
fn is_time(segment: &[u8]) -> bool {
    segment.len() > 11
        && segment.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            10 => *byte == b'T',
            0..10 => byte.is_ascii_digit(),
            _ => byte.is_ascii_digit() || b":.Z+-%".contains(byte) || *byte == b'A',
        })
}

/// Crockford's base 32, 128 bits.
fn is_ulid(segment: &[u8]) -> bool {
    segment.len() == 26
        && matches!(segment[0], b'0'..=b'7')
        && segment.iter().all(|byte| byte.is_ascii_alphanumeric() && !b"ILOUilou".contains(byte))
}

/// What a token is made of.
#[derive(Default)]
struct Census {
    digits: usize,
    letters: usize,
    upper: usize,
    /// Neighbours of different sort: digit, upper case, lower case.
    changes: usize,
}

impl Census {
    fn of(token: &[u8]) -> Self {
        let mut census = Self::default();
        let mut previous = None;
        for byte in token {
            let sort = match byte {
                b'0'..=b'9' => Some(0),
                b'A'..=b'Z' => Some(1),
                b'a'..=b'z' => Some(2),
                _ => None,
            };
            census.digits += usize::from(sort == Some(0));
            census.letters += usize::from(sort.is_some_and(|sort| sort > 0));
            census.upper += usize::from(sort == Some(1));
            census.changes += usize::from(sort.is_some() && previous.is_some() && sort != previous);
            previous = sort;
        }
        census
    }
}
