//! Segments of one service's paths as a tree, in which places that vary are found.
//!
//! In: paths and methods, and whether they may teach something. Out: where in the tree each ends. Refuses to know
//! services and how many routes there may be. All methods share the tree, so that what is learned of `GET /users/alice`
//! is known of the rare `DELETE /users/bob`; where a path can end is kept by method.
//!
//! A node stands for a prefix. Its children are the words that followed it, and at most one *variable*. What is an
//! identifier by its shape goes to the variable at once. A word makes a child of its own, and its suspicion
//! ([`suspicion`]) adds to the node's *variety*. When that exceeds the node's tolerance the node is *opened*: its words
//! are merged into the variable, subtrees and all, and any further word goes there. What stays literal: words with
//! which a method ends much more often than with their neighbours, unless the same goes on below them as below a
//! neighbour (`/users/search` beside `/users/{id}`); versions; and a few words that never name a thing (`me`).
//!
//! The tolerance is small behind a plural (`/users/…`), larger elsewhere; it is doubled, at most twice, when nearly no
//! request brings a new word any more, as with a large interface whose words have all been seen (Good and Turing's
//! estimate of what is still to come).

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::sync::Arc;

use super::{MAX_BYTES, MAX_SEGMENTS};
use crate::span::segment::{ID, Segment, examine, is_version, suspicion};

/// Variety that a node tolerates behind a word in the plural.
const TOLERANCE_PLURAL: u16 = 16;
/// Variety that a node tolerates elsewhere.
const TOLERANCE: u16 = 64;
/// How often it may double.
const DOUBLINGS: u8 = 2;
/// One new word in so many requests: nearly all have been seen.
const SATURATED: u64 = 100;
/// Words that stay literal when a node is opened.
const KEPT_WORDS: usize = 32;
/// The key of what is deeper or longer than a template may be.
const REST: &str = "*";

/// Words that name an action or a view, not a thing: literal wherever they appear.
const ACTIONS: [&str; 24] = [
    "all",
    "batch",
    "bulk",
    "count",
    "current",
    "edit",
    "export",
    "health",
    "import",
    "index.html",
    "latest",
    "login",
    "logout",
    "me",
    "new",
    "recent",
    "search",
    "self",
    "settings",
    "stats",
    "status",
    "summary",
    "upload",
    "validate",
];

/// Index of a node.
pub(super) type NodeId = u32;
const ROOT: NodeId = 0;

/// A prefix of paths.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) words: HashMap<Box<str>, NodeId, RandomState>,
    pub(super) variable: Option<NodeId>,
    /// Every word that is no child goes to the variable.
    pub(super) open: bool,
    /// Requests that ended here, by method.
    pub(super) ends: Vec<End>,
    /// Requests that came here and could teach.
    pub(super) hits: u64,
    pub(super) tolerance: u16,
    pub(super) doublings: u8,
    pub(super) variety: u16,
    /// Variety at which it is looked at next.
    pub(super) look_at: u16,
    /// The route of paths that end here, once it has been given out.
    pub(super) route: Option<Arc<str>>,
}

/// Paths of one method that end at a node.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) method: Box<str>,
    pub(super) hits: u64,
}

impl Node {
    fn hits_of(&self, method: &str) -> u64 {
        self.ends.iter().find(|end| *end.method == *method).map_or(0, |end| end.hits)
    }

    /// Counts paths that end here; whether they are the first of their method.
    fn end(&mut self, method: &str, hits: u64) -> bool {
        if let Some(end) = self.ends.iter_mut().find(|end| *end.method == *method) {
            end.hits += hits;
            return false;
        }
        self.ends.push(End { method: method.into(), hits });
        true
    }
}

/// Buffers of a walk.
#[derive(Debug, Default)]
pub(super) struct Texts {
    scratch: String,
    /// The template of the path that was followed.
    pub(super) template: String,
}

/// Where a path led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// To the node where it ends; the template has been written.
    End(NodeId),
    /// Nowhere that is known.
    Unknown,
    /// It needs a node that there is no room for.
    Full,
}

