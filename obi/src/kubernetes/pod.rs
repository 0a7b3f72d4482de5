//! A pod, as far as the agent wants to know it: names, owner, containers, addresses.
//!
//! In: what a source has decoded. Out: [`Pod`], whose size is bounded whatever its author has written. Refuses to know
//! which source it was, and what the names are used for.

use std::net::IpAddr;

use super::PodUid;

/// Annotations that become attributes: what stands behind the prefix.
pub const ANNOTATION_PREFIX: &str = "resource.opentelemetry.io/";

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// The node it runs on.
    pub node: Box<str>,
    /// The object that controls it; `None` for a pod that stands alone.
    pub owner: Option<Owner>,
    /// Owner, labels and annotations were read; a source that knows only names does not have them.
    pub is_whole: bool,
    /// Labels that the agent looks at.
    pub labels: Labels,
    /// Annotations that begin with [`ANNOTATION_PREFIX`], without it; sorted by name.
    pub annotations: Vec<(Box<str>, Box<str>)>,
    /// Hash of the manifest, of the API's copy of a static pod.
    pub manifest: Option<PodUid>,
    /// `metadata.creationTimestamp`, seconds since the Unix epoch; 0 when unknown.
    pub created: i64,
    /// Its containers: ordinary, of initialisation and for debugging.
    pub containers: Vec<Container>,
    /// Its own addresses; none while it has none, or when it uses the node's network.
    pub addresses: Vec<IpAddr>,
    /// A container may be given a name of its own by its environment.
    pub may_name_itself: bool,
    /// It is about to end or has ended: its addresses may be another pod's at any time.
    pub is_ending: bool,
}

/// What controls a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// `ReplicaSet`, `Job`, …
    pub kind: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// Labels that the agent looks at; empty when absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels {
    /// `app.kubernetes.io/instance`.
    pub instance: Box<str>,
    /// `app.kubernetes.io/name`.
    pub name: Box<str>,
    /// `app.kubernetes.io/version`.
    pub version: Box<str>,
    /// `pod-template-hash`, which a Deployment gives its pods.
    pub template_hash: Box<str>,
    /// `rollouts-pod-template-hash`, which an Argo Rollout does.
    pub rollout_hash: Box<str>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Its name in the pod.
    pub name: Box<str>,
    /// The image, as the pod's author wrote it.
    pub image: Box<str>,
    /// Its id at the runtime; empty until that has reported it.
    pub id: Box<str>,
}

/// Most annotations, containers and addresses kept of a pod.
const ANNOTATIONS_MAX: usize = 32;
const CONTAINERS_MAX: usize = 64;
const ADDRESSES_MAX: usize = 8;
/// Longest name, value and image reference, bytes. Kubernetes has 253 and 63 for its own; only values of annotations
/// may be longer.
const TEXT_BYTES: usize = 255;
const IMAGE_BYTES: usize = 512;

/// `text`, cut to what is kept of it.
pub(super) fn short(text: &str) -> Box<str> {
    cut(text, TEXT_BYTES)
}

fn cut(text: &str, bytes: usize) -> Box<str> {
    text[..text.floor_char_boundary(bytes)].into()
}

impl Pod {
    /// The key of its control groups: the manifest's hash of a static pod, else the UID.
    #[must_use]
    pub fn key(&self) -> Option<PodUid> {
        self.manifest.or_else(|| PodUid::parse(&self.uid))
    }

    /// The container with this id. A pod with a single container needs none: the API knows ids only later.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<&Container> {
        if id.is_empty() {
            return None;
        }
        let by_id = self.containers.iter().find(|container| &*container.id == id);
        by_id.or_else(|| match &self.containers[..] {
            [only] if self.is_whole => Some(only),
            _ => None,
        })
    }

    /// Adds a label, if it is one that is looked at.
    pub(super) fn label(&mut self, key: &str, value: &str) {
        let place = match key {
            "app.kubernetes.io/instance" => &mut self.labels.instance,
            "app.kubernetes.io/name" => &mut self.labels.name,
            "app.kubernetes.io/version" => &mut self.labels.version,
            "pod-template-hash" => &mut self.labels.template_hash,
            "rollouts-pod-template-hash" => &mut self.labels.rollout_hash,
            _ => return,
        };
        *place = short(value);
    }

    /// Takes annotations, each name once, in the order of their names.
    pub(super) fn annotate<'a>(&mut self, annotations: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let wanted = annotations.into_iter().filter_map(|(key, value)| {
            let key = key.strip_prefix(ANNOTATION_PREFIX)?;
            (!key.is_empty() && key.len() <= TEXT_BYTES).then_some((key, value))
        });
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort_unstable();
        // The names that make an identity are never those that are left out.
        wanted.sort_by_key(|(key, _)| !key.starts_with("service."));
        wanted.truncate(ANNOTATIONS_MAX);
        self.annotations = wanted.into_iter().map(|(key, value)| (key.into(), short(value))).collect();
    }

    /// The value of an annotation, empty when absent.
    #[must_use]
    pub fn annotation(&self, key: &str) -> &str {
        self.annotations.iter().find(|(present, _)| &**present == key).map_or("", |(_, value)| value)
    }

    /// Adds a container of the specification.
    pub(super) fn add_container(&mut self, name: &str, image: &str) {
        if self.containers.len() < CONTAINERS_MAX {
            let image = cut(image, IMAGE_BYTES);
            self.containers.push(Container { name: short(name), image, id: Box::default() });
        }
    }

    /// The runtime has given a container its id: `containerd://<id>` in the API.
    pub(super) fn identify(&mut self, name: &str, id: &str) {
        let id = id.rsplit("://").next().unwrap_or(id);
        if let Some(container) = self.containers.iter_mut().find(|container| &*container.name == name) {
            container.id = short(id);
        }
    }

    /// Adds an address.
    pub(super) fn add_address(&mut self, address: &str) {
        if let Ok(address) = address.parse::<IpAddr>()
            && self.addresses.len() < ADDRESSES_MAX
            && !self.addresses.contains(&address)
        {
            self.addresses.push(address);
        }
    }
}

