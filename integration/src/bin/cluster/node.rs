//! What the scheduler and the kubelet of a node do: pods are made and bound, containers started, status reported.
//!
//! In: an API server and a container runtime. Out: requests that pods have answered. Refuses to know the agent.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::api::Api;
use crate::calls::{Call, Caller};
use crate::pod::{GATEWAY, Pod, Runtime, SEEN, UNSEEN};

/// The name of the node.
pub(crate) const NODE: &str = "node-a";
/// Containers a second.
pub(crate) const CONTAINERS: u32 = 2;
/// Requests that one answers.
pub(crate) const REQUESTS: usize = 8;
/// How long the agent has to hear of what the API server has been given, before it is to know.
pub(crate) const HEARING: Duration = Duration::from_millis(1_500);
const FOREIGN: u32 = 10;
/// So few that each serves many pods one after the other.
const ADDRESSES: u32 = 24;

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    /// The API server, with all rights.
    pub(crate) admin: Api,
    pub(crate) runtime: Runtime,
}

impl Node {
    /// Makes ten pods a second at the API server and removes them three seconds later, and lets two containers a second
    /// begin and end. Returns how many of the former, and what the latter have answered.
    pub(crate) fn churn(&self, seconds: u32) -> anyhow::Result<(u32, Vec<Call>)> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let foreign = scope.spawn(|| come_and_go(&self.admin, &is_over));
            let calls = self.containers(seconds);
            is_over.store(true, Ordering::Relaxed);
            Ok((foreign.join().ok().context("a thread does not panic")??, calls?))
        })
    }

    fn containers(&self, seconds: u32) -> anyhow::Result<Vec<Call>> {
        thread::scope(|scope| {
            let begun = Instant::now();
            let mut threads = Vec::new();
            for n in 0..seconds * CONTAINERS {
                let due = begun + Duration::from_secs(1) * n / CONTAINERS;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                threads.push(scope.spawn(move || self.one_life(n)));
            }
            let mut calls = Vec::new();
            for thread in threads {
                calls.extend(thread.join().ok().context("a thread does not panic")??);
            }
            Ok(calls)
        })
    }

    /// A pod from its making to its end. Every third one's server is left out by the agent.
    fn one_life(&self, n: u32) -> anyhow::Result<Vec<Call>> {
        let pod = Pod::make(&self.admin, &format!("shop-{}", n % 7), NODE)?;
        let is_seen = !n.is_multiple_of(3);
        let container = self.runtime.start(&pod, address(n), if is_seen { SEEN } else { UNSEEN })?;
        let mut caller = Caller::new(&pod, &container, is_seen);
        caller.ask(REQUESTS / 2, false)?;
        pod.report(&self.admin, &container.id, container.address)?;
        thread::sleep(HEARING);
        caller.ask(REQUESTS / 2, true)?;
        let calls = caller.calls;
        drop(container);
        pod.remove(&self.admin)?;
        Ok(calls)
    }
}

/// Each has one address while it lives, and no two live at one address.
pub(crate) fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(GATEWAY) + 9 + n % ADDRESSES)
}

/// Makes ten pods a second of the agent's node and removes them three seconds later. Returns how many.
fn come_and_go(api: &Api, is_over: &AtomicBool) -> anyhow::Result<u32> {
    let begun = Instant::now();
    let mut alive = BTreeMap::new();
    for n in 0.. {
        if is_over.load(Ordering::Relaxed) {
            alive.into_values().try_for_each(|pod: Pod| pod.remove(api))?;
            return Ok(n);
        }
        let due = begun + Duration::from_secs(1) * n / FOREIGN;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        alive.insert(n, Pod::make(api, &format!("foreign-{}", n % 5), NODE)?);
        if let Some(pod) = n.checked_sub(3 * FOREIGN).and_then(|old| alive.remove(&old)) {
            pod.remove(api)?;
        }
    }
    unreachable!("there is no last number")
}
