//! One path segment to its template: words stay, identifiers become placeholders.
//!
//! In: the text between two slashes. Out: the same text, or `{id}`, `{uuid}`, `{hash}` in place of what
//! varies. A heuristic without memory, biased to few routes: a number is never a word, not even in `page-2`.
//! Names made of letters alone stay, however many there are; the bound on routes catches those.

/// A number, a date, or a mixed identifier.
pub const ID: &str = "{id}";
/// A UUID.
pub const UUID: &str = "{uuid}";
/// Hexadecimal digits: a digest or a commit.
pub const HASH: &str = "{hash}";

/// Hexadecimal digits that are a hash whatever they spell; English has no such word of a–f.
const HASH_BYTES: usize = 16;
/// Hexadecimal digits that are a hash when both a letter and a digit are among them (short commits).
const SHORT_HASH_BYTES: usize = 7;
/// Length from which a segment is examined as one encoded value (base64, JSON web token).
const ENCODED_BYTES: usize = 20;

/// Appends the template of `segment`. Path parameters (`;name=value`) are not part of a route.
pub fn write_template(segment: &str, template: &mut String) {
    let segment = segment.split(';').next().unwrap_or_default();
    let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-' || byte == b'_';
    if segment.len() < HASH_BYTES && segment.bytes().all(word) {
        // The common case.
        return template.push_str(segment);
    }
    if is_uuid(segment.as_bytes()) {
        return template.push_str(UUID);
    }
    // Addresses (`bob@example.com`, `@bob`) are personal and without number.
    if segment.contains('@') || is_encoded(segment.as_bytes()) || is_ulid(segment.as_bytes()) {
        return template.push_str(ID);
    }
    let mut rest = segment;
    while !rest.is_empty() {
        let token = token_length(rest.as_bytes());
        let (word, after) = rest.split_at(token);
        template.push_str(placeholder(word.as_bytes()).unwrap_or(word));
        let gap = separator_length(after);
        template.push_str(&after[..gap]);
        rest = &after[gap..];
    }
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

fn placeholder(token: &[u8]) -> Option<&'static str> {
    let seen = Census::of(token);
    let hexadecimal = token.iter().all(u8::is_ascii_hexdigit);
    let mixed = seen.digits > 0 && seen.letters > 0;
    if seen.digits == token.len() && !token.is_empty() {
        Some(ID)
    } else if hexadecimal && (token.len() >= HASH_BYTES || mixed && token.len() >= SHORT_HASH_BYTES) {
        Some(HASH)
    } else if mixed && (seen.digits >= 4 || token.len() >= 10 && seen.digits >= 2 && seen.changes >= 2) {
        Some(ID)
    } else {
        None
    }
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
