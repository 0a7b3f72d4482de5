//! Texts of statements, read once however often they are sent, and names of commands.
//!
//! In: what was sent. Out: shared [`Statement`]s and names. Bounded: what finds no room is read again, or not kept by
//! its connection. Refuses to know connections.

use super::sql::Statement;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Statements that are remembered by their text; then all are forgotten.
const REMEMBERED: usize = 2_048;
/// Prepared statements of all connections together.
const PREPARED: usize = 16_384;
/// Distinct commands.
const COMMANDS: usize = 512;
/// A command that is not known by its name.
pub(super) const OTHER: &str = "_OTHER";

#[derive(Debug)]
pub(super) struct Texts {
    hasher: RandomState,
    /// By hash and length of the text as it was sent: the text itself holds literals, which end here.
    statements: HashMap<(u64, usize), Arc<Statement>, RandomState>,
    commands: HashMap<Box<[u8]>, Arc<str>, RandomState>,
    /// [`OTHER`], shared.
    other: Arc<str>,
    held_bytes: usize,
    n_prepared: usize,
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            statements: HashMap::default(),
            commands: HashMap::default(),
            other: Arc::from(OTHER),
            held_bytes: 0,
            n_prepared: 0,
        }
    }
}

impl Texts {
    /// What may be shown of a statement.
    pub(super) fn statement(&mut self, sent: &[u8]) -> Arc<Statement> {
        let key = (self.hasher.hash_one(sent), sent.len());
        if let Some(known) = self.statements.get(&key) {
            return Arc::clone(known);
        }
        let read = Arc::new(Statement::read(&String::from_utf8_lossy(sent)));
        if self.statements.len() >= REMEMBERED {
            self.statements.clear();
            self.held_bytes = 0;
        }
        self.held_bytes += read.held_bytes();
        self.statements.insert(key, Arc::clone(&read));
        read
    }

    /// The name of a command of Redis, in capital letters.
    pub(super) fn command(&mut self, sent: &[u8]) -> Arc<str> {
        if let Some(known) = self.commands.get(sent) {
            return Arc::clone(known);
        }
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let is_known = !sent.is_empty() && sent.iter().all(is_name) && self.commands.len() < COMMANDS;
        if !is_known {
            return Arc::clone(&self.other);
        }
        let name: Arc<str> = Arc::from(String::from_utf8_lossy(sent).to_ascii_uppercase());
        self.commands.insert(sent.into(), Arc::clone(&name));
        name
    }

    /// Whether a connection may keep one statement more; it gives back what it keeps.
    pub(super) fn may_keep(&mut self) -> bool {
        let has_room = self.n_prepared < PREPARED;
        self.n_prepared += usize::from(has_room);
        has_room
    }

    /// A connection keeps `n` statements less.
    pub(super) fn give_back(&mut self, n: usize) {
        self.n_prepared = self.n_prepared.saturating_sub(n);
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}
