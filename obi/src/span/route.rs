//! Paths to routes: few names for many paths, without configuration.
//!
//! In: a path as sent. Out: its template, shared and bounded in number per service. Works on any text.
//! Refuses to know what the application calls its routes: learned routes are a later stage's.

use super::segment::write_template;
use foldhash::fast::RandomState;
use hashbrown::hash_map::Entry;
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
        let n_services = self.services.len();
        let routes = match self.services.entry(service) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if n_services < MAX_SERVICES => new.insert(HashSet::default()),
            Entry::Vacant(_) => return &self.overflow,
        };
        if routes.len() < self.per_service {
            return routes.get_or_insert_with(self.scratch.as_str(), |route| route.into());
        }
        routes.get(self.scratch.as_str()).unwrap_or(&self.overflow)
    }

    /// Forgets the routes of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        self.services.remove(&service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(path: &str, expected: &str) {
        let mut text = "left over".to_owned();
        template(path, &mut text);
        assert_eq!(text, expected, "`{path}`");
    }

    #[test]
    fn words_stay() {
        for path in [
            "",
            "/",
            "*",
            "/a",
            "/a/",
            "//",
            "/api/v1/users",
            "/v1beta1/x",
            "/oauth2/token",
            "/base64",
            "/utf8",
            "/md5",
            "/sha256",
            "/ipv4",
            "/index.html",
            "/.well-known/openid-configuration",
            "/a%20b",
            "/caf%C3%A9",
            "/café",
            "/getUserAccountDetailsByIdentifier",
            "/Some-Long-Title-With-Many-Words-In-It",
            "/decade",
            "/facade",
            "/API_KEYS",
            "/~root",
            "/{id}",
            "/s3cr3t",
            "/2fa/setup",
            "/deadbeef",
        ] {
            check(path, path);
        }
    }

    #[test]
    fn identifiers_become_placeholders() {
        check("/users/42/orders/7", "/users/{id}/orders/{id}");
        check("/page-2", "/page-{id}");
        check("/reports/2024-01-05.pdf", "/reports/{id}-{id}-{id}.pdf");
        check("/files/123.json", "/files/{id}.json");
        check("/order-12345", "/order-{id}");
        check("/user12345", "/{id}");
        check("/x/0af76519-16cd-43dd-8448-eb211c80319c/y", "/x/{uuid}/y");
        check("/x/0AF76519-16CD-43DD-8448-EB211C80319C", "/x/{uuid}");
        check("/x/0af7651916cd43dd8448eb211c80319c", "/x/{hash}");
        check("/x/abcdefabcdefabcd", "/x/{hash}");
        check("/commit/3f2a9c8", "/commit/{hash}");
        check("/app.3f2a9c8b7d.js", "/app.{hash}.js");
        check("/x/01ARZ3NDEKTSV4RRFFQ69G5FAV", "/x/{id}");
        check("/watch/dQw4w9WgXcQ", "/watch/{id}");
        check("/t/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "/t/{id}");
        check("/t/dGhpc19pc19hX3Rlc3Q-MTIz_NDU2", "/t/{id}");
        check("/mail/bob@example.com", "/mail/{id}");
        check("/@bob", "/{id}");
        check("/a;jsessionid=REDACTED/b;v=1", "/a/b");
    }

    #[test]
    fn odd_paths_have_a_route() {
        check("nonsense", "*");
        check("a/b", "*");
        check(&"/a".repeat(12), &"/a".repeat(12));
        check(&"/a".repeat(13), &format!("{}/*", "/a".repeat(12)));
        check(&format!("/a/{}", "z".repeat(400)), "/a/*");
    }

    #[test]
    fn routes_are_shared_and_bounded() {
        let mut routes = Routes::new(2);
        let first = Arc::clone(routes.route(1, "/a/1"));
        assert!(Arc::ptr_eq(&first, routes.route(1, "/a/2")));
        assert_eq!(&**routes.route(1, "/b"), "/b");
        assert_eq!(&**routes.route(1, "/c"), OVERFLOW);
        assert_eq!(&**routes.route(1, "/b"), "/b");
        assert_eq!(&**routes.route(2, "/c"), "/c");
        routes.forget(1);
        assert_eq!(&**routes.route(1, "/c"), "/c");
        let mut routes = Routes::new(2);
        for service in 0..5000 {
            let expected = if (service as usize) < MAX_SERVICES { "/a" } else { OVERFLOW };
            assert_eq!(&**routes.route(service, "/a"), expected);
        }
    }

    proptest! {
        #[test]
        fn templates_are_bounded_and_stable(path in "/?[a-zA-Z0-9/;=%@._{}é-]{0,300}", any in "\\PC{0,300}") {
            for path in [path, any] {
                let (mut once, mut twice) = (String::new(), String::new());
                template(&path, &mut once);
                template(&once, &mut twice);
                prop_assert_eq!(&once, &twice);
                prop_assert!(once.len() <= MAX_BYTES + OVERFLOW.len());
            }
        }

        #[test]
        fn numbers_and_ids_never_make_routes(number in any::<u64>(), uuid in any::<u128>(), hash in any::<[u64; 2]>()) {
            let uuid = format!("{uuid:032x}");
            let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
            let mut text = String::new();
            template(&format!("/n/{number}/u/{uuid}/h/{:016x}{:016x}/w", hash[0], hash[1] | 1 << 63), &mut text);
            // A hash of digits alone is a number.
            prop_assert!(["/n/{id}/u/{uuid}/h/{hash}/w", "/n/{id}/u/{uuid}/h/{id}/w"].contains(&text.as_str()), "{}", text);
        }
    }
}
