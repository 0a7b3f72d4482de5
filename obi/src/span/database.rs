//! Calls of databases as spans, by the semantic conventions for database clients (1.44).
//!
//! In: what a database was asked and said. Out: a [`Database`], written over a used one, with few distinct names.
//! Refuses to know connections.

use std::collections::HashSet;
use std::sync::Arc;

use crate::protocol;

/// Words of answers that are kept; of more, only that there was one.
const WORDS: usize = 1_024;
/// Longest word.
const WORD_BYTES: usize = 32;
const OTHER: &str = "_OTHER";

/// Attributes of a call of a database, semantic-convention meaning.
#[derive(Debug, Clone, Default)]
pub struct Database {
    /// `db.system.name`.
    pub system: &'static str,
    /// The span's name: the summary, else operation and target, else the system.
    pub name: Arc<str>,
    /// `db.operation.name`; empty where there are several, or where it is not known.
    pub operation: String,
    /// `db.query.summary`; empty where it is not known.
    pub summary: String,
    /// `db.collection.name`; empty where there is none, or several.
    pub collection: String,
    /// `db.query.text` with every literal replaced; empty where it is not known, or not to be shown.
    pub text: String,
    /// `db.namespace`; empty where it is not known.
    pub namespace: String,
    /// `db.response.status_code`: the code of an error; empty without one.
    pub code: &'static str,
}

impl Database {
    /// Memory of its texts, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let texts = [&self.operation, &self.summary, &self.collection, &self.text, &self.namespace];
        texts.iter().map(|text| text.capacity()).sum()
    }

    /// Writes a call over this one.
    pub(super) fn write(&mut self, said: &protocol::Database<'_>, words: &mut Words) {
        self.system = said.system.name();
        for (text, with) in [
            (&mut self.operation, said.operation),
            (&mut self.summary, said.summary),
            (&mut self.collection, said.collection),
            (&mut self.text, said.text),
            (&mut self.namespace, said.namespace),
        ] {
            text.clear();
            text.push_str(with);
        }
        self.code = words.intern(said.code);
        let name = match (said.summary, said.operation) {
            ("", "") => self.system,
            ("", operation) => operation,
            (summary, _) => summary,
        };
        if *self.name != *name {
            self.name = Arc::from(name);
        }
    }
}

/// Words that come from outside and serve as labels: each is kept for good, so there is a bound to them.
#[derive(Debug, Default)]
pub(super) struct Words(HashSet<&'static str>);

impl Words {
    /// The word, or `_OTHER` where there is no room for it.
    pub(super) fn intern(&mut self, word: &str) -> &'static str {
        if word.is_empty() {
            return "";
        }
        if let Some(known) = self.0.get(word) {
            return known;
        }
        if self.0.len() >= WORDS || word.len() > WORD_BYTES {
            return OTHER;
        }
        let kept: &'static str = Box::leak(Box::from(word));
        self.0.insert(kept);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_bounded() {
        let mut words = Words::default();
        assert_eq!((words.intern(""), words.intern("42P01"), words.intern("42P01")), ("", "42P01", "42P01"));
        assert_eq!(words.intern(&"x".repeat(WORD_BYTES + 1)), OTHER);
        for nth in 0..2 * WORDS {
            words.intern(&nth.to_string());
        }
        assert_eq!(words.0.len(), WORDS);
        assert_eq!((words.intern("new"), words.intern("42P01")), (OTHER, "42P01"));
    }

    #[test]
    fn names() {
        let check = |operation, summary, expected: &str| {
            let said = protocol::Database {
                system: protocol::System::Postgres,
                operation,
                summary,
                collection: "",
                text: "",
                namespace: "shop",
                code: "",
            };
            let mut database = Database::default();
            database.write(&said, &mut Words::default());
            assert_eq!((&*database.name, database.namespace.as_str()), (expected, "shop"));
        };
        check("SELECT", "SELECT t", "SELECT t");
        check("SELECT", "", "SELECT");
        check("", "", "postgresql");
    }
}
