//! Certificates for a test: an authority, a server on loopback, a client.
//!
//! In: nothing. Out: PEM files made by `openssl`, in a folder that goes when its owner does. Refuses to know TLS.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::run;

const PATIENCE: Duration = Duration::from_secs(30);

/// An authority and two certificates of it: `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Makes them.
    ///
    /// # Errors
    /// When `openssl` is missing or fails.
    pub fn new() -> anyhow::Result<Self> {
        let made = Self { folder: tempfile::tempdir()? };
        made.make("ca", &["-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign"])?;
        let (authority, key) = (made.path("ca.pem"), made.path("ca.key"));
        let signed =
            ["-CA", &authority.to_string_lossy(), "-CAkey", &key.to_string_lossy()].map(str::to_owned);
        for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
            let usage = format!("extendedKeyUsage={usage}");
            let mut arguments = vec!["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"];
            arguments.extend(["-addext", &usage, "-addext", "basicConstraints=critical,CA:FALSE"]);
            arguments.extend(signed.iter().map(String::as_str));
            made.make(name, &arguments)?;
        }
        Ok(made)
    }

    /// The path of one of the files.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn make(&self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-days", "2", "-keyout"]).arg(self.path(&format!("{name}.key")));
        command.arg("-out").arg(self.path(&format!("{name}.pem"))).args(arguments);
        run("openssl", command, PATIENCE).map(drop)
    }
}