/// The tree of a service.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// Routes that no path leads to any more, since the owner last looked.
    pub(super) n_released: usize,
    /// Counts changes of shape, so that only news are stored.
    pub(super) revision: u64,
    trail: Vec<NodeId>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Node { tolerance: TOLERANCE, ..Node::default() };
        Self { nodes: vec![root], free: Vec::new(), n_released: 0, revision: 0, trail: Vec::new() }
    }

    /// Nodes in use.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn root(&self) -> &Node {
        self.node(ROOT)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Follows a path, which begins with `/`, and writes its template. With `room` for so many nodes it learns; `None`
    /// only looks.
    pub(super) fn walk(
        &mut self,
        (method, path): (&str, &str),
        room: Option<usize>,
        texts: &mut Texts,
    ) -> Walk {
        let Texts { scratch, template } = texts;
        template.clear();
        self.trail.clear();
        let mut at = ROOT;
        for (depth, segment) in path[1..].split('/').enumerate() {
            let found = examine(segment, scratch);
            let bytes = if let Segment::Text(text) = found { text.len() } else { ID.len() };
            let cut = depth >= MAX_SEGMENTS || template.len() + bytes >= MAX_BYTES;
            let found = if cut { Segment::Text(REST) } else { found };
            let Some(next) = self.step(at, found, room) else {
                return if room.is_some() { Walk::Full } else { Walk::Unknown };
            };
            template.push('/');
            template.push_str(match found {
                Segment::Text(text) if self.nodes[at as usize].variable != Some(next) => text,
                _ => ID,
            });
            at = next;
            if cut {
                break;
            }
        }
        let end = &mut self.nodes[at as usize];
        if room.is_some() {
            self.revision += u64::from(end.end(method, 1));
        } else if end.hits_of(method) == 0 {
            return Walk::Unknown;
        }
        Walk::End(at)
    }

    /// One segment further. `None`: not known, or no room.
    fn step(&mut self, at: NodeId, segment: Segment<'_>, room: Option<usize>) -> Option<NodeId> {
        let node = &self.nodes[at as usize];
        let known = match segment {
            Segment::Variable => node.variable,
            Segment::Text(text) => match node.words.get(text) {
                Some(next) => Some(*next),
                None if node.open && !ACTIONS.contains(&text) => node.variable,
                None => None,
            },
        };
        let Some(room) = room else { return known };
        self.trail.push(at);
        let next = known.or_else(|| (self.len() < room).then(|| self.grow(at, segment)))?;
        self.nodes[next as usize].hits += 1;
        Some(next)
    }

    fn grow(&mut self, at: NodeId, segment: Segment<'_>) -> NodeId {
        self.revision += 1;
        let Segment::Text(text) = segment else { return self.variable(at) };
        let next = self.add(Node { tolerance: tolerance_behind(text), ..Node::default() });
        let node = &mut self.nodes[at as usize];
        node.words.insert(text.into(), next);
        if text == REST || node.open {
            return next;
        }
        node.variety = node.variety.saturating_add(suspicion(text));
        if self.consider(at) {
            self.nodes[at as usize].words.get(text).copied().unwrap_or_else(|| self.variable(at))
        } else {
            next
        }
    }

    /// The variable below `at`, made when there is none.
    fn variable(&mut self, at: NodeId) -> NodeId {
        if let Some(variable) = self.nodes[at as usize].variable {
            return variable;
        }
        let variable = self.add(Node { tolerance: TOLERANCE, ..Node::default() });
        self.nodes[at as usize].variable = Some(variable);
        variable
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        NodeId::try_from(self.nodes.len() - 1).expect("the number of nodes is bounded far below")
    }

    /// Opens a node whose variety is more than it tolerates; whether it did.
    fn consider(&mut self, at: NodeId) -> bool {
        let node = &self.nodes[at as usize];
        if node.open || node.variety < node.look_at {
            return false;
        }
        let tolerated = node.variety <= node.tolerance;
        let look_at = node.variety.saturating_add(TOLERANCE_PLURAL);
        let alike = self.are_alike(at);
        let (once, all) = self
            .children(at)
            .fold((0, 0), |(once, all), (_, word)| (once + u64::from(word.hits <= 1), all + word.hits));
        let saturated = once * SATURATED <= all;
        let node = &mut self.nodes[at as usize];
        node.look_at = look_at;
        if !alike {
            if tolerated {
                return false;
            }
            if saturated && node.doublings < DOUBLINGS {
                node.doublings += 1;
                node.tolerance *= 2;
                return false;
            }
        }
        self.open(at);
        true
    }

    /// Whether the words below a node go on in the same way, as the values of a variable do (`/alice/orders`,
    /// `/bob/orders`) and the collections of an interface do not.
    fn are_alike(&self, at: NodeId) -> bool {
        const ENOUGH: u32 = 8;
        let mut below = HashMap::<&str, u32, RandomState>::default();
        let mut n_further = 0;
        for (_, word) in self.children(at) {
            n_further += u32::from(!word.words.is_empty());
            word.words
                .keys()
                .filter(|text| is_value(text))
                .for_each(|text| *below.entry(text).or_default() += 1);
        }
        let most = below.values().copied().max().unwrap_or(0);
        most >= ENOUGH && most * 2 > n_further
    }

    /// Makes every word part of the variable, but those that stay literal.
    fn open(&mut self, at: NodeId) {
        self.revision += 1;
        self.nodes[at as usize].open = true;
        let variable = self.variable(at);
        for text in self.foldable(at) {
            if let Some(word) = self.nodes[at as usize].words.remove(&text) {
                self.release(word);
                self.merge(variable, word);
            }
        }
        let node = &mut self.nodes[at as usize];
        node.words.shrink_to_fit();
        node.variety = 0;
    }

    /// The words below a node that are values of its variable, in an order of their own.
    fn foldable(&self, at: NodeId) -> Vec<Box<str>> {
        let mut words: Vec<_> = self.children(at).filter(|(text, _)| is_value(text)).collect();
        words.sort_unstable_by_key(|(text, _)| *text);
        let usual = Usual::of(words.iter().map(|(_, word)| *word));
        let mut below = HashMap::<&str, u32, RandomState>::default();
        for word in words
            .iter()
            .map(|(_, word)| *word)
            .chain(self.nodes[at as usize].variable.map(|id| self.node(id)))
        {
            word.words
                .keys()
                .filter(|text| is_value(text))
                .for_each(|text| *below.entry(text).or_default() += 1);
        }
        let alone =
            |word: &Node| word.words.keys().filter(|text| is_value(text)).all(|text| below[&**text] < 2);
        let mut kept: Vec<_> =
            words.iter().filter(|(_, word)| usual.exceeded_by(word) && alone(word)).collect();
        kept.sort_by_key(|(_, word)| std::cmp::Reverse(word.hits));
        kept.truncate(KEPT_WORDS);
        let kept: Vec<&str> = kept.into_iter().map(|(text, _)| *text).collect();
        let folded: Vec<&str> =
            words.iter().map(|(text, _)| *text).filter(|text| !kept.contains(text)).collect();
        // `order-{id}` is the same variable as `order-abc`.
        let same = |pattern: &str| {
            let (before, _) = pattern.split_once(ID).unwrap_or((pattern, ""));
            pattern.contains(ID) && folded.iter().any(|text| !before.is_empty() && text.starts_with(before))
        };
        let patterns: Vec<&str> = kept.into_iter().filter(|text| same(text)).collect();
        folded.into_iter().chain(patterns).map(Into::into).collect()
    }

    fn children(&self, at: NodeId) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes[at as usize].words.iter().map(|(text, id)| (&**text, &self.nodes[*id as usize]))
    }

    /// Takes back the routes of a subtree, whose texts are about to change.
    fn release(&mut self, at: NodeId) {
        let node = &mut self.nodes[at as usize];
        self.n_released += usize::from(node.route.take().is_some());
        let below: Vec<NodeId> = node.words.values().copied().chain(node.variable).collect();
        below.into_iter().for_each(|child| self.release(child));
    }

    /// Adds the subtree `from`, whose routes have been released, to the subtree `into`.
    fn merge(&mut self, into: NodeId, from: NodeId) {
        let from_node = std::mem::take(&mut self.nodes[from as usize]);
        self.free.push(from);
        let node = &mut self.nodes[into as usize];
        node.hits += from_node.hits;
        for end in &from_node.ends {
            node.end(&end.method, end.hits);
        }
        if let Some(below) = from_node.variable {
            match self.nodes[into as usize].variable {
                Some(variable) => self.merge(variable, below),
                None => self.nodes[into as usize].variable = Some(below),
            }
        }
        let mut words: Vec<_> = from_node.words.into_iter().collect();
        words.sort_unstable();
        for (text, below) in words {
            let node = &mut self.nodes[into as usize];
            if let Some(word) = node.words.get(&*text).copied() {
                self.merge(word, below);
            } else if node.open && !ACTIONS.contains(&&*text) && *text != *REST {
                let variable = self.variable(into);
                self.merge(variable, below);
            } else {
                if *text != *REST {
                    node.variety = node.variety.saturating_add(suspicion(&text));
                }
                node.words.insert(text, below);
            }
        }
        if from_node.open && !self.nodes[into as usize].open {
            self.open(into);
        } else {
            self.consider(into);
        }
    }

    /// Opens the node with the most words on the way of the last walk, to make room. False when none has enough.
    pub(super) fn collapse(&mut self) -> bool {
        const ENOUGH: usize = 8;
        let closed = |id: &&NodeId| !self.nodes[**id as usize].open;
        let widest =
            self.trail.iter().filter(closed).max_by_key(|id| self.nodes[**id as usize].words.len()).copied();
        let Some(widest) = widest.filter(|id| self.nodes[*id as usize].words.len() >= ENOUGH) else {
            return false;
        };
        let before = self.len();
        self.open(widest);
        self.len() < before
    }

    /// Puts a node that was stored below `parent` (`None`: in the root's place), under a word or as the variable.
    pub(super) fn restore(&mut self, place: Option<(NodeId, Option<&str>)>, node: Node) -> NodeId {
        let text = place.and_then(|(_, text)| text);
        let tolerance = text.map_or(TOLERANCE, tolerance_behind) << node.doublings.min(DOUBLINGS);
        let node = Node { tolerance, ..node };
        let id = match place {
            None => ROOT,
            Some((parent, None)) => self.variable(parent),
            Some((parent, Some(text))) => {
                let id = self.add(Node::default());
                let parent = &mut self.nodes[parent as usize];
                if text != REST && !parent.open {
                    parent.variety = parent.variety.saturating_add(suspicion(text));
                }
                parent.words.insert(text.into(), id);
                id
            }
        };
        self.nodes[id as usize] = node;
        id
    }
}

