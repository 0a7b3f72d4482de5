//! Why a configuration is refused: one line with the place, the key, the value and what was expected.

use std::path::PathBuf;

use serde_json::Value;
use thiserror::Error;

/// Why a configuration is refused. Every text is one line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: failed to read the configuration: {reason}", path.display())]
    Read {
        /// File as given.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The text is not YAML.
    #[error("{origin}: {message}")]
    Syntax {
        /// File, or environment variable.
        origin: String,
        /// What the parser says, with line and column.
        message: String,
    },
    /// A key is none of ours.
    #[error("{origin}: {key}: not known; expected {expected}")]
    UnknownKey {
        /// File, or environment variable.
        origin: String,
        /// Path of the key, dotted.
        key: String,
        /// The keys that exist there.
        expected: String,
    },
    /// A value cannot be used.
    #[error("{origin}: {key}: `{value}` {problem}")]
    Value {
        /// File, or environment variable.
        origin: String,
        /// Path of the key, dotted.
        key: String,
        /// The value as written, shortened.
        value: String,
        /// What is wrong with it and what was expected.
        problem: String,
    },
}

/// Longest value repeated in an error, bytes.
const SHOWN_BYTES: usize = 120;

/// A value as a user would write it, on one line and not too long.
pub(super) fn shown(value: &Value) -> String {
    let mut text = match value {
        Value::String(text) => one_line(text),
        other => other.to_string(),
    };
    if text.len() > SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(SHOWN_BYTES));
        text.push('…');
    }
    text
}

/// The text with every run of white space and control characters as one space.
pub(super) fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}
