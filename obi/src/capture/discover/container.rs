//! Which container and which pod a process runs in, by its control groups.
//!
//! In: `/proc/PID/cgroup`, of version 1, 2 or both. Out: the container's id, the runtime where the path names it, and
//! the pod's UID. Docker, containerd, CRI-O and Podman, under systemd or cgroupfs, as seen from any cgroup namespace.
//! Refuses to ask a runtime.

use crate::kubernetes::PodUid;

/// A container, as far as control groups say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Its full id; empty outside of containers.
    pub id: String,
    /// `docker`, `containerd`, `cri-o` or `podman`; empty where the path does not say.
    pub runtime: &'static str,
    /// The Kubernetes pod that it belongs to; `None` outside of pods, and for containers of the agent's own pod, whose
    /// control group is above what a cgroup namespace shows by name.
    pub pod: Option<PodUid>,
}

/// How the runtimes call a container's control group: what stands before the id.
const PREFIXES: [(&str, &str); 7] = [
    ("docker-", "docker"),
    ("cri-containerd-", "containerd"),
    ("containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "cri-o"),
    ("libpod-", "podman"),
    ("podman-", "podman"),
];

/// Directories in which cgroupfs drivers put containers.
const PARENTS: [(&str, &str); 3] =
    [("docker", "docker"), ("libpod_parent", "podman"), ("k8s.io", "containerd")];

/// The container that this text names, in any of its lines: under version 1 with systemd the unified hierarchy may
/// name the runtime's own unit.
#[must_use]
pub fn container(text: &[u8]) -> Container {
    let text = String::from_utf8_lossy(text);
    let mut found = Container::default();
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        let parts: Vec<&str> = path.split('/').collect();
        if found.id.is_empty()
            && let Some((id, runtime)) = of_path(&parts)
        {
            (found.id, found.runtime) = (id.to_owned(), runtime);
        }
        // Innermost, as of a kubelet inside a container.
        found.pod = found.pod.or_else(|| parts.iter().rev().find_map(|part| pod(part)));
    }
    found
}

/// The pod of a part of a path: `kubepods-burstable-pod<uid>.slice` of systemd's driver, `pod<uid>` of cgroupfs's, and
/// the first part of `kubepods-pod<uid>.slice:cri-containerd:<id>`.
fn pod(part: &str) -> Option<PodUid> {
    let part = part.split(':').next().unwrap_or(part);
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.rfind("-pod") {
        Some(at) => &name[at + "-pod".len()..],
        None => name.strip_prefix("pod")?,
    };
    PodUid::parse(uid)
}

/// Id and runtime of the innermost container of a path.
fn of_path<'a>(parts: &[&'a str]) -> Option<(&'a str, &'static str)> {
    (0..parts.len()).rev().find_map(|at| {
        let part = parts[at];
        // containerd with systemd as its driver, given `slice:prefix:id`.
        if let Some((_, "cri-containerd", id)) = triple(part).filter(|(_, _, id)| is_id(id)) {
            return Some((id, "containerd"));
        }
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let prefixed =
            PREFIXES.iter().find_map(|(prefix, runtime)| Some((name.strip_prefix(prefix)?, *runtime)));
        let parent = at.checked_sub(1).map_or("", |above| parts[above]);
        let under = || PARENTS.iter().find(|(name, _)| *name == parent).map_or("", |(_, runtime)| *runtime);
        let (id, runtime) = prefixed.unwrap_or_else(|| (name, under()));
        is_id(id).then_some((id, runtime))
    })
}

fn triple(part: &str) -> Option<(&str, &str, &str)> {
    let mut fields = part.splitn(3, ':');
    Some((fields.next()?, fields.next()?, fields.next()?))
}

