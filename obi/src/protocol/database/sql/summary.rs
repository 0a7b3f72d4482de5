//! Tokens of SQL to what they do: operations and their targets, in the order of the text.
//!
//! In: tokens. Out: the summary, and operation and target where there is one of each. Knows as much of SQL's grammar as
//! distinguishes a table from a column. Refuses to know dialects beyond that.

use super::lexer::{Kind, Token};

/// Longest summary, bytes (semantic conventions).
const SUMMARY_BYTES: usize = 255;
/// Parentheses that are looked into; what lies deeper is passed over.
const LEVELS: usize = 32;

/// Operations that have their targets behind other words, or none.
const OPERATIONS: [&str; 44] = [
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "MERGE",
    "CALL",
    "EXECUTE",
    "COPY",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET",
    "SHOW",
    "EXPLAIN",
    "ANALYZE",
    "VACUUM",
    "DECLARE",
    "FETCH",
    "CLOSE",
    "LISTEN",
    "NOTIFY",
    "UNLISTEN",
    "PREPARE",
    "DEALLOCATE",
    "LOCK",
    "GRANT",
    "REVOKE",
    "DISCARD",
    "SAVEPOINT",
    "RELEASE",
    "START",
    "END",
    "ABORT",
    "REFRESH",
    "COMMENT",
    "DO",
    "RESET",
    "MOVE",
    "CHECKPOINT",
    "CLUSTER",
    "REINDEX",
    "VALUES",
    "USE",
    "REPLACE",
];
/// Operations on what a word behind them names.
const DEFINITIONS: [&str; 4] = ["CREATE", "ALTER", "DROP", "TRUNCATE"];
const OBJECTS: [(&str, [&str; 4]); 18] = [
    ("TABLE", ["CREATE TABLE", "ALTER TABLE", "DROP TABLE", "TRUNCATE TABLE"]),
    ("INDEX", ["CREATE INDEX", "ALTER INDEX", "DROP INDEX", "TRUNCATE"]),
    ("VIEW", ["CREATE VIEW", "ALTER VIEW", "DROP VIEW", "TRUNCATE"]),
    ("SEQUENCE", ["CREATE SEQUENCE", "ALTER SEQUENCE", "DROP SEQUENCE", "TRUNCATE"]),
    ("DATABASE", ["CREATE DATABASE", "ALTER DATABASE", "DROP DATABASE", "TRUNCATE"]),
    ("SCHEMA", ["CREATE SCHEMA", "ALTER SCHEMA", "DROP SCHEMA", "TRUNCATE"]),
    ("FUNCTION", ["CREATE FUNCTION", "ALTER FUNCTION", "DROP FUNCTION", "TRUNCATE"]),
    ("PROCEDURE", ["CREATE PROCEDURE", "ALTER PROCEDURE", "DROP PROCEDURE", "TRUNCATE"]),
    ("TRIGGER", ["CREATE TRIGGER", "ALTER TRIGGER", "DROP TRIGGER", "TRUNCATE"]),
    ("TYPE", ["CREATE TYPE", "ALTER TYPE", "DROP TYPE", "TRUNCATE"]),
    ("USER", ["CREATE USER", "ALTER USER", "DROP USER", "TRUNCATE"]),
    ("ROLE", ["CREATE ROLE", "ALTER ROLE", "DROP ROLE", "TRUNCATE"]),
    ("EXTENSION", ["CREATE EXTENSION", "ALTER EXTENSION", "DROP EXTENSION", "TRUNCATE"]),
    ("DOMAIN", ["CREATE DOMAIN", "ALTER DOMAIN", "DROP DOMAIN", "TRUNCATE"]),
    ("POLICY", ["CREATE POLICY", "ALTER POLICY", "DROP POLICY", "TRUNCATE"]),
    ("RULE", ["CREATE RULE", "ALTER RULE", "DROP RULE", "TRUNCATE"]),
    ("PUBLICATION", ["CREATE PUBLICATION", "ALTER PUBLICATION", "DROP PUBLICATION", "TRUNCATE"]),
    ("SUBSCRIPTION", ["CREATE SUBSCRIPTION", "ALTER SUBSCRIPTION", "DROP SUBSCRIPTION", "TRUNCATE"]),
];
/// Words that may stand between an operation and its target.
const PASSED: [&str; 19] = [
    "OR",
    "REPLACE",
    "TEMP",
    "TEMPORARY",
    "UNLOGGED",
    "UNIQUE",
    "MATERIALIZED",
    "GLOBAL",
    "LOCAL",
    "IF",
    "NOT",
    "EXISTS",
    "CONCURRENTLY",
    "ONLY",
    "RECURSIVE",
    "LATERAL",
    "INTO",
    "FROM",
    "OUTER",
];
/// Words that end a list of tables.
const LIST_ENDS: [&str; 14] = [
    "WHERE",
    "GROUP",
    "ORDER",
    "HAVING",
    "LIMIT",
    "OFFSET",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "RETURNING",
    "WINDOW",
    "FOR",
    "VALUES",
    "SET",
];

