//! Who calls whom: edges of the service graph.
//!
//! In: server and client spans, and which of them are the two ends of one exchange. Out: running totals by edge, each
//! call once, whatever was sampled. Refuses to know how ends are paired.
//!
//! A call counts when both of its ends are over, or a second after the first: durations come as they are known, the
//! number and the failure once. A call whose other end is not on this machine leads to a virtual node.

mod key;

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use self::key::{Connection, Key, Node};
use super::histogram::{Exemplar, Histogram};
use super::label::{
    CONNECTION_TYPE, EDGE_CLIENT, EDGE_CLIENT_NAMESPACE, EDGE_SERVER, EDGE_SERVER_NAMESPACE, LabelValue,
    Visit,
};
use super::series::{OTHER, shorten};
use crate::cause::Origin;
use crate::span::{Detail, Service, Span};

/// Edges that are distinguished; further ones share one.
const EDGES: usize = 1_000;
/// Virtual servers of one client that are distinguished.
const VIRTUAL: usize = 100;
/// Calls of which one end is over.
const WAITING: usize = 16_384;
/// A call counts so long after its first end, ns.
const WAIT_NS: u64 = 1_000_000_000;
/// Name of clients that are not on this machine.
const USER: &str = "user";

/// `connection_type` of an edge whose one end is not on this machine.
pub const VIRTUAL_NODE: &str = "virtual_node";
/// That of an edge to a database.
pub const DATABASE: &str = "database";

/// Calls of one node to another.
#[derive(Debug, Clone)]
pub struct Edge {
    /// Name and namespace of the client.
    pub client: [Arc<str>; 2],
    /// Name and namespace of the server.
    pub server: [Arc<str>; 2],
    /// [`VIRTUAL_NODE`], [`DATABASE`], or empty between two services.
    pub connection_type: &'static str,
    /// The one of the two that is a service of this machine; the server, if both are.
    pub service: Arc<Service>,
    /// Calls.
    pub total: u64,
    /// Of them, those that either end calls failed.
    pub failed: u64,
    /// How long they took by their servers.
    pub served: Histogram,
    /// How long they took by their clients.
    pub called: Histogram,
    /// Number of the last snapshot before it was born.
    pub born: u64,
    /// The end of its first span, nanoseconds since the Unix epoch.
    pub created: u64,
    touched: u64,
}

impl Edge {
    /// Every label.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&EDGE_CLIENT, LabelValue::Text(&self.client[0]));
        visit(&EDGE_CLIENT_NAMESPACE, LabelValue::Text(&self.client[1]));
        visit(&EDGE_SERVER, LabelValue::Text(&self.server[0]));
        visit(&EDGE_SERVER_NAMESPACE, LabelValue::Text(&self.server[1]));
        visit(&CONNECTION_TYPE, LabelValue::Text(self.connection_type));
    }

    fn count(&mut self, failed: bool) {
        self.total += 1;
        self.failed += u64::from(failed);
    }
}

/// A call of which one end is over.
#[derive(Debug)]
enum Waiting {
    /// The client's.
    Called(Called),
    /// The server's.
    Served { key: Key, failed: bool },
}

#[derive(Debug)]
struct Called {
    /// Whom it has asked, by what is known until now.
    key: Key,
    service: Arc<Service>,
    duration: u64,
    /// Nanoseconds since the Unix epoch.
    end: u64,
    failed: bool,
}

/// When: by the registry's clock, and in snapshots.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) now: u64,
    pub(super) born: u64,
}

/// All edges.
#[derive(Debug, Default)]
pub(super) struct Graph {
    edges: HashMap<Key, Arc<Edge>, RandomState>,
    /// By the exchange number of the client.
    waiting: HashMap<u64, Waiting, RandomState>,
    /// Since when, in that order.
    since: VecDeque<(u64, u64)>,
    /// Calls that have been counted by one end, and the edge that the other one belongs to.
    counted: HashMap<u64, Key, RandomState>,
    oldest: VecDeque<u64>,
    unpaired: u64,
}

