//! What is particular to one process of a service.
//!
//! In: the process, what it says of itself, the machine. Out: [`Instance`]; ids of instances.
//!
//! `service.instance.id` is a UUID of version 5 in the conventions' own namespace, made of what identifies a process
//! for ever: machine, run of the machine, pid, start. So each worker of an application server has its own, and a
//! restart of the agent changes none. Metrics are counted by service, for all its processes on the machine together:
//! their resource has the id of the service on this machine.

use uuid::{Uuid, uuid};

use super::kubernetes::{self, Cluster};
use super::{Host, clean, host, resource};
use crate::capture::discover::Particulars;
use crate::span::{Instance, Resource};

/// The namespace for ids made of something inherent (semantic conventions, `service.instance.id`).
const NAMESPACE: Uuid = uuid!("4d63009a-8d0f-11ee-aad7-4c796ed8e320");
/// Clock ticks per second in `/proc` (`USER_HZ`), on every architecture we run on.
const TICKS: u64 = 100;

pub(super) fn describe(
    (host, cluster): (&Host, &Cluster),
    tgid: u32,
    start: Option<u64>,
    particulars: &Particulars,
) -> Instance {
    let Particulars { executable, container, otel_resource_attributes, host_name, .. } = particulars;
    let mut attributes = Resource::default();
    attributes.int("process.pid", i64::from(tgid));
    resource::parse(otel_resource_attributes).of_instance(&mut attributes);
    let pod = cluster.known_pod(container);
    if let Some(pod) = &pod {
        cluster.describe_instance(pod, container, &mut attributes);
    }
    let own = format!("{}/{}/{tgid}/{}", machine(host), host.booted_id, start.unwrap_or(0));
    attributes.text("service.instance.id", &id(&own));
    if let Some(start) = start.filter(|_| host.booted > 0) {
        let created = host.booted + start * (1_000_000_000 / TICKS);
        attributes.text("process.creation.time", &host::iso8601(created));
    }
    attributes.text("process.executable.path", &clean(executable));
    attributes.text("container.id", &container.id);
    attributes.text("container.runtime.name", container.runtime);
    if let Some(uid) = container.pod {
        attributes.text("k8s.pod.uid", &uid.to_string());
    }
    if kubernetes::owner(host_name, &host.name).is_some() {
        attributes.text("k8s.pod.name", &clean(host_name));
    }
    if let Some(pod) = &pod {
        kubernetes::annotate_instance(pod, &mut attributes);
    }
    Instance { attributes }
}

/// The id of all processes of a service on this machine together.
pub(super) fn of_service(host: &Host, namespace: &str, name: &str) -> String {
    id(&format!("{}/{namespace}/{name}", machine(host)))
}

fn machine(host: &Host) -> &str {
    if host.id.is_empty() { &host.name } else { &host.id }
}

fn id(of: &str) -> String {
    Uuid::new_v5(&NAMESPACE, of.as_bytes()).to_string()
}
