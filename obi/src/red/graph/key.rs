//! What makes one edge: its two ends, and what kind of connection is between them.
//!
//! In: services and names. Out: keys that are found without a copy of a name. Refuses to know counts.

use std::sync::Arc;

use hashbrown::Equivalent;

use super::{DATABASE, VIRTUAL_NODE};

/// An end of an edge: a service of this machine by [`Service::id`](crate::span::Service::id), or something else by name
/// and namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Node<S = Arc<str>> {
    Service(u32),
    Virtual(S, S),
}

/// `connection_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Connection {
    /// Both ends are services of this machine.
    Services,
    /// One is not.
    VirtualNode,
    Database,
}

/// An edge. Its names are owned, or borrowed to look for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key<S = Arc<str>> {
    pub(super) client: Node<S>,
    pub(super) server: Node<S>,
    pub(super) connection: Connection,
}

impl Connection {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Services => "",
            Self::VirtualNode => VIRTUAL_NODE,
            Self::Database => DATABASE,
        }
    }
}

impl<'a> Node<&'a str> {
    /// Something that has no namespace.
    pub(super) fn named(name: &'a str) -> Self {
        Self::Virtual(name, "")
    }
}

impl<S: AsRef<str>> Node<S> {
    fn borrowed(&self) -> Node<&str> {
        match self {
            Self::Service(id) => Node::Service(*id),
            Self::Virtual(name, namespace) => Node::Virtual(name.as_ref(), namespace.as_ref()),
        }
    }
}

impl<S: AsRef<str>> Key<S> {
    pub(super) fn borrowed(&self) -> Key<&str> {
        let Self { client, server, connection } = self;
        Key { client: client.borrowed(), server: server.borrowed(), connection: *connection }
    }
}

impl Equivalent<Key> for Key<&str> {
    fn equivalent(&self, key: &Key) -> bool {
        *self == key.borrowed()
    }
}

impl From<&Key<&str>> for Key {
    fn from(key: &Key<&str>) -> Self {
        let owned = |node: Node<&str>| match node {
            Node::Service(id) => Node::Service(id),
            Node::Virtual(name, namespace) => Node::Virtual(name.into(), namespace.into()),
        };
        Self { client: owned(key.client), server: owned(key.server), connection: key.connection }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use super::*;

    #[test]
    fn a_borrowed_key_finds_the_owned_one() {
        let hasher = foldhash::fast::RandomState::default();
        let far = Node::Virtual("far", "shop");
        let ends = [(Node::Service(1), far), (far, Node::Service(2)), (far, Node::named("far"))];
        for (client, server) in ends {
            for connection in [Connection::Services, Connection::VirtualNode, Connection::Database] {
                let asked = Key { client, server, connection };
                let owned = Key::from(&asked);
                assert!(asked.equivalent(&owned) && asked == owned.borrowed());
                assert_eq!(hasher.hash_one(asked), hasher.hash_one(&owned));
                let other = Key { server: Node::named("near"), ..asked };
                assert!(!other.equivalent(&owned));
            }
        }
    }
}
