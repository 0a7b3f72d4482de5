//! Names of pods out of names of log folders, which the kubelet keeps for every container that has begun.
//!
//! In: `/var/log/pods` and `/var/log/containers`. Out: pods that have names and nothing else. Refuses to read a log.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

use crate::clock::monotonic_ns;
use crate::kubernetes::pod::{Container, Pod, short};
use crate::kubernetes::{PodUid, Pods};

/// Entries looked at of one folder.
const ENTRIES_MAX: usize = 8192;

/// Folders of logs, held open: they lie where only the start may look.
#[derive(Debug)]
pub struct Folders {
    pods: OwnedFd,
    containers: Option<OwnedFd>,
    node: Box<str>,
}

impl Folders {
    /// The folder of pods, and beside it that of containers; `None` where there is none.
    #[must_use]
    pub fn find(pods: &Path, node: &str) -> Option<Self> {
        let containers = pods.parent().and_then(|parent| open(&parent.join("containers")));
        Some(Self { pods: open(pods)?, containers, node: node.into() })
    }

    /// Puts the pods whose folders are there.
    pub fn look(&self, table: &Pods) {
        let mut found: HashMap<PodUid, Pod> = HashMap::new();
        each(&self.pods, |name| {
            if let Some(pod) = of_folder(name)
                && let Some(uid) = pod.key()
            {
                found.insert(uid, Pod { node: self.node.clone(), ..pod });
            }
        });
        let mut by_name: HashMap<(Box<str>, Box<str>), Vec<Container>> = HashMap::new();
        if let Some(containers) = &self.containers {
            each(containers, |name| {
                if let Some((namespace, pod, container)) = of_link(name) {
                    by_name.entry((namespace.into(), pod.into())).or_default().push(container);
                }
            });
        }
        let now = monotonic_ns();
        table.retain_names(&found.keys().copied().collect::<HashSet<_>>(), now);
        for mut pod in found.into_values() {
            let key = (pod.namespace.clone(), pod.name.clone());
            pod.containers = by_name.get(&key).cloned().unwrap_or_default();
            pod.containers.sort_by(|a, b| a.id.cmp(&b.id));
            pod.containers.truncate(64);
            table.put(pod, now);
        }
    }
}

/// The folder at `path`, in the root of the machine's first process where ours does not show it.
pub(super) fn open(path: &Path) -> Option<OwnedFd> {
    let outside = Path::new("/proc/1/root").join(path.strip_prefix("/").ok()?);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    [path, &outside].into_iter().find_map(|path| openat(CWD, path, flags, Mode::empty()).ok())
}

fn each(folder: &OwnedFd, mut take: impl FnMut(&str)) {
    // Opens it again by `.`: entries are read from the beginning each time.
    let Ok(entries) = Dir::read_from(folder) else { return };
    for entry in entries.take(ENTRIES_MAX).flatten() {
        if let Ok(name) = entry.file_name().to_str() {
            take(name);
        }
    }
}

/// `<namespace>_<pod>_<uid>`.
fn of_folder(name: &str) -> Option<Pod> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && ![namespace, pod].contains(&"");
    PodUid::parse(uid).filter(|_| is_whole)?;
    Some(Pod { uid: short(uid), name: short(pod), namespace: short(namespace), ..Pod::default() })
}

/// `<pod>_<namespace>_<container>-<id>.log`.
fn of_link(name: &str) -> Option<(&str, &str, Container)> {
    let mut parts = name.strip_suffix(".log")?.splitn(3, '_');
    let (pod, namespace, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (container, id) = rest.rsplit_once('-')?;
    let is_whole = id.len() == 64 && ![pod, namespace, container].contains(&"");
    is_whole.then(|| {
        let container = Container { name: short(container), id: short(id), image: Box::default() };
        (namespace, pod, container)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab";
    const ID: &str = "7be92808767a667f35c8505cbf40d14e931ef6db5b0210329cf193b15ba9d605";

    #[test]
    fn names_of_folders() {
        fn check(name: &str, expected: Option<(&str, &str)>) {
            let found = of_folder(&name.replace("UID", UID));
            let found = found.as_ref().map(|pod| (&*pod.namespace, &*pod.name));
            assert_eq!(found, expected, "{name}");
        }
        check("shop_cart-5d4f8c7b9-x2x4z_UID", Some(("shop", "cart-5d4f8c7b9-x2x4z")));
        check(
            "kube-system_etcd-node-1_0123456789abcdef0123456789abcdef",
            Some(("kube-system", "etcd-node-1")),
        );
        check("shop_cart_UID_more", None);
        check("_cart_UID", None);
        check("shop__UID", None);
        check("shop_cart_12", None);
        check("shop", None);
        check("", None);
    }

    #[test]
    fn folders_become_pods_with_their_containers() {
        let log = tempfile::tempdir().unwrap();
        let make = |folder: &str| std::fs::create_dir_all(log.path().join(folder)).unwrap();
        make(&format!("pods/shop_cart_{UID}/app"));
        make("pods/other");
        make("containers");
        let link = log.path().join(format!("containers/cart_shop_my-app-{ID}.log"));
        std::os::unix::fs::symlink("/nowhere", link).unwrap();
        std::fs::write(log.path().join("containers/x.log"), "").unwrap();
        let folders = Folders::find(&log.path().join("pods"), "node-1").unwrap();
        let pods = Pods::default();
        let uid = PodUid::parse(UID).unwrap();
        // Each look sees everything again.
        for _ in 0..2 {
            folders.look(&pods);
            let pod = pods.get(uid).unwrap();
            assert_eq!((&*pod.name, &*pod.namespace, &*pod.node), ("cart", "shop", "node-1"));
            assert_eq!(pod.container(ID).map(|found| &*found.name), Some("my-app"));
            assert_eq!(pods.view().pods, 1);
        }
        std::fs::remove_dir_all(log.path().join(format!("pods/shop_cart_{UID}"))).unwrap();
        folders.look(&pods);
        assert_eq!((pods.view().pods, pods.view().ended), (0, 1));
        assert!(Folders::find(&log.path().join("none"), "").is_none());
    }

    proptest! {
        #[test]
        fn any_name_is_read(name in ".{0,200}") {
            of_folder(&name);
            of_link(&name);
        }
    }
}