impl Graph {
    /// A server span, and the number and service of the call that it answers.
    pub(super) fn served(&mut self, span: &Span, caller: Option<(u64, &Arc<Service>)>, when: When) {
        if matches!(span.detail, Detail::WebSocket(_) | Detail::Database(_)) {
            return;
        }
        let failed = !span.error_type.is_empty();
        let Some((number, client)) = caller else {
            if span.origin == Origin::Header {
                // Its caller's own span says who that is.
                self.unpaired += 1;
                return;
            }
            let (client, server) = (Node::named(USER), Node::Service(span.service.id));
            let key = Key { client, server, connection: Connection::VirtualNode };
            let edge = self.edge(key, [None, Some(&span.service)], span.end, when);
            edge.served.record(duration(span), exemplar(span));
            return edge.count(failed);
        };
        let key = between(client, &span.service);
        let before = self.waiting.remove(&number);
        let is_counted = self.counted.remove(&number).is_some();
        let edge = self.edge(key, [Some(client), Some(&span.service)], span.end, when);
        edge.served.record(duration(span), exemplar(span));
        match before {
            Some(Waiting::Called(call)) => {
                edge.called.record(call.duration, None);
                edge.count(failed || call.failed);
            }
            _ if is_counted => {}
            _ => self.wait(number, Waiting::Served { key: Key::from(&key), failed }, when.now),
        }
    }

    /// A client span, and who answers it here, as far as is known.
    pub(super) fn called(&mut self, span: &Span, server: Option<&Arc<Service>>, when: When) {
        let (number, failed) = (span.exchange, !span.error_type.is_empty());
        let connection = match span.detail {
            Detail::WebSocket(_) | Detail::Sdk(_) => return,
            Detail::Database(_) => Connection::Database,
            _ => Connection::VirtualNode,
        };
        let counted = self.counted.remove(&number);
        let served = match self.waiting.remove(&number) {
            Some(Waiting::Served { key, failed }) => Some((key, Some(failed))),
            _ => counted.map(|key| (key, None)),
        };
        if let Some((key, at_server)) = served {
            if let Some(edge) = self.edges.get_mut(&key).map(Arc::make_mut) {
                edge.called.record(duration(span), None);
                if let Some(at_server) = at_server {
                    edge.count(failed || at_server);
                }
            }
            return;
        }
        let key = match server {
            Some(server) => {
                let key = between(&span.service, server);
                self.edge(key, [Some(&span.service), Some(server)], span.end, when);
                Key::from(&key)
            }
            None => self.virtual_server(span, connection),
        };
        let (service, duration, end) = (Arc::clone(&span.service), duration(span), span.end);
        let call = Called { key, service, duration, end, failed };
        match connection {
            Connection::Database => self.count_called(&call, when),
            _ => self.wait(number, Waiting::Called(call), when.now),
        }
    }

    /// Counts what has waited for its other end for long enough. To be called about once a second.
    pub(super) fn advance(&mut self, when: When) {
        while let Some((number, since)) = self.since.front().copied() {
            if when.now.saturating_sub(since) < WAIT_NS && self.since.len() <= WAITING {
                break;
            }
            self.since.pop_front();
            match self.waiting.remove(&number) {
                Some(Waiting::Served { key, failed }) => {
                    if let Some(edge) = self.edges.get_mut(&key).map(Arc::make_mut) {
                        edge.count(failed);
                    }
                    self.remember(number, key);
                }
                Some(Waiting::Called(call)) => {
                    self.count_called(&call, when);
                    if call.key.connection == Connection::Services {
                        self.remember(number, call.key);
                    }
                }
                None => {}
            }
        }
    }

    /// Drops what was not counted since `before`.
    pub(super) fn expire(&mut self, before: u64) {
        self.edges.retain(|_, edge| edge.touched >= before);
    }

    /// Says that everything was counted just now.
    pub(super) fn touch_all(&mut self, now: u64) {
        self.edges.values_mut().for_each(|edge| Arc::make_mut(edge).touched = now);
        self.since.iter_mut().for_each(|(_, since)| *since = now);
    }

    /// Edges in the order of their labels.
    pub(super) fn to_vec(&self) -> Vec<Arc<Edge>> {
        let mut edges: Vec<_> = self.edges.values().filter(|edge| edge.total > 0).cloned().collect();
        edges.sort_by(|a, b| {
            (&a.client, &a.server, a.connection_type).cmp(&(&b.client, &b.server, b.connection_type))
        });
        edges
    }