/// What a name would be at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Expected {
    /// Nothing of interest.
    #[default]
    Elsewhere,
    /// A target that anything may follow.
    Target,
    /// A table of a list: a function if a parenthesis follows.
    Table,
    /// Behind CREATE and the like: the kind of object (the number is the operation's place in `DEFINITIONS`).
    Object(usize),
}

/// What is known inside one pair of parentheses.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    place: Expected,
    /// In a list of tables: a comma leads to the next one.
    is_list: bool,
    /// An operation was seen here that has tables behind FROM, and none yet.
    takes_from: bool,
    /// Something was seen here.
    has_begun: bool,
}

#[derive(Debug)]
pub(super) struct Summary {
    text: String,
    is_full: bool,
    operations: u32,
    targets: u32,
    operation: &'static str,
    collection: String,
    levels: [Level; LEVELS],
    depth: usize,
    /// The last word, in capital letters if it is short.
    before: String,
    /// A table that is one unless a parenthesis follows.
    pending: String,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            text: String::new(),
            is_full: false,
            operations: 0,
            targets: 0,
            operation: "",
            collection: String::new(),
            levels: [Level::default(); LEVELS],
            depth: 0,
            before: String::new(),
            pending: String::new(),
        }
    }
}

impl Summary {
    /// Takes the next token that is no comment.
    pub(super) fn take(&mut self, token: &Token<'_>) {
        if token.kind == Kind::Space {
            return;
        }
        if !self.pending.is_empty() {
            let table = std::mem::take(&mut self.pending);
            if token.text != "(" {
                self.target(&table);
            }
        }
        match (token.kind, token.text) {
            (Kind::Word, word) => self.word(word),
            (_, "(") => self.open(),
            (_, ")") => self.depth = self.depth.saturating_sub(1),
            (_, ";") => {
                self.depth = 0;
                self.levels[0] = Level::default();
            }
            (_, ",") => {
                let level = self.level();
                level.place = if level.is_list { Expected::Table } else { Expected::Elsewhere };
            }
            _ => self.level().place = Expected::Elsewhere,
        }
        if token.kind != Kind::Word {
            self.before.clear();
        }
    }

    /// Summary, operation and collection.
    pub(super) fn finish(mut self) -> (String, &'static str, String) {
        let table = std::mem::take(&mut self.pending);
        if !table.is_empty() {
            self.target(&table);
        }
        let operation = if self.operations == 1 { self.operation } else { "" };
        let is_one = self.operations == 1 && self.targets == 1;
        (self.text, operation, if is_one { self.collection } else { String::new() })
    }

    fn level(&mut self) -> &mut Level {
        &mut self.levels[self.depth.min(LEVELS - 1)]
    }

    fn open(&mut self) {
        self.level().place = Expected::Elsewhere;
        self.depth += 1;
        if self.depth < LEVELS {
            self.levels[self.depth] = Level::default();
        }
    }

