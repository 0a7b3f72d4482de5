//! What is no YAML, in the words of its writer.
//!
//! In: an error of the YAML library. Out: place and one line without its advice to programmers. Refuses to know whose
//! text it is.

use std::fmt;

use serde_saphyr::Error;

/// Why a text is no YAML, or one that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// From 1; 0 when unknown.
    pub line: u32,
    /// From 1; 0 when unknown.
    pub column: u32,
    /// One line, without the place.
    pub message: String,
}

impl SyntaxError {
    /// What the library says, in a user's words.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let place = error.location();
        let of = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        Self {
            line: of(place.map(|place| place.line())),
            column: of(place.map(|place| place.column())),
            message: words(error),
        }
    }
}

/// `message at line L, column C`.
impl fmt::Display for SyntaxError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { line: 0, message, .. } => out.write_str(message),
            Self { line, column, message } => write!(out, "{message} at line {line}, column {column}"),
        }
    }
}

const TOO_LARGE: &str = "more values or aliases than are read, expected a file written by hand";

fn words(error: &Error) -> String {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => words(error),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => TOO_LARGE.to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key} stands there twice, expected every key once")
        }
        Error::DuplicateMappingKey { key: None, .. } => {
            "a key stands there twice, expected every key once".to_owned()
        }
        Error::MultipleDocuments { .. } => {
            "a second document begins, expected one document without `---` between its lines".to_owned()
        }
        other => plain(&other.without_snippet().to_string()),
    }
}

/// The library's own text without its place: `error: line 1 column 2: x`, or `x at line 1, column 2`.
fn plain(text: &str) -> String {
    let first = text.lines().next().unwrap_or("not readable");
    let first = match first.strip_prefix("error: line ").and_then(|rest| rest.split_once(": ")) {
        Some((_, message)) => message,
        None => first,
    };
    let message = first.rfind(" at line ").map_or(first, |end| &first[..end]);
    match message {
        "recursion limit exceeded" => "nested more deeply than is read".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bomb() -> String {
        let level = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","));
        (1..9).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| text + &level(n))
    }

    #[test]
    fn no_word_is_a_programmers() {
        let check = |text: &str, expected: &str| {
            let error = serde_saphyr::from_str::<serde_json::Value>(text).expect_err(text);
            let said = SyntaxError::of(&error).to_string();
            assert!(said.starts_with(expected), "{said}");
            assert!(!said.contains('\n') && said.matches(" at line ").count() == 1, "{said}");
        };
        check(
            "a: 1\nb: 1\na: 2\n",
            "the key a stands there twice, expected every key once at line 3, column 1",
        );
        check("a: 1\n---\nb: 1\n", "a second document begins, expected one document without `---`");
        check(&bomb(), "more values or aliases than are read, expected a file written by hand at line");
        check(&("[".repeat(5000) + &"]".repeat(5000)), "nested more deeply than is read at line 1");
        check("a:\n\tb: 1\n", "tabs disallowed within this context (block indentation) at line 2, column 2");
        check("a: {b: 'c\n", "unclosed quote at line 1, column 8");
        check("a:\n  b: 1\n c: 2\n", "while parsing a block mapping, did not find expected key at line 3");
        check("a: *c\n", "alias references unknown anchor at line 1, column 4");
    }
}