/// How often the methods usually end with one of several words.
struct Usual(Vec<(Box<str>, UsualEnd)>);

struct UsualEnd {
    median: u64,
    sum: u64,
}

impl Usual {
    fn of<'a>(words: impl Iterator<Item = &'a Node>) -> Self {
        let mut by_method = HashMap::<&str, Vec<u64>, RandomState>::default();
        for end in words.flat_map(|word| &word.ends) {
            by_method.entry(&end.method).or_default().push(end.hits);
        }
        let usual = |mut hits: Vec<u64>| {
            hits.sort_unstable();
            // Of a few, the least: one of them may be what is looked for.
            let median = if hits.len() < 4 { hits[0].min(2) } else { hits[hits.len() / 2] };
            UsualEnd { median, sum: hits.iter().sum() }
        };
        Self(by_method.into_iter().map(|(method, hits)| (method.into(), usual(hits))).collect())
    }

    fn exceeded_by(&self, word: &Node) -> bool {
        self.0.iter().any(|(method, usual)| {
            let hits = word.hits_of(method);
            hits >= 5 * usual.median && (hits >= 64 || hits * 8 >= usual.sum)
        })
    }
}

/// Whether a word may be the value of a variable.
fn is_value(text: &str) -> bool {
    text != REST && !ACTIONS.contains(&text) && !is_version(text)
}

/// Behind a plural stands what there are many of.
fn tolerance_behind(text: &str) -> u16 {
    let plural =
        text.len() > 3 && text.ends_with('s') && !["ss", "us", "is"].iter().any(|end| text.ends_with(end));
    if plural { TOLERANCE_PLURAL } else { TOLERANCE }
}