    fn word(&mut self, word: &str) {
        if self.depth >= LEVELS {
            return;
        }
        let upper = if word.len() <= 16 { word.to_ascii_uppercase() } else { String::new() };
        let level = *self.level();
        match level.place {
            Expected::Object(_) | Expected::Target | Expected::Table if PASSED.contains(&upper.as_str()) => {}
            // A query in place of a table.
            Expected::Table | Expected::Target if upper == "SELECT" => self.keyword(&upper, word),
            Expected::Object(definition) => self.object(definition, &upper, word),
            Expected::Target => {
                self.target(word);
                self.level().place = Expected::Elsewhere;
            }
            Expected::Table => {
                self.pending = word.to_owned();
                self.level().place = Expected::Elsewhere;
            }
            Expected::Elsewhere => self.keyword(&upper, word),
        }
        self.level().has_begun = true;
        self.before = upper;
    }

    /// What a CREATE or the like is about.
    fn object(&mut self, definition: usize, upper: &str, word: &str) {
        let object = OBJECTS.iter().find(|(name, _)| *name == upper);
        self.level().place = Expected::Elsewhere;
        match object {
            Some((_, operations)) => {
                self.operation = operations[definition];
                self.push(word);
                self.level().place = Expected::Target;
            }
            // TRUNCATE needs no word for a table.
            None if DEFINITIONS[definition] == "TRUNCATE" => self.target(word),
            None => {}
        }
    }

    /// A word where no target stands.
    fn keyword(&mut self, upper: &str, word: &str) {
        let level = *self.level();
        match upper {
            "FROM" if level.takes_from && self.before != "DISTINCT" => self.list(),
            "JOIN" => self.list(),
            "USING" if self.operation == "DELETE" || self.operation == "MERGE" => self.list(),
            "INTO" if self.operations > 0 => self.level().place = Expected::Target,
            _ if LIST_ENDS.contains(&upper) && (upper != "SET" && upper != "VALUES" || level.has_begun) => {
                self.level().is_list = false;
            }
            _ => self.operation(upper, word),
        }
    }

    fn list(&mut self) {
        let level = self.level();
        (level.place, level.is_list, level.takes_from) = (Expected::Table, true, false);
    }

    fn operation(&mut self, upper: &str, word: &str) {
        let is_first = !self.level().has_begun
            || matches!(self.before.as_str(), "" | "ANALYZE" | "EXPLAIN" | "VERBOSE" | "AS" | "ALL");
        // Reserved words are operations wherever they stand, but for these: `FOR UPDATE`, `DO UPDATE`, `ON DELETE`.
        let is_reserved = matches!(upper, "SELECT" | "INSERT" | "UPDATE" | "DELETE")
            && !matches!(
                self.before.as_str(),
                "FOR" | "DO" | "ON" | "KEY" | "BEFORE" | "AFTER" | "OR" | "OF" | "GRANT" | "REVOKE"
            );
        if let Some(definition) = DEFINITIONS.iter().position(|name| *name == upper) {
            if !self.level().has_begun {
                self.begin(DEFINITIONS[definition], word);
                self.level().place = Expected::Object(definition);
            }
            return;
        }
        let Some(operation) = OPERATIONS.iter().find(|name| **name == upper) else { return };
        if !is_reserved && (!is_first || self.level().has_begun && self.before.is_empty()) {
            return;
        }
        self.begin(operation, word);
        let level = self.level();
        level.takes_from = matches!(*operation, "SELECT" | "DELETE" | "UPDATE");
        level.is_list = false;
        level.place = match *operation {
            "UPDATE" | "CALL" | "EXECUTE" | "COPY" | "LISTEN" | "UNLISTEN" | "NOTIFY" => Expected::Target,
            _ => Expected::Elsewhere,
        };
    }

    fn begin(&mut self, operation: &'static str, word: &str) {
        self.operations += 1;
        self.operation = operation;
        self.push(word);
    }

    fn target(&mut self, name: &str) {
        self.targets += 1;
        if self.targets == 1 {
            self.collection = name.to_owned();
        }
        self.push(name);
    }

    /// Adds a word, unless one before it found no room: a summary is never cut inside.
    fn push(&mut self, word: &str) {
        if self.is_full || self.text.len() + 1 + word.len() > SUMMARY_BYTES {
            self.is_full = true;
            return;
        }
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(word);
    }
}
