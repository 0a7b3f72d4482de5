//! What is wrong in a text, where, and what to write instead.
//!
//! In: places and words. Out: one line per finding. Refuses to decide what becomes of it.

use std::fmt;
use std::sync::Arc;

/// Where something is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// As the caller named the text, usually a path.
    pub file: Arc<str>,
    /// From 1; 0 when unknown.
    pub line: u32,
    /// Path of keys from the document's root, for example `spec.objectives[0].target`. Empty for the document.
    pub key: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// It works, and this is how.
    Note,
    /// It works, but hardly as meant.
    Warning,
    /// The object cannot be used.
    Error,
}

/// One remark on a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// How bad.
    pub severity: Severity,
    /// What is there, with its value.
    pub what: String,
    /// What to write instead; empty when nothing needs to be.
    pub instead: String,
}

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// `file:line: key`.
impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)?;
        if self.key.is_empty() { Ok(()) } else { write!(out, ": {}", self.key) }
    }
}

/// `file:line: key: severity: what; instead`.
impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {}", self.place, self.severity, self.what)?;
        if self.instead.is_empty() { Ok(()) } else { write!(out, "; {}", self.instead) }
    }
}
