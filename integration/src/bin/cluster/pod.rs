//! Pods: their objects at the API server, and their containers, which runc runs as a kubelet would have it do.
//!
//! In: an API server, a tree of files, a network. Out: processes in the control groups, namespaces and host names of
//! pods. All of it goes with its owner. Refuses to know what an agent makes of it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use integration::process::run;
use integration::seed::unique;
use serde_json::{Value, json};

use crate::api::Api;

pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const PORT: u16 = 8080;
/// Programs in `bin` of a container: a server, and the same under a name that the agent is asked to leave out. busybox
/// knows itself by the beginning of its name.
pub(crate) const SEEN: &str = "busybox";
pub(crate) const UNSEEN: &str = "busybox-unseen";
const CONTAINER: &str = "web";
const IMAGE: &str = "registry.example/shop/web:1.4.2";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A pod that is bound to a node.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) name: String,
    /// What owns it in the end, or its own name.
    pub(crate) owner: String,
}

/// Whose a pod is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner<'a> {
    /// `ReplicaSet`, which is a Deployment's, `Job`, which is a CronJob's, another kind, or empty: nobody's.
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl Pod {
    /// Makes one of a Deployment at the API server, and binds it, as a scheduler does.
    pub(crate) fn make(api: &Api, deployment: &str, node: &str) -> anyhow::Result<Self> {
        Self::make_of(api, Owner { kind: "ReplicaSet", name: deployment }, &json!({}), node)
    }

    /// Makes one with annotations.
    pub(crate) fn make_of(
        api: &Api,
        owner: Owner<'_>,
        annotations: &Value,
        node: &str,
    ) -> anyhow::Result<Self> {
        const HASH: &str = "5d4f8c7b9";
        let controller = match owner.kind {
            "ReplicaSet" => format!("{}-{HASH}", owner.name),
            // Minutes since 1970, as its CronJob names it.
            "Job" => format!("{}-{}", owner.name, std::time::UNIX_EPOCH.elapsed()?.as_secs() / 60),
            _ => owner.name.to_owned(),
        };
        let name =
            if owner.kind.is_empty() { controller.clone() } else { format!("{controller}-{}", unique()) };
        let mut metadata = json!({"name": name, "annotations": annotations, "labels": {"app": owner.name}});
        if !owner.kind.is_empty() {
            let group = if owner.kind == "Job" { "batch/v1" } else { "apps/v1" };
            metadata["ownerReferences"] = json!([{"apiVersion": group, "kind": owner.kind, "name": controller,
                "controller": true, "uid": "11111111-2222-3333-4444-555555555555"}]);
        }
        if owner.kind == "ReplicaSet" {
            metadata["labels"]["pod-template-hash"] = json!(HASH);
        }
        let containers = json!([{"name": CONTAINER, "image": IMAGE}]);
        let made = api.post(
            &pods(""),
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"automountServiceAccountToken": false, "containers": containers}}),
        )?;
        let uid = made["metadata"]["uid"].as_str().context("a pod has a UID")?.to_owned();
        let target = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        api.post(&pods(&format!("/{name}/binding")), &target)?;
        Ok(Self { uid, name, owner: owner.name.to_owned() })
    }

    /// Says at the API server that its container runs, as a kubelet does some tenths of a second after it is so.
    pub(crate) fn report(&self, api: &Api, id: &str, address: Ipv4Addr) -> anyhow::Result<()> {
        let status: Value = json!({"status": {
            "phase": "Running", "podIP": address.to_string(), "podIPs": [{"ip": address.to_string()}],
            "containerStatuses": [{"name": CONTAINER, "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{id}"), "state": {"running": {"startedAt": null}}}],
        }});
        api.patch(&pods(&format!("/{}/status", self.name)), &status).map(drop)
    }

    /// Removes it at the API server.
    pub(crate) fn remove(&self, api: &Api) -> anyhow::Result<()> {
        api.delete(&pods(&format!("/{}", self.name)))
    }
}

fn pods(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods{rest}")
}

