//! What a process is called by its pod, and what its pod says of it.
//!
//! In: the [`Pod`], where a source has sent it, else the host name inside the pod, which is mostly the pod's name. Out:
//! names and attributes. A pod that is only known by name goes by the shape of names that Kubernetes generates: a
//! hand-made one of that very shape is taken for generated.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::{clean, resource};
use crate::capture::discover::Container;
use crate::config;
use crate::kubernetes::pod::image;
use crate::kubernetes::view::Counts;
use crate::kubernetes::workload::workload;
use crate::kubernetes::{Pod, PodUid, Pods};
use crate::span::Resource;

/// How long the first process of a pod that is not known is kept waiting: pods are reported when they are bound, half a
/// second before their first program begins, so it is mostly not at all.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pods that were waited for in vain and are not again.
const MISSED_MAX: usize = 1024;

/// The pods of this node, and how their names are used.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pods: Pods,
    /// `k8s.cluster.name`.
    name: String,
    /// Labels may name services.
    use_labels: bool,
    missed: HashSet<PodUid>,
}

impl Cluster {
    pub(super) fn new(pods: Pods, config: &config::Kubernetes) -> Self {
        let (name, use_labels) = (config.cluster.clone(), config.use_labels);
        Self { pods, name, use_labels, missed: HashSet::new() }
    }

    /// The pod of a process that is being named.
    pub(super) fn pod(&mut self, container: &Container) -> Option<Arc<Pod>> {
        let Some(uid) = container.pod else { return self.pods.of_container(&container.id) };
        if let Some(pod) = self.pods.get(uid) {
            return Some(pod);
        }
        if self.missed.len() >= MISSED_MAX {
            self.missed.clear();
        }
        let pod = if self.missed.insert(uid) { self.pods.wait_for(uid, PATIENCE) } else { None };
        if pod.is_none() {
            let counts = self.pods.counts();
            let counter = if self.pods.is_live() { &counts.unknown_pod } else { &counts.no_source };
            Counts::add(counter, 1);
        }
        pod
    }

    /// The same of one that has its name already.
    pub(super) fn known_pod(&self, container: &Container) -> Option<Arc<Pod>> {
        match container.pod {
            Some(uid) => self.pods.get(uid),
            None => self.pods.of_container(&container.id),
        }
    }

    /// Names that the pod gives the service, the strongest first, each with what gives it.
    pub(super) fn names(&self, pod: &Pod) -> Vec<(&'static str, String)> {
        let labels = [
            ("label app.kubernetes.io/instance", &pod.labels.instance),
            ("label app.kubernetes.io/name", &pod.labels.name),
        ];
        let labels =
            labels.into_iter().filter(|_| self.use_labels).map(|(what, label)| (what, label.to_string()));
        let by_shape =
            || owner(&pod.name, "").map(|owner| ("shape of the pod's name", owner.name.to_owned()));
        let owner = workload(pod).map(|workload| {
            let what = if pod.owner.is_some() { "what owns the pod" } else { "name of the pod" };
            (what, workload.name.to_owned())
        });
        let annotation =
            ("annotation resource.opentelemetry.io/service.name", pod.annotation("service.name").to_owned());
        std::iter::once(annotation).chain(labels).chain(owner.or_else(by_shape)).collect()
    }

    /// Adds what holds for all pods of the workload.
    pub(super) fn describe_service(&self, pod: &Pod, attributes: &mut Resource) {
        attributes.text("k8s.namespace.name", &clean(&pod.namespace));
        let Some(workload) = workload(pod) else {
            if let Some(owner) = owner(&pod.name, "").filter(|owner| owner.attribute != POD_NAME) {
                attributes.text(owner.attribute, &clean(owner.name));
            }
            return self.describe_place(pod, attributes);
        };
        // What stands behind the first is a generation of it.
        if let Some((name, value)) = workload.attributes.first().filter(|(_, value)| *value == workload.name)
        {
            attributes.text(*name, &clean(value));
        }
        if self.use_labels && !pod.annotations.iter().any(|(name, _)| &**name == VERSION) {
            attributes.text(VERSION, &clean(&pod.labels.version));
        }
        self.describe_place(pod, attributes);
    }

    fn describe_place(&self, pod: &Pod, attributes: &mut Resource) {
        attributes.text("k8s.node.name", &clean(&pod.node));
        attributes.text("k8s.cluster.name", &self.name);
    }

