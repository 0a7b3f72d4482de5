//! Exact text or glob.
//!
//! In: a pattern as written in OpenSLO. Out: whether a text matches. Refuses regular expressions: a glob cannot take
//! exponential time, and says what it means.

use std::fmt;

/// Text that must be equal, or with `*` for any characters and `?` for one.
///
/// There is no escape: a text that contains `*` or `?` matches itself, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
    form: Form,
}

/// The cheap cases apart, since most patterns are one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    Exact,
    /// `abc*`
    Prefix,
    /// `*abc`
    Suffix,
    /// `*`
    Anything,
    Glob,
}

impl Pattern {
    /// Reads a pattern; every text is one.
    pub fn new(text: &str) -> Self {
        let special = |text: &str| text.contains(['*', '?']);
        let form = if !special(text) {
            Form::Exact
        } else if text == "*" {
            Form::Anything
        } else if text.strip_suffix('*').is_some_and(|head| !special(head)) {
            Form::Prefix
        } else if text.strip_prefix('*').is_some_and(|tail| !special(tail)) {
            Form::Suffix
        } else {
            Form::Glob
        };
        Self { text: text.into(), form }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The only text that it matches, if there is one.
    pub fn exact(&self) -> Option<&str> {
        (self.form == Form::Exact).then_some(&*self.text)
    }

    /// Whether `text` matches as a whole.
    pub fn matches(&self, text: &str) -> bool {
        match self.form {
            Form::Exact => *self.text == *text,
            Form::Anything => true,
            Form::Prefix => text.as_bytes().starts_with(&self.text.as_bytes()[..self.text.len() - 1]),
            Form::Suffix => text.as_bytes().ends_with(&self.text.as_bytes()[1..]),
            Form::Glob => glob(self.text.as_bytes(), text.as_bytes()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// Goes back to the last star only, so the time is at most the product of the lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                t += character_length(text[t]);
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    t == text.len() && pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Bytes of a UTF-8 character by its first; 1 inside a character, where only `*` leads.
fn character_length(first: u8) -> usize {
    match first {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} on {text}");
        };
        check("cart", "cart", true);
        check("cart", "cart2", false);
        check("", "", true);
        check("*", "", true);
        check("*", "anything", true);
        check("cart*", "cart2", true);
        check("cart*", "car", false);
        check("*cart", "my-cart", true);
        check("*cart", "cart-my", false);
        check("/users/*/orders", "/users/{id}/orders", true);
        check("/users/*/orders", "/users/orders", false);
        check("5??", "503", true);
        check("5??", "50", false);
        check("5*", "503", true);
        check("a?c", "aéc", true);
        check("a**c", "ac", true);
        check("*a*b*", "xxaxxbxx", true);
        check("*a*b*", "xxbxxaxx", false);
        check("?", "", false);
        check("?*", "日", true);
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_recursion(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            proptest::prop_assert_eq!(
                Pattern::new(&pattern).matches(&text),
                recursive(pattern.as_bytes(), text.as_bytes())
            );
        }
    }

    fn recursive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=text.len()).any(|n| recursive(rest, &text[n..])),
            (Some((b'?', rest)), Some((_, text))) => recursive(rest, text),
            (Some((p, rest)), Some((t, text))) => p == t && recursive(rest, text),
            _ => false,
        }
    }
}