/// 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "7be92808767a667f35c8505cbf40d14e931ef6db5b0210329cf193b15ba9d605";

    #[test]
    fn containers() {
        /// `ID` stands for an id.
        fn check(text: &str, expected: Option<&'static str>) {
            let found = container(text.replace("ID", ID).as_bytes());
            let found = (found.id.as_str(), found.runtime);
            assert_eq!(found, expected.map_or(("", ""), |runtime| (ID, runtime)), "{text}");
        }
        // Version 2.
        check("0::/system.slice/docker-ID.scope\n", Some("docker"));
        check("0::/docker/ID\n", Some("docker"));
        check(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-ID.scope",
            Some("containerd"),
        );
        check("0::/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container", Some("cri-o"));
        check("0::/kubepods/besteffort/pod1f0e/ID\n", Some(""));
        check("0::/machine.slice/libpod-ID.scope/container\n", Some("podman"));
        check(
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope\n",
            Some("podman"),
        );
        check("0::/libpod_parent/libpod-ID\n", Some("podman"));
        check("0::/k8s.io/ID\n", Some("containerd"));
        check(
            "0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:ID\n",
            Some("containerd"),
        );
        check("0::/../docker-ID.scope\n", Some("docker"));
        check("0::/system.slice/docker-ID.scope/init.scope\n", Some("docker"));
        // Version 1, and both.
        check("12:pids:/docker/ID\n1:name=systemd:/docker/ID\n", Some("docker"));
        check("4:memory:/kubepods/burstable/pod1/ID\n1:name=systemd:/kubepods/burstable/pod1/ID\n", Some(""));
        check("3:cpu,cpuacct:/kubepods.slice/kubepods-pod1.slice/crio-ID.scope\n", Some("cri-o"));
        check("0::/system.slice/containerd.service\n5:pids:/docker/ID\n", Some("docker"));
        check("2:cpuset:/machine.slice/libpod-ID.scope\n", Some("podman"));
        check("9:cpuset:/ecs/task/ID\n", Some(""));
        // No containers.
        check("0::/system.slice/nginx.service\n", None);
        check("0::/machine.slice/libpod-conmon-ID.scope\n", None);
        check("0::/machine.slice/crio-conmon-ID.scope\n", None);
        check("0::/system.slice/docker.service\n", None);
        check("0::/user.slice/user-0.slice/session-3.scope\n", None);
        check("0::/\n", None);
        check("", None);
        check("nonsense", None);
    }

    #[test]
    fn pods() {
        /// `ID` stands for a container's id, `UID` for a pod's, `U_D` for the same as systemd has it.
        fn check(text: &str, expected: Option<&str>) {
            const UID: &str = "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab";
            let written = text.replace("UID", UID).replace("U_D", &UID.replace('-', "_")).replace("ID", ID);
            let pod = container(written.as_bytes()).pod.map(|pod| pod.to_string());
            assert_eq!(pod, expected.map(|expected| expected.replace("UID", UID)), "{text}");
        }
        let pod = Some("UID");
        // systemd's driver: containerd, CRI-O, Docker; with and without a class of service.
        check(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_D.slice/cri-containerd-ID.scope",
            pod,
        );
        check("0::/kubepods.slice/kubepods-podU_D.slice/cri-containerd-ID.scope", pod);
        check("0::/kubepods.slice/kubepods-podU_D.slice/crio-ID.scope/container", pod);
        check(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_D.slice/docker-ID.scope",
            pod,
        );
        check("0::/system.slice/containerd.service/kubepods-burstable-podU_D.slice:cri-containerd:ID", pod);
        // cgroupfs's.
        check("0::/kubepods/burstable/podUID/ID", pod);
        check("0::/kubepods/podUID/ID", pod);
        check("0::/kubepods/podUID/crio-ID", pod);
        // Below a container, and deeper.
        check("0::/kubepods/podUID/ID/init.scope", pod);
        // Version 1, and beside an empty version 2.
        check(
            "11:memory:/kubepods/burstable/podUID/ID\n1:name=systemd:/kubepods/burstable/podUID/ID\n0::/\n",
            pod,
        );
        check(
            "0::/system.slice/containerd.service\n4:cpu:/kubepods.slice/kubepods-podU_D.slice/crio-ID.scope",
            pod,
        );
        // From the agent's own cgroup namespace: of another pod, and of its own.
        check("0::/../../kubepods-burstable-podU_D.slice/cri-containerd-ID.scope", pod);
        check("0::/../../../podUID/ID", pod);
        check("0::/../cri-containerd-ID.scope", None);
        // A kubelet inside a container: the innermost counts.
        check(
            "0::/docker/ID/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_D.slice/cri-containerd-ID.scope",
            pod,
        );
        check("0::/kubepods/pod00000000-0000-0000-0000-000000000000/ID/kubepods/podUID/ID", pod);
        // A static pod has the hash of its manifest.
        let hash = "0123456789abcdef0123456789abcdef";
        check(&format!("0::/kubepods/burstable/pod{hash}/ID"), Some(hash));
        check(&format!("0::/kubepods.slice/kubepods-pod{hash}.slice/crio-ID.scope"), Some(hash));
        // Talos's own services, Podman's pods, names that look alike.
        check("0::/podruntime/kubelet", None);
        check("0::/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope", None);
        check("0::/kubepods/podx/ID", None);
        check("0::/kubepods-pod.slice/", None);
        check("0::/", None);
        check("", None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<Vec<u8>>()) {
            prop_assert!([0, 64].contains(&container(&text).id.len()));
        }

        #[test]
        fn the_pod_is_found_wherever_it_stands(
            before in "(/[a-z.-]{0,12}){0,3}",
            between in prop_oneof![Just("/kubepods-burstable-pod"), Just("/pod"), Just("/kubelet-kubepods-pod")],
            behind in prop_oneof![Just(""), Just(".slice")],
            deeper in "(/[a-z]{0,12}){0,3}",
        ) {
            let text = format!("0::{before}{between}4f4f5e6e-02ab-4c1d-9a0b-0123456789ab{behind}/{ID}{deeper}\n");
            let found = container(text.as_bytes());
            prop_assert_eq!(found.id, ID);
            prop_assert_eq!(found.pod, PodUid::parse("4f4f5e6e-02ab-4c1d-9a0b-0123456789ab"));
        }
    }
}