    /// Server spans whose callers are elsewhere, and known by a header only.
    pub(super) fn unpaired(&self) -> u64 {
        self.unpaired
    }

    fn count_called(&mut self, call: &Called, when: When) {
        let edge = self.edge(call.key.borrowed(), [Some(&call.service), None], call.end, when);
        edge.called.record(call.duration, None);
        edge.count(call.failed);
    }

    fn wait(&mut self, number: u64, waiting: Waiting, now: u64) {
        self.waiting.insert(number, waiting);
        self.since.push_back((number, now));
    }

    /// The other end will belong to this edge, and must not be counted again.
    fn remember(&mut self, number: u64, key: Key) {
        self.counted.insert(number, key);
        self.oldest.push_back(number);
        if self.oldest.len() > WAITING
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.counted.remove(&oldest);
        }
    }

    /// The edge to a server that is no service of this machine: by the name of its pod, else as the client calls it;
    /// one for all where a client asks too many.
    fn virtual_server(&self, span: &Span, connection: Connection) -> Key {
        let (name, namespace) = match &span.peer {
            Some(peer) => (peer.name(), peer.namespace()),
            None => (shorten(&span.server.address), ""),
        };
        let client = Node::Service(span.service.id);
        let asked = Key { client, server: Node::Virtual(name, namespace), connection };
        if let Some((known, _)) = self.edges.get_key_value(&asked) {
            return known.clone();
        }
        let client = Node::Service(span.service.id);
        let of_client = |key: &&Key| key.client == client && matches!(key.server, Node::Virtual(..));
        match self.edges.keys().filter(of_client).count() < VIRTUAL {
            true => Key::from(&asked),
            false => Key::from(&Key { server: Node::named(OTHER), ..asked }),
        }
    }

    /// The edge of these services; those that are not there have the names of the key.
    fn edge(
        &mut self,
        mut key: Key<&str>,
        [client, server]: [Option<&Arc<Service>>; 2],
        end: u64,
        when: When,
    ) -> &mut Edge {
        if self.edges.len() >= EDGES && !self.edges.contains_key(&key) {
            let other = Node::named(OTHER);
            key = Key { client: other, server: other, connection: Connection::VirtualNode };
        }
        let names = |node: Node<&str>, service: Option<&Arc<Service>>| match (node, service) {
            (Node::Virtual(name, namespace), _) => [name.into(), namespace.into()],
            (Node::Service(_), Some(service)) => {
                [service.name.as_str().into(), service.namespace.as_str().into()]
            }
            (Node::Service(_), None) => [OTHER.into(), "".into()],
        };
        let edge = self.edges.entry_ref(&key).or_insert_with(|| {
            Arc::new(Edge {
                client: names(key.client, client),
                server: names(key.server, server),
                connection_type: key.connection.as_str(),
                service: server.or(client).cloned().unwrap_or_default(),
                total: 0,
                failed: 0,
                served: Histogram::default(),
                called: Histogram::default(),
                born: when.born,
                created: end,
                touched: when.now,
            })
        });
        let edge = Arc::make_mut(edge);
        edge.touched = when.now;
        edge
    }
}

fn between(client: &Service, server: &Service) -> Key<&'static str> {
    let (client, server) = (Node::Service(client.id), Node::Service(server.id));
    Key { client, server, connection: Connection::Services }
}

fn duration(span: &Span) -> u64 {
    span.end.saturating_sub(span.start)
}

