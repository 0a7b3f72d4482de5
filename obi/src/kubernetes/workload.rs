//! What a pod belongs to: the name that its users know it by.
//!
//! In: a [`Pod`]. Out: its [`Workload`]. A hash or a number is cut from a name only where the pod itself proves that it
//! is one; no other object is asked for.

use super::pod::{Owner, Pod};

/// What a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload<'a> {
    /// The name for users: of the Deployment, not of its ReplicaSet.
    pub name: &'a str,
    /// Attributes that say what it is, with their values.
    pub attributes: Vec<(&'static str, &'a str)>,
}

/// The minute of a CronJob's schedule and the pod's creation are not farther apart, seconds: jobs may be late.
const SCHEDULE_SECONDS: i64 = 7 * 24 * 3600;

/// What `pod` belongs to, if its source says so.
#[must_use]
pub fn workload(pod: &Pod) -> Option<Workload<'_>> {
    let of = |name, attributes| Some(Workload { name, attributes });
    if !pod.is_whole {
        return None;
    }
    let Some(Owner { kind, name }) = pod.owner.as_ref().filter(|owner| !owner.name.is_empty()) else {
        return of(&pod.name, Vec::new());
    };
    match &**kind {
        "ReplicaSet" => {
            if let Some(deployment) = without(name, &pod.labels.rollout_hash) {
                return of(deployment, vec![("k8s.replicaset.name", name)]);
            }
            match without(name, &pod.labels.template_hash) {
                Some(deployment) => {
                    of(deployment, vec![("k8s.deployment.name", deployment), ("k8s.replicaset.name", name)])
                }
                None => of(name, vec![("k8s.replicaset.name", name)]),
            }
        }
        "Job" => match scheduled(name, pod.created) {
            Some(cron_job) => of(cron_job, vec![("k8s.cronjob.name", cron_job), ("k8s.job.name", name)]),
            None => of(name, vec![("k8s.job.name", name)]),
        },
        "StatefulSet" => of(name, vec![("k8s.statefulset.name", name)]),
        "DaemonSet" => of(name, vec![("k8s.daemonset.name", name)]),
        "ReplicationController" => of(name, vec![("k8s.replicationcontroller.name", name)]),
        // A static pod: its name ends with the node's.
        "Node" => of(without(&pod.name, name).unwrap_or(&pod.name), Vec::new()),
        _ => of(name, Vec::new()),
    }
}

/// `name` without `-end` at its end.
fn without<'a>(name: &'a str, end: &str) -> Option<&'a str> {
    let stem = name.strip_suffix(end).filter(|_| !end.is_empty())?.strip_suffix('-')?;
    (!stem.is_empty()).then_some(stem)
}

/// The CronJob that made a Job, whose name ends with the minute of the schedule since 1970.
fn scheduled(job: &str, created: i64) -> Option<&str> {
    let (stem, minute) = job.rsplit_once('-')?;
    let is_minute = minute.len() == 8 && minute.bytes().all(|byte| byte.is_ascii_digit());
    let minute: i64 = minute.parse().ok().filter(|_| is_minute && !stem.is_empty())?;
    ((minute * 60).abs_diff(created) <= SCHEDULE_SECONDS.unsigned_abs()).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, kind: &str, owner: &str) -> Pod {
        let owner = Owner { kind: kind.into(), name: owner.into() };
        Pod { name: name.into(), owner: Some(owner), is_whole: true, ..Pod::default() }
    }

    #[track_caller]
    fn check(pod: &Pod, name: &str, attributes: &[(&str, &str)]) {
        let found = workload(pod).unwrap();
        assert_eq!((found.name, &found.attributes[..]), (name, attributes));
    }

    #[test]
    fn a_hash_is_cut_only_when_the_pod_proves_it() {
        let mut cart = pod("cart-5d4f8c7b9-x2x4z", "ReplicaSet", "cart-5d4f8c7b9");
        // Hand-made, and looks generated.
        check(&cart, "cart-5d4f8c7b9", &[("k8s.replicaset.name", "cart-5d4f8c7b9")]);
        cart.labels.template_hash = "5d4f8c7b9".into();
        let both = [("k8s.deployment.name", "cart"), ("k8s.replicaset.name", "cart-5d4f8c7b9")];
        check(&cart, "cart", &both);
        cart.labels.template_hash = "d4f8c7b9".into();
        check(&cart, "cart-5d4f8c7b9", &both[1..]);
        cart.labels.template_hash = "cart-5d4f8c7b9".into();
        check(&cart, "cart-5d4f8c7b9", &both[1..]);
        cart.labels.rollout_hash = "5d4f8c7b9".into();
        check(&cart, "cart", &both[1..]);
    }

    #[test]
    fn a_scheduled_job_belongs_to_its_cron_job() {
        let mut job = pod("backup-29500000-bcdfg", "Job", "backup-29500000");
        job.created = 29_500_000 * 60 + 3600;
        check(&job, "backup", &[("k8s.cronjob.name", "backup"), ("k8s.job.name", "backup-29500000")]);
        job.created += 8 * 24 * 3600;
        check(&job, "backup-29500000", &[("k8s.job.name", "backup-29500000")]);
        check(&pod("p", "Job", "import-v2"), "import-v2", &[("k8s.job.name", "import-v2")]);
        check(&pod("p", "Job", "-29500000"), "-29500000", &[("k8s.job.name", "-29500000")]);
    }

    #[test]
    fn others() {
        check(&pod("db-0", "StatefulSet", "db"), "db", &[("k8s.statefulset.name", "db")]);
        check(&pod("log-x", "DaemonSet", "log"), "log", &[("k8s.daemonset.name", "log")]);
        let controller = [("k8s.replicationcontroller.name", "old")];
        check(&pod("old-x", "ReplicationController", "old"), "old", &controller);
        check(&pod("x", "SparkApplication", "report"), "report", &[]);
        check(&pod("etcd-node-1", "Node", "node-1"), "etcd", &[]);
        check(&pod("etcd", "Node", "node-1"), "etcd", &[]);
        check(&Pod { owner: None, ..pod("debug-x2x4z", "", "") }, "debug-x2x4z", &[]);
        check(&pod("debug", "ReplicaSet", ""), "debug", &[]);
        assert_eq!(workload(&Pod { is_whole: false, ..pod("db-0", "StatefulSet", "db") }), None);
    }
}
