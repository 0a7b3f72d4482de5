//! The text of a statement to what may be shown of it: no literal, a summary with few values.
//!
//! In: SQL as it was sent, perhaps cut off. Out: a [`Statement`]. Follows OpenTelemetry's semantic conventions 1.44
//! (database spans: sanitization of `db.query.text`, generating a summary of the query). Every literal is replaced: on
//! the wire a constant of the program looks like one that was pasted in. What cannot be read ends the text.
//! Refuses to know protocols.

mod lexer;
mod summary;
#[cfg(test)]
mod tests;

use lexer::{Kind, Lexer};
use summary::Summary;

/// What may be shown of a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statement {
    /// `db.query.text`: as sent, `?` for each literal, without comments.
    pub text: String,
    /// `db.query.summary`: operations and targets in their order, at most 255 bytes.
    pub summary: String,
    /// `db.operation.name`, in capital letters, of a text with one operation; else empty.
    pub operation: &'static str,
    /// `db.collection.name` of a text with one operation and one target; else empty.
    pub collection: String,
}

impl Statement {
    /// Reads a statement.
    #[must_use]
    pub fn read(sql: &str) -> Self {
        let mut text = String::with_capacity(sql.len());
        let mut summary = Summary::default();
        for token in Lexer::new(sql) {
            match token.kind {
                Kind::Comment => continue,
                Kind::Literal => text.push('?'),
                _ => text.push_str(token.text),
            }
            summary.take(&token);
        }
        let (summary, operation, collection) = summary.finish();
        Self { text: text.trim().to_owned(), summary, operation, collection }
    }

    /// Memory of its texts, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.text.capacity() + self.summary.capacity() + self.collection.capacity()
    }
}