    /// Adds what is particular to one container of the pod. What its process says of itself is there already.
    pub(super) fn describe_instance(&self, pod: &Pod, container: &Container, attributes: &mut Resource) {
        attributes.text(POD_NAME, &clean(&pod.name));
        attributes.text("k8s.pod.uid", &clean(&pod.uid));
        for (name, value) in workload(pod).into_iter().flat_map(|workload| workload.attributes) {
            attributes.text(name, &clean(value));
        }
        let container = pod.container(&container.id);
        attributes.text("k8s.container.name", &clean(container.map_or("", |container| &container.name)));
        let (image, version) = image(container.map_or("", |container| &container.image));
        attributes.text("container.image.name", &clean(image));
        attributes.text("service.instance.id", &clean(pod.annotation("service.instance.id")));
        if let Some(container) = container {
            let id = format!("{}.{}.{}", pod.namespace, pod.name, container.name);
            attributes.text("service.instance.id", &clean(&id));
        }
        let is_reported =
            !pod.annotation(VERSION).is_empty() || self.use_labels && !pod.labels.version.is_empty();
        if !is_reported {
            attributes.text(VERSION, &clean(&version));
        }
    }
}

/// Adds what the pod says of the service. Last of all: it is no more than what who annotates pods claims, and takes the
/// place of nothing that is known otherwise.
pub(super) fn annotate_service(pod: &Pod, attributes: &mut Resource) {
    resource::of_pairs(&pod.annotations).of_service().iter().for_each(|(name, value)| {
        attributes.text(name.to_owned(), &value.to_string());
    });
}

/// The same of one instance.
pub(super) fn annotate_instance(pod: &Pod, attributes: &mut Resource) {
    resource::of_pairs(&pod.annotations).of_instance(attributes);
}

const POD_NAME: &str = "k8s.pod.name";
const VERSION: &str = "service.version";

/// What owns a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    /// Name of the workload.
    pub(super) name: &'a str,
    /// Resource attribute that says what sort of workload it is.
    pub(super) attribute: &'static str,
}

/// The owner of the pod with this name. `None` without a name, or when it is the node's: then the pod uses the
/// node's network, and the name says nothing of the pod.
pub(super) fn owner<'a>(pod: &'a str, node: &str) -> Option<Owner<'a>> {
    let short = |name: &'a str| name.split('.').next().unwrap_or(name);
    if pod.is_empty() || pod == node || Some(short(pod)) == node.split('.').next() {
        return None;
    }
    let named = |name, attribute| Some(Owner { name, attribute });
    let Some((stem, last)) = pod.rsplit_once('-').filter(|(stem, _)| !stem.is_empty()) else {
        return named(pod, POD_NAME);
    };
    if last.bytes().all(|byte| byte.is_ascii_digit()) && last.len() <= 4 {
        return named(stem, "k8s.statefulset.name");
    }
    if last.len() != SUFFIX_BYTES || !is_generated(last) {
        return named(pod, POD_NAME);
    }
    match stem.rsplit_once('-').filter(|(owner, _)| !owner.is_empty()) {
        // A CronJob's job carries the minute of its schedule since 1970.
        Some((cron_job, minute)) if minute.len() == 8 && minute.bytes().all(|byte| byte.is_ascii_digit()) => {
            named(cron_job, "k8s.cronjob.name")
        }
        // A ReplicaSet's name ends with a hash of its pod template.
        Some((deployment, hash)) if (6..=10).contains(&hash.len()) && is_generated(hash) => {
            named(deployment, "k8s.deployment.name")
        }
        _ => named(stem, "k8s.daemonset.name"),
    }
}

/// Random letters behind a generated pod name.
const SUFFIX_BYTES: usize = 5;

/// The letters that Kubernetes makes names of: no vowels and nothing that looks like one, so that no word comes out.
fn is_generated(text: &str) -> bool {
    text.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        fn check(pod: &str, expected: &str, attribute: &str) {
            let owner = owner(pod, "node-1.example").unwrap();
            assert_eq!((owner.name, owner.attribute), (expected, attribute), "{pod}");
        }
        check("cart-5d4f8c7b9-x2x4z", "cart", "k8s.deployment.name");
        check("shop-cart-6b7f94d7c8-kq2lw", "shop-cart", "k8s.deployment.name");
        check("fluentd-x2x4z", "fluentd", "k8s.daemonset.name");
        check("node-exporter-x2x4z", "node-exporter", "k8s.daemonset.name");
        check("db-0", "db", "k8s.statefulset.name");
        check("my-db-12", "my-db", "k8s.statefulset.name");
        check("backup-28391040-bcdfg", "backup", "k8s.cronjob.name");
        check("debug", "debug", "k8s.pod.name");
        check("my-debug-shell", "my-debug-shell", "k8s.pod.name");
        check("node-2", "node", "k8s.statefulset.name");
        check("-0", "-0", "k8s.pod.name");
        for pod in ["", "node-1.example", "node-1"] {
            assert_eq!(owner(pod, "node-1.example"), None, "{pod}");
        }
    }
}
