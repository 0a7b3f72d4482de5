//! Facts of a process to the service that it is reported as.
//!
//! In: [`Facts`] from discovery. Out: one shared [`Service`] per distinct identity, with a dense number. The name is,
//! first match wins: `OTEL_SERVICE_NAME`, `service.name` of `OTEL_RESOURCE_ATTRIBUTES`, the Kubernetes owner, the
//! systemd unit, then script, module, jar or executable. Refuses to know `/proc` and rules.

mod kubernetes;
mod launcher;
mod program;
mod resource;
mod systemd;

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use self::program::{Program, program};
use super::Service;
use crate::capture::discover::{Facts, Naming};

/// Names processes and shares their services.
#[derive(Debug)]
pub struct Services {
    /// Name of the machine, to tell a pod on the node's network from one with a name of its own.
    node: String,
    limit: usize,
    known: HashMap<Arc<Service>, (), RandomState>,
    ids: HashMap<(String, String), u32, RandomState>,
    overflow: Arc<Service>,
}

/// Distinct services of one run; later ones share `_OTHER`.
const SERVICES_MAX: usize = 4096;

/// The name shared by services beyond the limit.
const OVERFLOW: &str = "_OTHER";

impl Services {
    /// No services yet. `node` is the host name of the machine.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self::with_limit(node, SERVICES_MAX)
    }

    fn with_limit(node: String, limit: usize) -> Self {
        // Number 0 is the overflow's, so that it exists whenever it is needed.
        let overflow = Arc::new(Service { name: OVERFLOW.to_owned(), ..Service::default() });
        let ids = [((String::new(), OVERFLOW.to_owned()), 0)].into_iter().collect();
        Self { node, limit, known: HashMap::default(), ids, overflow }
    }

    /// Distinct (namespace, name) pairs so far, the overflow included: every [`Service::id`] is below it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    fn share(&mut self, mut service: Service) -> Arc<Service> {
        let pair = (service.namespace.clone(), service.name.clone());
        let id = self.ids.get(&pair).copied();
        service.id = id.unwrap_or_else(|| u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        if let Some((known, ())) = self.known.get_key_value(&service) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.limit {
            return Arc::clone(&self.overflow);
        }
        self.ids.insert(pair, service.id);
        let service = Arc::new(service);
        self.known.insert(Arc::clone(&service), ());
        service
    }
}

impl Naming for Services {
    type Service = Arc<Service>;

    fn service(&mut self, facts: &Facts, parent: Option<&Arc<Service>>) -> Arc<Service> {
        match describe(facts, &self.node) {
            Described::Service(service) => self.share(service),
            // An interpreter that was handed its program as text: a worker of its parent, if that runs the same one.
            Described::Anonymous(service) => parent.map_or_else(|| self.share(service), Arc::clone),
        }
    }

    fn name(service: &Arc<Service>) -> &str {
        &service.name
    }
}

/// A service, and whether the process itself told its name.
enum Described {
    Service(Service),
    Anonymous(Service),
}

fn describe(facts: &Facts, node: &str) -> Described {
    let resource = resource::parse(&facts.otel_resource_attributes);
    let pod = facts.kubernetes.then(|| kubernetes::owner(&facts.host_name, node)).flatten();
    let Program { name: program, language, executable } = program(facts);
    let own = [facts.otel_service_name.as_str(), resource.get("service.name")]
        .into_iter()
        .chain(pod.iter().map(|owner| owner.name))
        .map(str::to_owned)
        .chain(systemd::unit(&facts.cgroup))
        .chain(program)
        .map(|name| clean(&name))
        .find(|name| !name.is_empty());
    let anonymous = own.is_none();
    let name = own.unwrap_or_else(|| clean(&unknown(language.unwrap_or(&executable))));
    let namespace = [resource.get("service.namespace"), facts.pod_namespace.as_str()]
        .into_iter()
        .map(clean)
        .find(|namespace| !namespace.is_empty())
        .unwrap_or_default();
    let mut attributes = resource.kept();
    let (owner_attribute, owner) = pod.map_or(("", ""), |owner| (owner.attribute, owner.name));
    let known = [
        (owner_attribute, clean(owner)),
        ("k8s.namespace.name", clean(&facts.pod_namespace)),
        ("process.executable.name", clean(&executable)),
        ("telemetry.sdk.language", language.unwrap_or("").to_owned()),
        ("telemetry.sdk.name", "obi".to_owned()),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    known.into_iter().for_each(|(key, value)| attributes.text(key, &value));
    let service = Service { name, namespace, id: 0, attributes };
    if anonymous { Described::Anonymous(service) } else { Described::Service(service) }
}

/// The semantic conventions' name for a service that has none.
fn unknown(program: &str) -> String {
    if program.is_empty() { "unknown_service".to_owned() } else { format!("unknown_service:{program}") }
}

/// Longest name, bytes.
const NAME_BYTES: usize = 255;

/// A name that can stand in a label: no control characters, no outer spaces, not too long.
fn clean(name: &str) -> String {
    let name = name.trim().replace(char::is_control, "\u{fffd}");
    name[..name.floor_char_boundary(NAME_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;
