//! Network namespaces: hosts of their own on this machine.
//!
//! In: commands to be run inside. Out: the same commands, wrapped; a path between two hosts whose addresses are
//! translated on the way. All of it is removed with its owner. Refuses to know what is run.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::process::{READY, run};
use crate::seed::unique;

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// One in which loopback is up.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn make() -> anyhow::Result<Self> {
        let name = format!("obi-{}", unique());
        ip(&["netns", "add", &name])?;
        let namespace = Self(name);
        ip(&["-netns", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// `command`, to be run inside.
    #[must_use]
    pub fn inside(&self, command: Command) -> Command {
        let mut wrapped = Command::new("ip");
        wrapped.args(["netns", "exec", &self.0]).arg(command.get_program()).args(command.get_args());
        wrapped
    }

    /// One that is joined to this machine: it, this machine's address there, and its own.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn joined() -> anyhow::Result<(Self, Ipv4Addr, Ipv4Addr)> {
        let namespace = Self::make()?;
        // Other tests may do the same at this moment.
        let (third, pair) = (fastrand::u8(..), fastrand::u8(..64) * 4);
        let [here, there] = [1, 2].map(|last| Ipv4Addr::new(10, 232, third, pair + last));
        let link = format!("obi{third:02x}{pair:02x}{:x}", std::process::id());
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &namespace.0])?;
        ip(&["address", "add", &format!("{here}/30"), "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        ip(&["-netns", &namespace.0, "address", "add", &format!("{there}/30"), "dev", "uplink"])?;
        ip(&["-netns", &namespace.0, "link", "set", "uplink", "up"])?;
        Ok((namespace, here, there))
    }

    fn address(&self, link: &str, address: Ipv4Addr) -> anyhow::Result<()> {
        ip(&["-netns", &self.0, "address", "add", &format!("{address}/24"), "dev", link])?;
        ip(&["-netns", &self.0, "link", "set", link, "up"])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "delete", &self.0]) {
            eprintln!("failed to delete the namespace {}: {error:#}", self.0);
        }
    }
}

/// A client's and a server's host, and a router between them that translates both addresses of each connection: the
/// client knows the router only, and so does the server.
#[derive(Debug)]
pub struct Translated {
    /// Where clients run.
    pub client: Namespace,
    /// Where the server runs.
    pub server: Namespace,
    /// Where the server listens.
    pub listens: SocketAddr,
    /// Where clients reach it.
    pub reached: SocketAddr,
    _router: Namespace,
}

impl Translated {
    /// Hosts for a server at `port`, which clients reach at another one.
    ///
    /// # Errors
    /// When `ip` or `nft` fails.
    pub fn make(port: u16) -> anyhow::Result<Self> {
        const CLIENT: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 231, 1, 2), Ipv4Addr::new(10, 231, 1, 1)];
        const SERVER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 231, 2, 2), Ipv4Addr::new(10, 231, 2, 1)];
        let (client, server, router) = (Namespace::make()?, Namespace::make()?, Namespace::make()?);
        for (host, [own, other], link) in [(&client, CLIENT, "to-client"), (&server, SERVER, "to-server")] {
            let peer = ["type", "veth", "peer", "name", link, "netns", &router.0];
            ip(&[&["link", "add", "uplink", "netns", &host.0][..], &peer].concat())?;
            host.address("uplink", own)?;
            router.address(link, other)?;
        }
        let mut forward = Command::new("sh");
        forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        run("forwarding", router.inside(forward), READY)?;
        let (reached, listens) = (SocketAddr::from((CLIENT[1], 80)), SocketAddr::from((SERVER[0], port)));
        let rules = format!(
            "table ip translation {{
                chain before {{ type nat hook prerouting priority -100; tcp dport {} dnat to {listens}; }}
                chain behind {{ type nat hook postrouting priority 100; masquerade random; }}
            }}",
            reached.port()
        );
        nft(&router, &rules)?;
        Ok(Self { client, server, listens, reached, _router: router })
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run("ip", command, READY).map(drop)
}

fn nft(namespace: &Namespace, rules: &str) -> anyhow::Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]);
    let mut child = namespace.inside(command).stdin(Stdio::piped()).spawn().context("run nft")?;
    child.stdin.take().context("nft has an input")?.write_all(rules.as_bytes())?;
    let status = child.wait()?;
    if !status.success() {
        bail!("nft ended with {status} on {rules}");
    }
    Ok(())
}
