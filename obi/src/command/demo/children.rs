//! All processes of the demo: who needs whose address, and in which order they start and stop.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;

use super::child::{Child, Launch};
use super::promise::Promise;
use super::service::Member;

/// In order of starting. They are stopped in the order of [`STOPPING`].
#[derive(Default)]
pub(super) struct Children {
    all: Vec<Child>,
    /// What the agent reads goes after it.
    promise: Option<Promise>,
}

/// First the load, then from the front to the back, last the agent: it sees every exchange end.
const STOPPING: [Member; 6] =
    [Member::Shopper, Member::Frontend, Member::Cart, Member::Catalog, Member::Inventory, Member::Agent];

impl Children {
    /// Starts the services and the shopper. What was started before an error is still there to be stopped.
    pub(super) fn start_shop(&mut self, rate: f64) -> anyhow::Result<()> {
        let inventory = self.start_service(Launch::new(Member::Inventory))?;
        let catalog = self.start_service(Launch::new(Member::Catalog).peer(Member::Inventory, inventory))?;
        let cart = self.start_service(Launch::new(Member::Cart).peer(Member::Inventory, inventory))?;
        let frontend = Launch::new(Member::Frontend).peer(Member::Catalog, catalog).peer(Member::Cart, cart);
        let frontend = self.start_service(frontend)?;
        self.all
            .push(Child::start(Launch::new(Member::Shopper).peer(Member::Frontend, frontend).rate(rate))?);
        Ok(())
    }

    /// Starts the agent, with an objective for the shop.
    pub(super) fn start_agent(&mut self, listen: SocketAddr) -> anyhow::Result<()> {
        self.promise = Promise::new()?;
        let variables = self.promise.iter().flat_map(Promise::variables);
        self.all.push(Child::start(Launch::new(Member::Agent).listen(listen).variables(variables))?);
        Ok(())
    }

    fn start_service(&mut self, launch: Launch) -> anyhow::Result<SocketAddr> {
        let mut child = Child::start(launch)?;
        let address = child.read_address();
        self.all.push(child);
        address
    }

    /// `Some(code)` when the agent has ended by itself: it said why on standard error.
    ///
    /// # Errors
    /// When any other child has ended.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitCode>> {
        for child in &mut self.all {
            let Some(status) = child.ended()? else { continue };
            return match (child.member, status.code().and_then(|code| u8::try_from(code).ok())) {
                (Member::Agent, Some(code)) => Ok(Some(ExitCode::from(code.max(1)))),
                (member, _) => Err(anyhow::anyhow!("{member} ended by itself: {status}")),
            };
        }
        Ok(None)
    }

    /// Asks each to stop and waits for it.
    pub(super) async fn stop(&mut self) {
        for member in STOPPING {
            for child in self.all.iter_mut().filter(|child| child.member == member) {
                child.stop().await;
            }
        }
    }
}

impl fmt::Display for Children {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services = self.all.iter().filter(|child| child.member != Member::Agent);
        for (index, child) in services.enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(out, "{separator}{} (pid {})", child.member, child.pid())?;
        }
        Ok(())
    }
}