fn exemplar(span: &Span) -> Option<Exemplar> {
    span.sampled.then(|| Exemplar::of(span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span_with;
    use crate::span::SpanKind;

    fn service(id: u32) -> Arc<Service> {
        Arc::new(Service { name: format!("s{id}"), id, ..Service::default() })
    }

    fn span(kind: SpanKind, id: u32, number: u64, failed: bool) -> Span {
        span_with(kind, |span| {
            (span.service, span.exchange) = (service(id), number);
            span.error_type = if failed { "500" } else { "" };
            span.server.address = "far".to_owned();
        })
    }

    fn at(now: u64) -> When {
        When { now, born: 0 }
    }

    /// `client>server type total/failed served/called` of every edge.
    #[track_caller]
    fn check(graph: &Graph, expected: &[&str]) {
        let reported = |edge: &Arc<Edge>| {
            let (served, called) = (edge.served.buckets.count(), edge.called.buckets.count());
            let (client, server) = (&edge.client[0], &edge.server[0]);
            format!(
                "{client}>{server} {} {}/{} {served}/{called}",
                edge.connection_type, edge.total, edge.failed
            )
        };
        assert_eq!(graph.to_vec().iter().map(reported).collect::<Vec<_>>(), expected);
    }

    const CLIENT: SpanKind = SpanKind::Client;
    const SERVER: SpanKind = SpanKind::Server;

    #[test]
    fn a_call_counts_once_whoever_ends_first() {
        let (client, server) = (service(1), service(2));
        let mut graph = Graph::default();
        graph.called(&span(CLIENT, 1, 7, false), Some(&server), at(0));
        graph.served(&span(SERVER, 2, 8, true), Some((7, &client)), at(1));
        check(&graph, &["s1>s2  1/1 1/1"]);
        graph.served(&span(SERVER, 2, 9, false), Some((10, &client)), at(2));
        graph.called(&span(CLIENT, 1, 10, true), Some(&server), at(3));
        check(&graph, &["s1>s2  2/2 2/2"]);
        // Before the other end was known.
        graph.called(&span(CLIENT, 1, 11, false), None, at(4));
        graph.served(&span(SERVER, 2, 12, false), Some((11, &client)), at(5));
        check(&graph, &["s1>s2  3/2 3/3"]);
        graph.advance(at(10 * WAIT_NS));
        check(&graph, &["s1>s2  3/2 3/3"]);
    }

    #[test]
    fn a_second_after_its_first_end_a_call_counts() {
        let (client, server) = (service(1), service(2));
        let mut graph = Graph::default();
        graph.served(&span(SERVER, 2, 8, true), Some((7, &client)), at(0));
        graph.called(&span(CLIENT, 1, 9, true), Some(&server), at(0));
        graph.advance(at(WAIT_NS - 1));
        check(&graph, &[]);
        graph.advance(at(WAIT_NS));
        check(&graph, &["s1>s2  2/2 1/1"]);
        // The other ends come later, and add what they took.
        graph.called(&span(CLIENT, 1, 7, true), Some(&server), at(2 * WAIT_NS));
        graph.served(&span(SERVER, 2, 10, true), Some((9, &client)), at(2 * WAIT_NS));
        graph.advance(at(9 * WAIT_NS));
        check(&graph, &["s1>s2  2/2 2/2"]);
    }

    #[test]
    fn other_ends_are_virtual() {
        let mut graph = Graph::default();
        graph.called(&span(CLIENT, 1, 7, false), None, at(0));
        graph.served(&span(SERVER, 2, 8, false), None, at(0));
        check(&graph, &["user>s2 virtual_node 1/0 1/0"]);
        graph.advance(at(WAIT_NS));
        check(&graph, &["s1>far virtual_node 1/0 0/1", "user>s2 virtual_node 1/0 1/0"]);
        let mut known = span(SERVER, 2, 9, false);
        known.origin = Origin::Header;
        graph.served(&known, None, at(WAIT_NS));
        assert_eq!(graph.unpaired(), 1);
    }

    #[test]
    fn it_is_bounded() {
        let mut graph = Graph::default();
        for number in 0..40_000_u64 {
            let mut span = span(CLIENT, u32::try_from(number % 50).unwrap(), number, false);
            span.server.address = format!("host-{number}");
            graph.called(&span, None, at(number));
            graph.advance(at(number));
        }
        graph.advance(at(u64::MAX));
        let edges = graph.to_vec();
        assert!(edges.len() <= EDGES + 1, "{}", edges.len());
        assert_eq!(edges.iter().map(|edge| edge.total).sum::<u64>(), 40_000);
        assert!(graph.waiting.is_empty() && graph.since.is_empty());
    }
}
