//! The hidden subcommand `obi demo-service`: one process of the demo.
//!
//! In: [`DemoServiceArgs`]. Out: a service that prints its address and serves until it is terminated, the shopper,
//! or – by replacing itself – `obi run`. Each asks the kernel to be terminated when the demo dies.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::Context as _;
use axum::Router;
use clap::ValueEnum as _;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::net::TcpListener;

use super::{cart, catalog, frontend, inventory, shopper};

/// Who a process of the demo is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(super) enum Member {
    Inventory,
    Catalog,
    Cart,
    Frontend,
    Shopper,
    Agent,
}

impl Member {
    /// What the agent is there to see: everyone but itself.
    pub(super) fn is_service(self) -> bool {
        self != Self::Agent
    }
}

impl fmt::Display for Member {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no member is skipped");
        out.write_str(value.get_name())
    }
}

/// The address of a service that this one calls, written `NAME=ADDRESS`.
#[derive(Debug, Clone, Copy)]
struct Peer {
    member: Member,
    address: SocketAddr,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, address) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=ADDRESS"))?;
        let address = address.parse().map_err(|error| format!("`{address}` is no address: {error}"))?;
        Ok(Self { member: Member::from_str(name, false)?, address })
    }
}

/// One process of `obi demo`; not meant to be typed.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct DemoServiceArgs {
    /// Who to be
    member: Member,
    /// Process to end with
    #[arg(long)]
    parent: u32,
    /// Services to call
    #[arg(long)]
    peer: Vec<Peer>,
    /// Requests per second (shopper)
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    /// Listen address (agent)
    #[arg(long)]
    listen: Option<SocketAddr>,
}

/// Runs one process of the demo.
///
/// # Errors
/// When it cannot listen, an address it needs is missing, or the parent is gone already.
pub fn demo_service(args: DemoServiceArgs) -> anyhow::Result<ExitCode> {
    end_with(args.parent)?;
    if args.member == Member::Agent {
        return become_agent(args.listen);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?
        .block_on(run(&args))?;
    Ok(ExitCode::SUCCESS)
}

fn end_with(parent: u32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .context("failed to ask for the parent's death signal")?;
    // It may have died before we asked.
    still_child_of(parent, getppid())
}

fn still_child_of(parent: u32, actual: Option<Pid>) -> anyhow::Result<()> {
    let actual = actual.map_or(0, Pid::as_raw_pid);
    anyhow::ensure!(u32::try_from(actual) == Ok(parent), "process {parent} is gone; our parent is {actual}");
    Ok(())
}

/// The death signal survives `execve`, so `obi run` itself need not know that it is part of a demo.
fn become_agent(listen: Option<SocketAddr>) -> anyhow::Result<ExitCode> {
    let executable = std::env::current_exe().context("failed to find our own executable")?;
    let mut command = Command::new(executable);
    command.arg("run");
    if let Some(listen) = listen {
        command.env("OBI_WEB_LISTEN", listen.to_string());
    }
    Err(command.exec()).context("failed to execute `obi run`")
}

async fn run(args: &DemoServiceArgs) -> anyhow::Result<()> {
    let peers: HashMap<Member, SocketAddr> =
        args.peer.iter().map(|peer| (peer.member, peer.address)).collect();
    let address = |member: Member| {
        peers.get(&member).copied().with_context(|| format!("{} needs --peer {member}=ADDRESS", args.member))
    };
    let router = match args.member {
        Member::Inventory => inventory::router(inventory::DEMO_TEMPERS),
        Member::Catalog => catalog::router(address(Member::Inventory)?),
        Member::Cart => cart::router(address(Member::Inventory)?),
        Member::Frontend => frontend::router(address(Member::Catalog)?, address(Member::Cart)?),
        Member::Shopper => return shopper::shop(address(Member::Frontend)?, args.rate).await,
        Member::Agent => anyhow::bail!("the agent is not a service"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.context("failed to listen on 127.0.0.1")?;
    super::say(&format!("{}\n", listener.local_addr().context("failed to read the listener's address")?))?;
    serve(listener, router).await
}

async fn serve(listener: TcpListener, router: Router) -> anyhow::Result<()> {
    axum::serve(listener, router).await.context("failed to serve")
}

/// Real services on loopback for the tests of the routers.
#[cfg(test)]
pub(super) mod test_support {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::body::Bytes;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use crate::command::demo::caller::{Call, CallError, Caller, Reply};

    pub(in crate::command::demo) struct Running {
        pub(in crate::command::demo) address: SocketAddr,
        task: JoinHandle<anyhow::Result<()>>,
        caller: Caller,
    }

    impl Running {
        pub(in crate::command::demo) async fn start(router: Router) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            Self { address, task: tokio::spawn(super::serve(listener, router)), caller: Caller::new() }
        }

        /// An address where no process listens.
        pub(in crate::command::demo) async fn closed_address() -> SocketAddr {
            TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
        }

        /// Sends (method, path, body).
        pub(in crate::command::demo) async fn send(
            &self,
            (method, path, body): (&str, &str, &str),
        ) -> Result<Reply, CallError> {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let call =
                Call { method: method.parse().unwrap(), ..Call::post(self.address, path.to_owned(), body) };
            self.caller.call(call).await
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    pub(in crate::command::demo) fn status(reply: &Result<Reply, CallError>) -> u16 {
        reply.as_ref().expect("the service is up").status.as_u16()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_a_name_and_an_address() {
        let check = |text: &str, expected: Option<(Member, &str)>| {
            let peer = text.parse::<Peer>().ok().map(|peer| (peer.member, peer.address.to_string()));
            assert_eq!(peer, expected.map(|(member, address)| (member, address.to_owned())), "{text}");
        };
        check("catalog=127.0.0.1:80", Some((Member::Catalog, "127.0.0.1:80")));
        check("inventory=[::1]:9", Some((Member::Inventory, "[::1]:9")));
        check("catalog", None);
        check("catalog=here", None);
        check("bakery=127.0.0.1:80", None);
    }

    #[test]
    fn a_child_whose_parent_is_gone_refuses_to_run() {
        let check = |parent, actual, expected| {
            assert_eq!(still_child_of(parent, Pid::from_raw(actual)).is_ok(), expected, "{parent} {actual}");
        };
        check(4711, 4711, true);
        check(4711, 1, false);
        check(4711, 0, false);
    }
}