/// What an image is called and which version of it it is, by the grammar of references: `tag`, `digest`, or
/// `tag@digest`. Empty where the reference has neither.
#[must_use]
pub fn image(reference: &str) -> (&str, String) {
    let (named, digest) = reference.split_once('@').unwrap_or((reference, ""));
    // A colon before the last slash is that of a port.
    let path = named.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match named[path..].split_once(':') {
        Some((name, tag)) => (&named[..path + name.len()], tag),
        None => (named, ""),
    };
    let version = match (tag, digest) {
        (tag, "") => tag.to_owned(),
        ("", digest) => digest.to_owned(),
        (tag, digest) => format!("{tag}@{digest}"),
    };
    (name, version)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn images() {
        fn check(reference: &str, name: &str, version: &str) {
            assert_eq!(image(reference), (name, version.to_owned()), "{reference}");
        }
        check("nginx", "nginx", "");
        check("nginx:1.27", "nginx", "1.27");
        check("registry.example:5000/shop/cart", "registry.example:5000/shop/cart", "");
        check("registry.example:5000/shop/cart:1.2", "registry.example:5000/shop/cart", "1.2");
        check("cart@sha256:abc", "cart", "sha256:abc");
        check("r:1/cart:2@sha256:abc", "r:1/cart", "2@sha256:abc");
        check("", "", "");
        check(":", "", "");
        check("/:@", "/", "");
    }

    #[test]
    fn a_single_container_needs_no_id() {
        let mut pod = Pod { is_whole: true, ..Pod::default() };
        assert_eq!(pod.container("a"), None);
        pod.add_container("app", "cart:1");
        assert_eq!(pod.container("a").map(|found| &*found.name), Some("app"));
        assert_eq!(pod.container(""), None);
        pod.add_container("proxy", "envoy:1");
        assert_eq!(pod.container("a"), None);
        pod.identify("proxy", "containerd://a");
        pod.identify("none", "containerd://b");
        assert_eq!(pod.container("a").map(|found| &*found.name), Some("proxy"));
        assert_eq!(pod.container("b"), None);
    }

    #[test]
    fn a_hostile_pod_is_bounded() {
        let mut pod = Pod::default();
        let long = "x".repeat(64 << 10);
        let names: Vec<String> = (0..1000).map(|nth| format!("{ANNOTATION_PREFIX}a{nth}")).collect();
        let many = names.iter().map(|name| (name.as_str(), long.as_str()));
        let named = "resource.opentelemetry.io/service.name";
        let too_long = format!("{ANNOTATION_PREFIX}{long}");
        pod.annotate(many.chain([
            (named, "cart"),
            (&too_long, "x"),
            (ANNOTATION_PREFIX, "x"),
            ("other", "x"),
        ]));
        assert_eq!((pod.annotations.len(), pod.annotation("service.name")), (ANNOTATIONS_MAX, "cart"));
        assert!(pod.annotations.iter().all(|(name, value)| name.len() + value.len() <= 2 * TEXT_BYTES));
        for _ in 0..1000 {
            pod.add_container(&long, &long);
            pod.label("app.kubernetes.io/name", &long);
        }
        for nth in 0..1000 {
            pod.add_address(&format!("10.0.{}.{}", nth / 256, nth % 256));
        }
        pod.add_address("nonsense");
        assert_eq!((pod.containers.len(), pod.addresses.len()), (CONTAINERS_MAX, ADDRESSES_MAX));
        assert_eq!(pod.labels.name.len(), TEXT_BYTES);
    }

    proptest! {
        #[test]
        fn any_reference_is_read(reference in ".{0,80}") {
            let _ = image(&reference);
        }
    }
}
