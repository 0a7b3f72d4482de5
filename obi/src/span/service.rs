//! Facts of a process to the service that it is reported as.
//!
//! In: [`Facts`] from discovery. Out: one shared [`Service`] per distinct identity, with a dense number. The name is,
//! first match wins: `OTEL_SERVICE_NAME`, `service.name` of `OTEL_RESOURCE_ATTRIBUTES`, what the pod says (annotation,
//! labels if they are wanted, owner), the systemd unit, then script, module, jar or executable. Refuses to know `/proc`
//! and rules.

mod host;
mod instance;
mod kubernetes;
mod launcher;
mod number;
mod peer;
mod program;
mod resource;
mod systemd;

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

pub use self::host::Host;
use self::kubernetes::Cluster;
pub use self::number::Numbers;
pub use self::peer::{Peer, Peers};
use self::program::{Program, program};
use super::{Instance, Service};
use crate::capture::discover::{Facts, Naming, Particulars};
use crate::config;
use crate::kubernetes::{Pod, Pods};

/// Names processes and shares their services.
#[derive(Debug)]
pub struct Services {
    /// The machine. Its name also distinguishes a pod on the node's network from one with a name of its own.
    host: Host,
    /// The pods of this node.
    cluster: Cluster,
    limit: usize,
    numbers: Numbers,
    known: HashMap<Arc<Service>, (), RandomState>,
    named: HashMap<(String, String), Named, RandomState>,
    overflow: Arc<Service>,
}

/// What is known of one pair of namespace and name.
#[derive(Debug)]
struct Named {
    id: u32,
    /// Services of this name that differ in their attributes.
    n_variants: usize,
    /// The last of them.
    service: Arc<Service>,
}

/// Services of one name that differ in attributes; further ones get those of the last, so that a value that is new with
/// every process does not use up all room.
const VARIANTS_MAX: usize = 16;

/// Distinct services of one run; later ones share `_OTHER`.
const SERVICES_MAX: usize = 4096;

/// The name shared by services beyond the limit.
const OVERFLOW: &str = "_OTHER";

/// The name of a process of which nothing could be learned (semantic conventions, `service.name`).
pub const UNKNOWN: &str = "unknown_service";

/// The number of [`UNKNOWN`].
const UNKNOWN_ID: u32 = 1;

impl Services {
    /// No services yet.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self::with_limit(host, SERVICES_MAX)
    }

    fn with_limit(host: Host, limit: usize) -> Self {
        // These two have numbers from the beginning, so that they exist whenever they are needed.
        let numbers = Numbers::default();
        let of = |service: Arc<Service>| {
            let id = numbers.of("", &service.name);
            debug_assert_eq!(id, service.id, "{}", service.name);
            let named = Named { id, n_variants: 1, service: Arc::clone(&service) };
            ((String::new(), service.name.clone()), named)
        };
        let overflow = Self::overflow();
        let named = [of(Arc::clone(&overflow)), of(Self::unknown())].into_iter().collect();
        Self { host, cluster: Cluster::default(), limit, numbers, known: HashMap::default(), named, overflow }
    }

    /// The numbers of services, for others that name some.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        self.numbers.clone()
    }

    /// What those beyond a limit share.
    #[must_use]
    pub fn overflow() -> Arc<Service> {
        Arc::new(Service { name: OVERFLOW.to_owned(), ..Service::default() })
    }

    /// The same with the pods of this node, as far as they are known when a process is named.
    #[must_use]
    pub fn with_pods(self, pods: Pods, config: &config::Kubernetes) -> Self {
        Self { cluster: Cluster::new(pods, config), ..self }
    }

    /// The service of a process whose name is not known when it is asked for.
    #[must_use]
    pub fn unknown() -> Arc<Service> {
        Arc::new(Service { name: UNKNOWN.to_owned(), id: UNKNOWN_ID, ..Service::default() })
    }

    /// Distinct (namespace, name) pairs so far, the overflow and the unknown included: every [`Service::id`] is below
    /// it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.numbers.count()
    }

    /// Where the name of a process with these facts comes from, in a user's words.
    pub fn origin(&mut self, facts: &Facts) -> &'static str {
        let pod = self.cluster.pod(&facts.container);
        describe(facts, &self.host, pod.as_deref().map(|pod| (pod, &self.cluster))).origin
    }

    fn share(&mut self, mut service: Service) -> Arc<Service> {
        let pair = (service.namespace.clone(), service.name.clone());
        let named = self.named.get_mut(&pair);
        // A number of its own only for what is kept: the limit below bounds the numbers too.
        let may_be_new = self.known.len() < self.limit;
        service.id = match &named {
            Some(named) => named.id,
            None if may_be_new => self.numbers.of(&pair.0, &pair.1),
            None => return Arc::clone(&self.overflow),
        };
        if let Some((known, ())) = self.known.get_key_value(&service) {
            return Arc::clone(known);
        }
        if let Some(named) = named.filter(|named| named.n_variants >= VARIANTS_MAX) {
            return Arc::clone(&named.service);
        }
        if self.known.len() >= self.limit {
            return Arc::clone(&self.overflow);
        }
        let service = Arc::new(service);
        let first = || Named { id: service.id, n_variants: 0, service: Arc::clone(&service) };
        let named = self.named.entry(pair).or_insert_with(first);
        named.n_variants += 1;
        named.service = Arc::clone(&service);
        self.known.insert(Arc::clone(&service), ());
        service
    }
}

