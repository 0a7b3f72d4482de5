//! What has been learned, as text to keep and back.
//!
//! In: [`Routes`], or the text of an earlier run. Out: the text, or trees that wait for their service to appear. The
//! text is JSON; of a broken one nothing is taken. Refuses to know files.
//!
//! Trees of services that have not appeared are kept for [`KEPT_RUNS`] runs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

use super::MAX_SEGMENTS;
use super::Routes;
use super::tree::{End, Node, NodeId, Tree};
use crate::span::SpanKind;

/// Longest text that is read, bytes.
pub const MAX_STATE_BYTES: u64 = 8 << 20;
/// Form of the text.
const VERSION: u32 = 1;
/// Runs after which a service that never appeared is forgotten.
const KEPT_RUNS: u32 = 16;
/// Methods that one node can have.
const MAX_METHODS: usize = 65;
/// Nodes of services that have not appeared.
const PENDING_NODES: usize = 16_384;

/// Why an earlier run's text is not used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It is not what we write.
    #[error("not valid: {0}")]
    Invalid(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error("version {0} is not known, expected {VERSION}")]
    Version(u32),
    /// Deeper than a tree is.
    #[error("a tree is deeper than {MAX_SEGMENTS} segments")]
    Depth,
}

/// Whose tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    pub(super) service: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) client: bool,
}

impl Key {
    pub(super) fn new(namespace: &str, service: &str, side: SpanKind) -> Self {
        Self {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            client: side == SpanKind::Client,
        }
    }
}

/// A tree that waits for its service.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    root: StoredNode,
    unseen_runs: u32,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    trees: Vec<StoredTree>,
}

#[derive(Serialize, Deserialize)]
struct StoredTree {
    #[serde(flatten)]
    key: Key,
    #[serde(default, skip_serializing_if = "is_default")]
    unseen_runs: u32,
    root: StoredNode,
}

/// Short names: there are many.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct StoredNode {
    /// Hits.
    #[serde(default, rename = "h", skip_serializing_if = "is_default")]
    hits: u64,
    /// Requests that ended here, by method.
    #[serde(default, rename = "e", skip_serializing_if = "BTreeMap::is_empty")]
    ends: BTreeMap<String, u64>,
    /// It has been found to vary.
    #[serde(default, rename = "o", skip_serializing_if = "is_default")]
    open: bool,
    /// How often the tolerance was doubled.
    #[serde(default, rename = "d", skip_serializing_if = "is_default")]
    doublings: u8,
    /// Words; ordered, so that equal trees have equal texts.
    #[serde(default, rename = "w", skip_serializing_if = "BTreeMap::is_empty")]
    words: BTreeMap<String, StoredNode>,
    /// The variable.
    #[serde(default, rename = "v", skip_serializing_if = "Option::is_none")]
    variable: Option<Box<StoredNode>>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Routes {
    /// Everything learned, as text.
    #[must_use]
    pub fn state(&self) -> Vec<u8> {
        let known = self.trees().map(|(key, tree)| StoredTree {
            key,
            unseen_runs: 0,
            root: stored(tree, tree.root()),
        });
        let pending = self.pending_trees().map(|(key, stored)| StoredTree {
            key: key.clone(),
            unseen_runs: stored.unseen_runs,
            root: stored.root.clone(),
        });
        let mut trees: Vec<_> = known.chain(pending).collect();
        trees.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        serde_json::to_vec(&File { version: VERSION, trees })
            .expect("trees of texts and numbers can be written")
    }

    /// Takes what an earlier run has learned; each tree comes into use when its service appears. Returns how many there
    /// are.
    ///
    /// # Errors
    /// When the text is not one of ours; then nothing is taken.
    pub fn restore(&mut self, text: &[u8]) -> Result<usize, StateError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(text)?;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let file: File = serde_json::from_slice(text)?;
        if file.trees.iter().any(|tree| tree.root.depth() > MAX_SEGMENTS + 2) {
            return Err(StateError::Depth);
        }
        let mut room = PENDING_NODES;
        for tree in file.trees {
            let unseen_runs = tree.unseen_runs.saturating_add(1);
            let stored = Stored { root: tree.root, unseen_runs };
            match room.checked_sub(stored.nodes()) {
                Some(left) if unseen_runs <= KEPT_RUNS => {
                    room = left;
                    self.pending().insert(tree.key, stored);
                }
                _ => {}
            }
        }
        Ok(self.pending().len())
    }
}

impl Stored {
    pub(super) fn nodes(&self) -> usize {
        self.root.nodes()
    }

    /// The tree as it was; its routes are given out anew.
    pub(super) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.root.plant(&mut tree, None);
        tree
    }
}

impl StoredNode {
    fn below(&self) -> impl Iterator<Item = &Self> {
        self.words.values().chain(self.variable.as_deref())
    }

    fn nodes(&self) -> usize {
        1 + self.below().map(Self::nodes).sum::<usize>()
    }

    fn depth(&self) -> usize {
        1 + self.below().map(Self::depth).max().unwrap_or(0)
    }

    fn plant(&self, tree: &mut Tree, place: Option<(NodeId, Option<&str>)>) {
        let Self { hits, open, doublings, .. } = *self;
        let ends = self.ends.iter().take(MAX_METHODS);
        let ends = ends.map(|(method, hits)| End { method: method.as_str().into(), hits: *hits }).collect();
        let at = tree.restore(place, Node { hits, ends, open, doublings, ..Node::default() });
        self.words.iter().for_each(|(text, word)| word.plant(tree, Some((at, Some(text)))));
        self.variable.iter().for_each(|variable| variable.plant(tree, Some((at, None))));
    }
}

fn stored(tree: &Tree, node: &Node) -> StoredNode {
    StoredNode {
        hits: node.hits,
        ends: node.ends.iter().map(|end| (end.method.to_string(), end.hits)).collect(),
        open: node.open,
        doublings: node.doublings,
        words: node.words.iter().map(|(text, id)| (text.to_string(), stored(tree, tree.node(*id)))).collect(),
        variable: node.variable.map(|id| Box::new(stored(tree, tree.node(id)))),
    }
}
