//! SQL to tokens.
//!
//! In: text. Out: tokens that together are the text, up to where it cannot be read. Strings, numbers, comments and
//! quoted names as PostgreSQL has them (its documentation, "Lexical Structure"). Refuses to know grammar.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Space,
    Comment,
    /// A string or a number, with its sign if it can have one.
    Literal,
    /// A keyword, or a name, quoted or not.
    Word,
    /// A place for a value: `$1`, `?`, `:name`.
    Parameter,
    /// Anything else: one character.
    Sign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
}

#[derive(Debug)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
    /// What stood before, white space and comments aside.
    before: Option<Token<'a>>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(sql: &'a str) -> Self {
        Self { rest: sql, before: None }
    }

    /// Kind and bytes of the next token; `None` where nothing can be read.
    fn next_token(&self) -> Option<(Kind, usize)> {
        let rest = self.rest;
        let bytes = rest.as_bytes();
        let first = *bytes.first()?;
        let second = bytes.get(1).copied().unwrap_or(0);
        match first {
            _ if first.is_ascii_whitespace() => {
                Some((Kind::Space, length_of(rest, |c| c.is_ascii_whitespace())))
            }
            b'-' if second == b'-' => Some((Kind::Comment, rest.find('\n').unwrap_or(rest.len()))),
            b'/' if second == b'*' => Some((Kind::Comment, comment(bytes)?)),
            b'\'' => Some((Kind::Literal, quoted(bytes, 0, b'\'', false))),
            b'"' | b'`' => Some((Kind::Word, name(rest)?)),
            b'e' | b'E' if second == b'\'' => Some((Kind::Literal, quoted(bytes, 1, b'\'', true))),
            b'x' | b'X' | b'b' | b'B' | b'n' | b'N' if second == b'\'' => {
                Some((Kind::Literal, quoted(bytes, 1, b'\'', false)))
            }
            b'u' | b'U' if second == b'&' && bytes.get(2) == Some(&b'\'') => {
                Some((Kind::Literal, quoted(bytes, 2, b'\'', false)))
            }
            b'$' if second.is_ascii_digit() => {
                Some((Kind::Parameter, 1 + length_of(&rest[1..], |c| c.is_ascii_digit())))
            }
            b'$' => dollar_quoted(rest).map(|length| (Kind::Literal, length)),
            b'0'..=b'9' => Some((Kind::Literal, number(bytes))),
            b'.' if second.is_ascii_digit() => Some((Kind::Literal, number(bytes))),
            b'+' | b'-' if self.may_be_signed() && begins_number(&bytes[1..]) => {
                Some((Kind::Literal, 1 + number(&bytes[1..])))
            }
            b'?' => Some((Kind::Parameter, 1)),
            b':' if second.is_ascii_alphabetic() || second == b'_' => {
                Some((Kind::Parameter, 1 + word(&rest[1..])))
            }
            b':' if second == b':' => Some((Kind::Sign, 2)),
            _ if first.is_ascii_alphabetic() || first == b'_' || !first.is_ascii() => {
                Some((Kind::Word, name(rest)?))
            }
            0x21..=0x7e => Some((Kind::Sign, 1)),
            _ => None,
        }
    }

    /// Behind a name or a parenthesis a sign is an operator; behind a number it is read as the next one's.
    fn may_be_signed(&self) -> bool {
        match self.before {
            Some(Token { kind: Kind::Word, text }) => [
                "select", "where", "and", "or", "limit", "offset", "when", "then", "else", "in", "between",
                "return",
            ]
            .iter()
            .any(|keyword| text.eq_ignore_ascii_case(keyword)),
            Some(Token { kind: Kind::Parameter, .. }) => false,
            Some(Token { kind: Kind::Sign, text }) => text != ")" && text != "]",
            _ => true,
        }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let Some((kind, length)) = self.next_token().filter(|(_, length)| *length > 0) else {
            self.rest = "";
            return None;
        };
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        let token = Token { kind, text };
        if !matches!(kind, Kind::Space | Kind::Comment) {
            self.before = Some(token);
        }
        Some(token)
    }
}

/// Bytes of the characters from the start that `belongs` holds for.
fn length_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// A comment and those inside it; `None` when it does not end: what follows is not known to be one.
fn comment(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_u32);
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)?) {
            (b'/', b'*') => (at, depth) = (at + 2, depth + 1),
            (b'*', b'/') => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// A string whose quote is at `open`; one that is cut off goes to the end, and so does one in which a backslash stands
/// before a quote: whether that ends it is the server's setting (`standard_conforming_strings`).
fn quoted(bytes: &[u8], open: usize, quote: u8, escapes: bool) -> usize {
    let mut at = open + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if escapes => at += 2,
            b'\\' if bytes.get(at + 1) == Some(&quote) => return bytes.len(),
            byte if *byte != quote => at += 1,
            _ if bytes.get(at + 1) == Some(&quote) => at += 2,
            _ => return at + 1,
        }
    }
    bytes.len()
}

/// `$tag$…$tag$`, as PostgreSQL has it; `None`: it is none.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = 1 + length_of(&text[1..], |c| c.is_alphanumeric() || c == '_');
    let mark = text.get(..=tag).filter(|mark| mark.ends_with('$'))?;
    let body = &text[mark.len()..];
    Some(body.find(mark).map_or(text.len(), |end| mark.len() + end + mark.len()))
}

fn begins_number(bytes: &[u8]) -> bool {
    matches!(bytes, [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..])
}

/// A number, and whatever clings to it.
fn number(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let is_exponent =
            at > 0 && matches!(bytes[at - 1], b'e' | b'E') && !matches!(bytes, [b'0', b'x' | b'X', ..]);
        match byte {
            b'0'..=b'9' | b'.' | b'_' | b'a'..=b'z' | b'A'..=b'Z' => at += 1,
            b'+' | b'-' if is_exponent => at += 1,
            _ => break,
        }
    }
    at
}

fn word(text: &str) -> usize {
    length_of(text, |c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// A name with its qualifiers, each quoted or not; `None` when a quote does not end.
fn name(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let part = match bytes.get(at) {
            Some(quote @ (b'"' | b'`')) => {
                let end = at + quoted(&bytes[at..], 0, *quote, false);
                let is_whole = end - at >= 2 && bytes.get(end - 1) == Some(quote);
                if !is_whole {
                    return None;
                }
                end - at
            }
            _ => word(&text[at..]),
        };
        if part == 0 {
            return (at > 0).then(|| at - 1); // a dot that no name follows
        }
        at += part;
        if bytes.get(at) != Some(&b'.') {
            return Some(at);
        }
        at += 1;
    }
}