/// Where the pods' network begins.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// A container that runs, in a network namespace of its own.
#[derive(Debug)]
pub(crate) struct Container {
    /// 64 hexadecimal digits.
    pub(crate) id: String,
    pub(crate) address: Ipv4Addr,
    state: PathBuf,
    link: String,
}

/// What all containers have.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// `root` in it is their tree of files.
    folder: PathBuf,
}

impl Runtime {
    /// A tree of one static program, and a bridge in the network namespace that this process is in.
    pub(crate) fn make(folder: &Path) -> anyhow::Result<Self> {
        for step in ["link set lo up", "link add pods type bridge", "link set pods up"] {
            ip(step)?;
        }
        ip(&format!("address add {GATEWAY}/24 dev pods"))?;
        let root = folder.join("root");
        for name in ["bin", "www", "proc", "sys", "dev", "tmp"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in [SEEN, UNSEEN] {
            fs::copy("/bin/busybox", root.join("bin").join(name)).context("copy /bin/busybox")?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Starts a container of `pod` that serves at `address`; `program` is a name in `bin`.
    pub(crate) fn start(&self, pod: &Pod, address: Ipv4Addr, program: &str) -> anyhow::Result<Container> {
        let id: String = (0..64).map(|_| fastrand::digit(16)).collect();
        let link = format!("p{}", &id[..12]);
        let container = Container { id, address, state: self.folder.join("state"), link };
        let Container { id, link, .. } = &container;
        ip(&format!("netns add {link}"))?;
        ip(&format!("link add {link} type veth peer name eth0 netns {link}"))?;
        ip(&format!("link set {link} master pods up"))?;
        for step in
            [format!("address add {address}/24 dev eth0"), "link set eth0 up".into(), "link set lo up".into()]
        {
            ip(&format!("-netns {link} {step}"))?;
        }
        let bundle = self.folder.join(id);
        fs::create_dir_all(&bundle)?;
        fs::write(bundle.join("config.json"), self.bundle(pod, &container, program).to_string())?;
        let mut command = Command::new("runc");
        command
            .arg("--root")
            .arg(&container.state)
            .args(["run", "--detach", "--bundle"])
            .arg(&bundle)
            .arg(id);
        // What it leaves behind would hold a pipe open.
        let mut quiet = Command::new("sh");
        quiet
            .args(["-c", "\"$@\" >\"$0\" 2>&1 </dev/null || { cat \"$0\" >&2; exit 1; }"])
            .arg(bundle.join("log"));
        quiet.arg(command.get_program()).args(command.get_args());
        run("runc", quiet, TIMEOUT)?;
        Ok(container)
    }

    fn bundle(&self, pod: &Pod, container: &Container, program: &str) -> Value {
        let mount = |place: &str, kind: &str| json!({"destination": place, "type": kind, "source": kind});
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
        let network = json!({"type": "network", "path": format!("/run/netns/{}", container.link)});
        json!({
            "ociVersion": "1.0.2",
            "hostname": pod.name,
            "root": {"path": self.folder.join("root"), "readonly": true},
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": true,
                "args": [format!("/bin/{program}"), "httpd", "-f", "-p", PORT.to_string(), "-h", "/www"],
                "env": ["PATH=/bin", format!("HOSTNAME={}", pod.name)]},
            "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs")],
            "linux": {"cgroupsPath": format!("/kubepods/burstable/pod{}/{}", pod.uid, container.id),
                "namespaces": namespaces.into_iter().chain([network]).collect::<Vec<_>>()},
        })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut command = Command::new("runc");
        command.arg("--root").arg(&self.state).args(["delete", "--force", &self.id]);
        let ended = run("runc", command, TIMEOUT).map(drop);
        // The link first: a namespace goes away some time after it is removed.
        let steps = [ip(&format!("link delete {}", self.link)), ip(&format!("netns delete {}", self.link))];
        for error in [ended].into_iter().chain(steps).filter_map(Result::err) {
            eprintln!("failed to remove the container {}: {error:#}", self.id);
        }
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    run("ip", command, TIMEOUT).map(drop)
}
