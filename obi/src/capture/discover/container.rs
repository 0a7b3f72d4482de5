//! Which container a process runs in, by its control groups.
//!
//! In: `/proc/PID/cgroup`, of version 1, 2 or both. Out: the container's id, and the runtime where the path names it.
//! Docker, containerd, CRI-O and Podman, under systemd or cgroupfs, as seen from any cgroup namespace. Refuses to ask a
//! runtime.

/// A container, as far as control groups tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Its full id; empty outside of containers.
    pub id: String,
    /// `docker`, `containerd`, `cri-o` or `podman`; empty where the path does not say.
    pub runtime: &'static str,
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

/// The container that this text tells of, in any of its lines: under version 1 with systemd the unified hierarchy may
/// name the runtime's own unit.
pub(super) fn container(text: &[u8]) -> Container {
    let text = String::from_utf8_lossy(text);
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(of_path).next().unwrap_or_default()
}

/// The innermost container of a path.
fn of_path(path: &str) -> Option<Container> {
    let parts: Vec<&str> = path.split('/').collect();
    (0..parts.len()).rev().find_map(|at| {
        let part = parts[at];
        // containerd with systemd as its driver, told `slice:prefix:id`.
        if let Some((_, "cri-containerd", id)) = triple(part).filter(|(_, _, id)| is_id(id)) {
            return Some(Container { id: id.to_owned(), runtime: "containerd" });
        }
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let prefixed =
            PREFIXES.iter().find_map(|(prefix, runtime)| Some((name.strip_prefix(prefix)?, *runtime)));
        let parent = at.checked_sub(1).map_or("", |above| parts[above]);
        let under = || PARENTS.iter().find(|(name, _)| *name == parent).map_or("", |(_, runtime)| *runtime);
        let (id, runtime) = prefixed.unwrap_or_else(|| (name, under()));
        is_id(id).then(|| Container { id: id.to_owned(), runtime })
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
            let expected = expected.map(|runtime| Container { id: ID.to_owned(), runtime });
            assert_eq!(found, expected.unwrap_or_default(), "{text}");
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

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<Vec<u8>>()) {
            prop_assert!([0, 64].contains(&container(&text).id.len()));
        }
    }
}