impl Naming for Services {
    type Service = Arc<Service>;
    type Instance = Arc<Instance>;

    fn service(&mut self, facts: &Facts, parent: Option<&Arc<Service>>) -> Arc<Service> {
        let pod = self.cluster.pod(&facts.container);
        match describe(facts, &self.host, pod.as_deref().map(|pod| (pod, &self.cluster))) {
            // An interpreter that was handed its program as text: a worker of its parent, if that runs the same one.
            Described { service, anonymous: true, .. } => {
                parent.map_or_else(|| self.share(service), Arc::clone)
            }
            Described { service, .. } => self.share(service),
        }
    }

    fn instance(&mut self, tgid: u32, start: Option<u64>, particulars: &Particulars) -> Arc<Instance> {
        Arc::new(instance::describe((&self.host, &self.cluster), tgid, start, particulars))
    }

    fn name(service: &Arc<Service>) -> &str {
        &service.name
    }
}

struct Described {
    service: Service,
    /// Neither the process nor what surrounds it has given a name.
    anonymous: bool,
    /// What has, in a user's words.
    origin: &'static str,
}

fn describe(facts: &Facts, host: &Host, pod: Option<(&Pod, &Cluster)>) -> Described {
    let resource = resource::parse(&facts.otel_resource_attributes);
    let is_guessed = facts.kubernetes && pod.is_none();
    let guessed = is_guessed.then(|| kubernetes::owner(&facts.host_name, &host.name)).flatten();
    let Program { name: program, language, runtime, executable } = program(facts);
    let said = [
        ("OTEL_SERVICE_NAME", facts.otel_service_name.as_str()),
        (IN_ATTRIBUTES, resource.get("service.name")),
    ];
    let own = said
        .map(|(origin, name)| (origin, name.to_owned()))
        .into_iter()
        .chain(pod.into_iter().flat_map(|(pod, cluster)| cluster.names(pod)))
        .chain(guessed.iter().map(|owner| ("shape of the pod's host name", owner.name.to_owned())))
        .chain(systemd::unit(&facts.cgroup).map(|unit| ("systemd unit", unit)))
        .chain(program.map(|program| ("script, module, jar or executable", program)))
        .map(|(origin, name)| (origin, clean(&name)))
        .find(|(_, name)| !name.is_empty());
    let anonymous = own.is_none();
    let unknown = || (NO_NAME, clean(&unknown(language.unwrap_or(&executable))));
    let (origin, name) = own.unwrap_or_else(unknown);
    let of_pod = pod.map_or(["", ""], |(pod, _)| [pod.annotation("service.namespace"), &pod.namespace]);
    let namespace = [resource.get("service.namespace"), of_pod[0], of_pod[1], &facts.pod_namespace]
        .into_iter()
        .map(clean)
        .find(|namespace| !namespace.is_empty())
        .unwrap_or_default();
    // What the process says of itself comes first and stays.
    let mut attributes = resource.of_service();
    if let Some((pod, cluster)) = pod {
        cluster.describe_service(pod, &mut attributes);
    }
    if let Some(owner) = guessed {
        attributes.text(owner.attribute, &clean(owner.name));
    }
    attributes.text("k8s.namespace.name", &clean(&facts.pod_namespace));
    attributes.text("process.executable.name", &clean(&executable));
    attributes.text("process.runtime.name", runtime.name);
    attributes.text("process.runtime.version", &clean(&runtime.version));
    attributes.text("telemetry.sdk.language", language.unwrap_or(""));
    attributes.text("telemetry.sdk.name", "obi");
    attributes.text("telemetry.sdk.version", env!("CARGO_PKG_VERSION"));
    host.describe(&mut attributes);
    attributes.text("service.instance.id", &instance::of_service(host, &namespace, &name));
    if let Some((pod, _)) = pod {
        kubernetes::annotate_service(pod, &mut attributes);
    }
    let service = Service { name, namespace, id: 0, attributes };
    Described { service, anonymous, origin }
}

const IN_ATTRIBUTES: &str = "service.name in OTEL_RESOURCE_ATTRIBUTES";
const NO_NAME: &str = "nothing names it";

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
