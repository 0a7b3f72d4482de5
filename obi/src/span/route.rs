//! Paths to routes: few names for many paths, without configuration.
//!
//! In: a path as sent. Out: its template, shared and bounded in number per service. Works on any text.
//! Refuses to know what the application calls its routes: learned routes are a later stage's.

use super::segment::write_template;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;

/// Route of every path of a service that has its full number of routes already. Also the end of a template
/// that is cut: `/a/b/*` stands for everything below `/a/b`.
pub const OVERFLOW: &str = "/*";

/// Segments of a template; what is deeper becomes `/*`.
const MAX_SEGMENTS: usize = 12;
/// Bytes of a template, about; what is longer is cut at a segment and becomes `/*`.
const MAX_BYTES: usize = 256;
/// Services whose routes are kept apart; the routes of any further one are all [`OVERFLOW`].
const MAX_SERVICES: usize = 4096;

/// Writes the template of `path` into `template`, which is cleared first. Empty (`CONNECT`) stays empty; a
/// path that does not start with `/`, such as the asterisk form, becomes `*`.
pub fn template(path: &str, template: &mut String) {
    template.clear();
    let Some(path) = path.strip_prefix('/') else {
        return template.push_str(if path.is_empty() { "" } else { "*" });
    };
    for (depth, segment) in path.split('/').enumerate() {
        let before = template.len();
        template.push('/');
        write_template(segment, template);
        if depth >= MAX_SEGMENTS || template.len() > MAX_BYTES {
            template.truncate(before);
            return template.push_str(OVERFLOW);
        }
    }
}

/// The routes of all services, each stored once.
#[derive(Debug)]
pub struct Routes {
    per_service: usize,
    overflow: Arc<str>,
    services: HashMap<u32, HashSet<Arc<str>, RandomState>, RandomState>,
    scratch: String,
}

impl Routes {
    /// `per_service`: distinct routes of one service before [`OVERFLOW`].
    #[must_use]
    pub fn new(per_service: usize) -> Self {
        let (services, scratch) = (HashMap::default(), String::new());
        Self { per_service, overflow: OVERFLOW.into(), services, scratch }
    }

    /// The route of `path` at the service with this [`super::Service::id`]. Allocates only for a new route.
    pub fn route(&mut self, service: u32, path: &str) -> &Arc<str> {
        template(path, &mut self.scratch);
        if !self.services.contains_key(&service) && self.services.len() >= MAX_SERVICES {
            return &self.overflow;
        }
        let routes = self.services.entry(service).or_default();
        if !routes.contains(self.scratch.as_str()) {
            if routes.len() >= self.per_service {
                return &self.overflow;
            }
            routes.insert(self.scratch.as_str().into());
        }
        routes.get(self.scratch.as_str()).unwrap_or(&self.overflow)
    }

    /// Forgets the routes of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        self.services.remove(&service);
    }
}
