//! Routes that the configuration names.
//!
//! In: patterns such as `/users/{id}/orders`, and paths. Out: the pattern that a path fits, as its route. A segment
//! `{name}` fits any one segment, a last segment `*` fits whatever follows, all others fit themselves. The more literal
//! pattern wins, from the left; the order of the list does not matter. Refuses to know what is learned.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use thiserror::Error;

/// Longest pattern, bytes; a label has room for it.
const PATTERN_BYTES: usize = 250;
/// Most segments of a pattern.
const PATTERN_SEGMENTS: usize = 32;

/// Why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("route pattern `{pattern}` {problem}")]
pub struct PatternError {
    pattern: String,
    /// What is wrong.
    problem: &'static str,
}

/// Compiled patterns.
#[derive(Debug, Default)]
pub struct Patterns {
    /// The first is the root.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    words: HashMap<Box<str>, usize, RandomState>,
    any: Option<usize>,
    /// Of paths that end here.
    route: Option<Arc<str>>,
    /// Of paths that go on.
    rest: Option<Arc<str>>,
}

impl Patterns {
    /// Compiles patterns. Of two that fit the same paths the first is taken.
    ///
    /// # Errors
    /// When one is not valid.
    pub fn new(patterns: &[impl AsRef<str>]) -> Result<Self, PatternError> {
        let mut all = Self::default();
        patterns.iter().try_for_each(|pattern| all.add(pattern.as_ref()))?;
        Ok(all)
    }

    /// The route of a path.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Arc<str>> {
        self.nodes.first().and_then(|root| self.find_below(root, path.strip_prefix('/')?))
    }

    /// Each node is looked at once at most, so that no path takes long.
    fn find_below<'a>(&'a self, node: &'a Node, path: &str) -> Option<&'a Arc<str>> {
        let (segment, below) = match path.split_once('/') {
            Some((segment, below)) => (segment, Some(below)),
            None => (path, None),
        };
        let segment = segment.split(';').next().unwrap_or_default();
        let word = node.words.get(segment).copied();
        let any = node.any.filter(|_| !segment.is_empty());
        word.into_iter()
            .chain(any)
            .map(|child| &self.nodes[child])
            .find_map(|child| match below {
                Some(below) => self.find_below(child, below),
                None => child.route.as_ref(),
            })
            .or(node.rest.as_ref())
    }

    fn add(&mut self, pattern: &str) -> Result<(), PatternError> {
        let refuse = |problem| PatternError { pattern: pattern.to_owned(), problem };
        let body = pattern.strip_prefix('/').ok_or_else(|| refuse("does not begin with `/`"))?;
        if pattern.len() > PATTERN_BYTES || body.split('/').count() > PATTERN_SEGMENTS {
            return Err(refuse("is too long"));
        }
        if pattern.contains(['?', '#', ';']) || pattern.contains(char::is_control) {
            return Err(refuse("is more than a path"));
        }
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let (mut at, mut segments) = (0, body.split('/').peekable());
        while let Some(segment) = segments.next() {
            if segment == "*" {
                if segments.peek().is_some() {
                    return Err(refuse("has a `*` before its end"));
                }
                self.nodes[at].rest.get_or_insert_with(|| pattern.into());
                return Ok(());
            }
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            if name.unwrap_or(segment).contains(['{', '}', '*']) || name == Some("") {
                return Err(refuse("has a segment that is neither a word, `{name}` nor `*`"));
            }
            at = self.child(at, segment, name.is_some());
        }
        self.nodes[at].route.get_or_insert_with(|| pattern.into());
        Ok(())
    }

    fn child(&mut self, at: usize, segment: &str, any: bool) -> usize {
        let known = if any { self.nodes[at].any } else { self.nodes[at].words.get(segment).copied() };
        if let Some(known) = known {
            return known;
        }
        let new = self.nodes.len();
        self.nodes.push(Node::default());
        if any {
            self.nodes[at].any = Some(new);
        } else {
            self.nodes[at].words.insert(segment.into(), new);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_literal_pattern_wins_whatever_the_order() {
        let mut patterns = [
            "/users/{id}",
            "/users/me",
            "/users/{user}/orders",
            "/users/me/*",
            "/files/*",
            "/",
            "/a//b",
            "/x/{a}/{b}/c",
        ];
        for _ in 0..2 {
            let compiled = Patterns::new(&patterns).unwrap();
            let check = |path: &str, expected: Option<&str>| {
                assert_eq!(compiled.find(path).map(|route| &**route), expected, "{path}");
            };
            check("/users/42", Some("/users/{id}"));
            check("/users/42;v=1", Some("/users/{id}"));
            check("/users/me", Some("/users/me"));
            check("/users/me/orders", Some("/users/me/*"));
            check("/users/7/orders", Some("/users/{user}/orders"));
            check("/users/7/baskets", None);
            check("/users/", None);
            check("/users", None);
            check("/files", None);
            check("/files/", Some("/files/*"));
            check("/files/a/b/c", Some("/files/*"));
            check("/", Some("/"));
            check("/a//b", Some("/a//b"));
            check("/x/1/2/c", Some("/x/{a}/{b}/c"));
            check("/x/1/2/d", None);
            check("*", None);
            check("", None);
            patterns.reverse();
        }
        assert_eq!(Patterns::default().find("/"), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let check = |pattern: &str, problem: &str| {
            let error = Patterns::new(&[pattern]).unwrap_err().to_string();
            assert_eq!(error, format!("route pattern `{pattern}` {problem}"));
        };
        check("users", "does not begin with `/`");
        check("/a/*/b", "has a `*` before its end");
        check("/a/{}", "has a segment that is neither a word, `{name}` nor `*`");
        check("/a/{b}.json", "has a segment that is neither a word, `{name}` nor `*`");
        check("/a/b*", "has a segment that is neither a word, `{name}` nor `*`");
        check("/a?b=c", "is more than a path");
        check(&"/a".repeat(33), "is too long");
    }
}
