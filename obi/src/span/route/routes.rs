//! The routes of all services: configured, learned, bounded.
//!
//! In: requests. Out: routes. Owns one tree per service and side, and counts what they hold.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::sync::Arc;

use super::state::{Key, Stored};
use super::tree::{NodeId, Texts, Tree, Walk};
use super::{OVERFLOW, Patterns};
use crate::span::{Service, SpanKind};

/// Services and sides whose routes are kept apart; the routes of any further one are all [`OVERFLOW`].
const MAX_SERVICES: usize = 8192;
/// Nodes of one service's side, some 150 bytes each.
const SERVICE_NODES: usize = 2048;
/// Nodes of all services.
const MAX_NODES: usize = 32_768;

/// What a route is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who serves or calls.
    pub service: &'a Service,
    /// Which of the two: a service's own paths are not those that it calls.
    pub side: SpanKind,
    /// A known method, or `_OTHER`.
    pub method: &'static str,
    /// Path as sent, without query.
    pub path: &'a str,
    /// Status of the response, if there was one.
    pub status: Option<u16>,
}

impl Request<'_> {
    /// Not Found and Method Not Allowed: the application says that it has no such route.
    fn teaches(&self) -> bool {
        !matches!(self.status, Some(404 | 405))
    }
}

/// The routes of all services, each stored once. One owner; allocates only for what is new.
#[derive(Debug)]
pub struct Routes {
    per_service: usize,
    patterns: Patterns,
    services: HashMap<(u32, SpanKind), ServiceRoutes, RandomState>,
    n_nodes: usize,
    /// Trees of services that have not been seen since the start.
    pending: HashMap<Key, Stored, RandomState>,
    fixed: Fixed,
    texts: Texts,
}

/// Routes that belong to no service.
#[derive(Debug)]
struct Fixed {
    overflow: Arc<str>,
    asterisk: Arc<str>,
    none: Arc<str>,
}

#[derive(Debug)]
struct ServiceRoutes {
    namespace: Box<str>,
    name: Box<str>,
    tree: Tree,
    /// Distinct routes that have been given out.
    n_routes: usize,
}

impl Routes {
    /// `per_service`: distinct routes of one service (as server, and as client) before [`OVERFLOW`].
    #[must_use]
    pub fn new(per_service: usize) -> Self {
        Self {
            per_service,
            patterns: Patterns::default(),
            services: HashMap::default(),
            n_nodes: 0,
            pending: HashMap::default(),
            fixed: Fixed { overflow: OVERFLOW.into(), asterisk: "*".into(), none: "".into() },
            texts: Texts::default(),
        }
    }

    /// From now on these patterns have precedence and this bound holds; what has been learned stays.
    pub fn configure(&mut self, patterns: Patterns, per_service: usize) {
        (self.patterns, self.per_service) = (patterns, per_service);
    }

    /// Points `route` at the route of a request: empty where there is none (`CONNECT`, a path that no service has), `*`
    /// for what is no path.
    pub fn assign(&mut self, request: Request<'_>, route: &mut Arc<str>) {
        let found = match request.path {
            "" => &self.fixed.none,
            path if !path.starts_with('/') => &self.fixed.asterisk,
            path => match self.patterns.find(path) {
                Some(configured) => configured,
                None => return self.learned(request, route),
            },
        };
        share(route, found);
    }

    fn learned(&mut self, request: Request<'_>, route: &mut Arc<str>) {
        let Self { services, pending, fixed, texts, .. } = self;
        let n_services = services.len();
        let service = match services.entry((request.service.id, request.side)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if n_services < MAX_SERVICES => {
                let service = ServiceRoutes::new(&request, pending);
                self.n_nodes += service.tree.len();
                new.insert(service)
            }
            Entry::Vacant(_) => return share(route, &fixed.overflow),
        };
        let tree = &mut service.tree;
        let before = tree.len();
        // Once half is taken, every service that comes gets a smaller part.
        let allowed = if self.n_nodes < MAX_NODES / 2 { SERVICE_NODES } else { SERVICE_NODES / 8 };
        let room = request.teaches().then(|| allowed.min(before + MAX_NODES.saturating_sub(self.n_nodes)));
        let mut walk = tree.walk((request.method, request.path), room, texts);
        if walk == Walk::Full && tree.collapse() {
            walk = tree.walk((request.method, request.path), room, texts);
        }
        self.n_nodes = self.n_nodes + tree.len() - before;
        let found = match walk {
            Walk::End(end) => service.name(end, &texts.template, self.per_service),
            Walk::Unknown => Some(&fixed.none),
            Walk::Full => None,
        };
        share(route, found.unwrap_or(&fixed.overflow));
    }

    /// Forgets the routes of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        for side in [SpanKind::Server, SpanKind::Client] {
            if let Some(gone) = self.services.remove(&(service, side)) {
                self.n_nodes -= gone.tree.len();
            }
        }
    }

    /// Distinct learned routes of a service's side.
    #[must_use]
    pub fn count(&self, service: u32, side: SpanKind) -> usize {
        self.services.get(&(service, side)).map_or(0, |service| service.n_routes)
    }

    /// Nodes of all trees: what memory grows with.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.n_nodes
    }

    /// Grows with everything that is learned.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.services.values().map(|service| service.tree.revision).sum()
    }

    pub(super) fn trees(&self) -> impl Iterator<Item = (Key, &Tree)> {
        self.services.iter().map(|((_, side), service)| {
            let ServiceRoutes { namespace, name, tree, .. } = service;
            (Key::new(namespace, name, *side), tree)
        })
    }

    pub(super) fn pending(&mut self) -> &mut HashMap<Key, Stored, RandomState> {
        &mut self.pending
    }

    pub(super) fn pending_trees(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.pending.iter()
    }
}

impl ServiceRoutes {
    fn new(request: &Request<'_>, pending: &mut HashMap<Key, Stored, RandomState>) -> Self {
        let Service { namespace, name, .. } = request.service;
        let stored = pending.remove(&Key::new(namespace, name, request.side));
        Self {
            tree: stored.map_or_else(Tree::new, |stored| stored.tree()),
            namespace: namespace.as_str().into(),
            name: name.as_str().into(),
            n_routes: 0,
        }
    }

    /// The route of paths that end at a node; `None` when there are too many.
    fn name(&mut self, end: NodeId, template: &str, limit: usize) -> Option<&Arc<str>> {
        self.n_routes -= std::mem::take(&mut self.tree.n_released);
        let node = self.tree.node_mut(end);
        if node.route.is_none() && self.n_routes < limit {
            node.route = Some(template.into());
            self.n_routes += 1;
        }
        node.route.as_ref()
    }
}

/// Points `place` at `shared`; leaves the counter alone when it does already, as in most spans in a row.
fn share(place: &mut Arc<str>, shared: &Arc<str>) {
    if !Arc::ptr_eq(place, shared) {
        *place = Arc::clone(shared);
    }
}
