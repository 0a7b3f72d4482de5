//! A control plane: etcd and an API server, with certificates of their own.
//!
//! In: their programs. Out: a client with all rights. The API server can be killed and started again. Both end with
//! their owner. There is no controller and no scheduler: the caller that makes a pod also binds it and says that it runs.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::process::{Program, free_port, run};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;

const READY: Duration = Duration::from_secs(180);
const ADMIN: &str = "admin";

/// A running control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    server: Option<Program>,
    _etcd: Program,
    etcd: SocketAddr,
    binary: PathBuf,
    /// Where the API server listens.
    pub(crate) address: SocketAddr,
    files: TempDir,
}

impl ControlPlane {
    /// Of the binary `kube-apiserver`, and the system's etcd.
    pub(crate) fn start(binary: &Path) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        certify(files.path())?;
        fs::write(files.path().join("tokens.csv"), format!("{ADMIN},admin,admin,\"system:masters\"\n"))?;
        let port = || -> anyhow::Result<SocketAddr> { Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?))) };
        let (etcd, peers, address) = (port()?, port()?, port()?);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(files.path().join("etcd")).args([
            "--unsafe-no-fsync",
            "--log-level",
            "error",
        ]);
        for (flag, address) in
            [("--listen-client-urls", etcd), ("--advertise-client-urls", etcd), ("--listen-peer-urls", peers)]
        {
            command.args([flag, &format!("http://{address}")]);
        }
        let store = Program::spawn("etcd", command)?;
        let mut plane = Self { server: None, _etcd: store, etcd, binary: binary.to_owned(), address, files };
        plane.start_server()?;
        Ok(plane)
    }

    /// With all rights.
    pub(crate) fn admin(&self) -> anyhow::Result<Api> {
        Api::new(self.address, &self.authority(), ADMIN)
    }

    /// The certificate that signs the server's.
    pub(crate) fn authority(&self) -> PathBuf {
        self.files.path().join("ca.crt")
    }

    /// A configuration for Helm.
    pub(crate) fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        let server = format!("https://{}", self.address);
        let value: Value = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": self.authority()}}],
            "users": [{"name": "admin", "user": {"token": ADMIN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        });
        let path = self.files.path().join("kubeconfig");
        fs::write(&path, value.to_string())?;
        Ok(path)
    }

    /// Kills the API server, without a word to its clients.
    pub(crate) fn kill_server(&mut self) {
        drop(self.server.take());
    }

    /// Starts the API server and waits until it is ready.
    pub(crate) fn start_server(&mut self) -> anyhow::Result<()> {
        let file = |name: &str| self.files.path().join(name).display().to_string();
        let mut command = Command::new(&self.binary);
        command.args(
            [
                ("--etcd-servers", format!("http://{}", self.etcd)),
                ("--bind-address", self.address.ip().to_string()),
                ("--secure-port", self.address.port().to_string()),
                ("--advertise-address", "10.88.0.1".to_owned()),
                ("--authorization-mode", "RBAC".to_owned()),
                ("--token-auth-file", file("tokens.csv")),
                ("--tls-cert-file", file("server.crt")),
                ("--tls-private-key-file", file("server.key")),
                ("--service-account-issuer", "https://kubernetes.default.svc".to_owned()),
                ("--service-account-key-file", file("accounts.key")),
                ("--service-account-signing-key-file", file("accounts.key")),
                ("--service-cluster-ip-range", "10.96.0.0/16".to_owned()),
                // Without a controller no namespace has an account.
                ("--disable-admission-plugins", "ServiceAccount".to_owned()),
            ]
            .map(|(flag, value)| format!("{flag}={value}")),
        );
        let server = Program::spawn("kube-apiserver", command)?;
        let admin = self.admin()?;
        let begun = Instant::now();
        while !matches!(admin.status("/readyz"), Ok(200)) {
            if !server.is_running()? || begun.elapsed() > READY {
                bail!("the API server is not ready after {:?}: {}", begun.elapsed(), server.stderr()?);
            }
            thread::sleep(Duration::from_millis(100));
        }
        self.server = Some(server);
        Ok(())
    }
}

/// An authority, a certificate of it for loopback, and a key that signs tokens. One certificate that is both is
/// refused by strict clients, ours among them.
fn certify(folder: &Path) -> anyhow::Result<()> {
    const STEPS: [&str; 4] = [
        "genrsa -out accounts.key 2048",
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=kubernetes",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out server.crt -extfile names",
    ];
    fs::write(
        folder.join("names"),
        "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:kubernetes.default.svc\n",
    )?;
    for step in STEPS {
        let mut command = Command::new("openssl");
        command.args(step.split(' ')).current_dir(folder);
        run("openssl", command, READY).context("make certificates")?;
    }
    Ok(())
}
