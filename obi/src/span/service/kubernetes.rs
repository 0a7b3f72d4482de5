//! A pod's name to the workload that owns it, without asking an API server.
//!
//! In: the host name inside the pod, which is the pod's name. Out: the owner's name and its attribute. It goes by the
//! shape of names that Kubernetes generates: a hand-made pod whose name has that very shape is taken for generated.

/// What owns a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    /// Name of the workload.
    pub(super) name: &'a str,
    /// Resource attribute that says what sort of workload it is.
    pub(super) attribute: &'static str,
}

/// The owner of the pod with this name. `None` without a name, or when it is the node's: then the pod uses the
/// node's network, and the name tells nothing of the pod.
pub(super) fn owner<'a>(pod: &'a str, node: &str) -> Option<Owner<'a>> {
    let short = |name: &'a str| name.split('.').next().unwrap_or(name);
    if pod.is_empty() || pod == node || Some(short(pod)) == node.split('.').next() {
        return None;
    }
    let named = |name, attribute| Some(Owner { name, attribute });
    let Some((stem, last)) = pod.rsplit_once('-').filter(|(stem, _)| !stem.is_empty()) else {
        return named(pod, "k8s.pod.name");
    };
    if last.bytes().all(|byte| byte.is_ascii_digit()) && last.len() <= 4 {
        return named(stem, "k8s.statefulset.name");
    }
    if last.len() != SUFFIX_BYTES || !is_generated(last) {
        return named(pod, "k8s.pod.name");
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
