//! The services of the cluster by address, as every thread reads them.
//!
//! In: services and slices of endpoints of the one thread that asks, with the time by `CLOCK_MONOTONIC`. Out: the
//! service that answered at an address and port at a time. Refuses to guess: an address that several services share,
//! and one of a time when no one was heard, belongs to none.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::message::service::{Service, ServiceName, Slice};

/// Addresses of all objects at most: a cluster of some 10,000 pods has 20,000 endpoints.
const ADDRESSES_MAX: usize = 65_536;
/// Claims kept of one address, those that ended among them.
const CLAIMS_MAX: usize = 16;
/// How long what ended is known, ns: its last spans may still be on their way.
const GRACE: u64 = 300_000_000_000;

/// The services of the cluster; a clone is the same table.
#[derive(Debug, Clone, Default)]
pub struct Services(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    addresses: DashMap<IpAddr, Vec<Claim>, RandomState>,
    /// What is there of each kind, for the thread that asks alone.
    held: [Mutex<Held>; 2],
    /// Claims that found no room.
    refused: AtomicU64,
}

/// The objects of one kind, and how far they are known.
#[derive(Debug)]
struct Held {
    objects: HashMap<Box<str>, Object>,
    round: u64,
    /// The stream was heard until then; `u64::MAX` while it is.
    heard: Arc<AtomicU64>,
}

impl Default for Held {
    fn default() -> Self {
        Self { objects: HashMap::new(), round: 0, heard: Arc::new(AtomicU64::new(0)) }
    }
}

#[derive(Debug)]
struct Object {
    claimed: Claimed,
    round: u64,
}

/// What an object says.
#[derive(Debug, Clone, PartialEq)]
struct Claimed {
    name: ServiceName,
    addresses: Vec<IpAddr>,
    ports: Option<Arc<[u16]>>,
}

/// An object has an address from `from` on.
#[derive(Debug)]
struct Claim {
    uid: Box<str>,
    name: ServiceName,
    ports: Option<Arc<[u16]>>,
    from: u64,
    /// Not any more from then on.
    until: Option<u64>,
    /// That of its kind.
    heard: Arc<AtomicU64>,
}

impl Claim {
    fn holds(&self, port: u16, time: u64) -> bool {
        let until = self.until.unwrap_or_else(|| self.heard.load(Ordering::Acquire));
        (self.from..until).contains(&time) && self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

/// The kinds of objects that say what answers at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `v1` `services`.
    Service,
    /// `discovery.k8s.io/v1` `endpointslices`.
    Slice,
}

impl Services {
    /// The service that answered there at this time; `None` when that is not certain.
    #[must_use]
    pub fn at(&self, address: SocketAddr, time: u64) -> Option<ServiceName> {
        let claims = self.0.addresses.get(&address.ip())?;
        let mut holding = claims.iter().filter(|claim| claim.holds(address.port(), time));
        let first = &holding.next()?.name;
        holding.all(|other| other.name == *first).then(|| first.clone())
    }

    /// Whether both kinds are heard, and all that were there have been sent.
    #[must_use]
    pub fn is_live(&self) -> bool {
        [Kind::Service, Kind::Slice]
            .iter()
            .all(|kind| self.held(*kind).heard.load(Ordering::Acquire) == u64::MAX)
    }

    /// Services, slices of endpoints, and claims that found no room.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, u64) {
        let number = |kind| self.held(kind).objects.len();
        (number(Kind::Service), number(Kind::Slice), self.0.refused.load(Ordering::Relaxed))
    }

    // === for the thread that asks ===

    /// A stream begins: what it does not name before it is complete is no more.
    pub fn begin(&self, kind: Kind) {
        self.held(kind).round += 1;
    }

    /// A stream has named all that was there.
    pub fn complete(&self, kind: Kind, now: u64) {
        let missing: Vec<Box<str>> = {
            let held = self.held(kind);
            let is_missing = |object: &Object| object.round != held.round;
            held.objects.iter().filter(|(_, object)| is_missing(object)).map(|(uid, _)| uid.clone()).collect()
        };
        missing.iter().for_each(|uid| self.gone(kind, uid, now));
        self.resume(kind);
    }

    /// A stream goes on from where it ended: nothing was missed.
    pub fn resume(&self, kind: Kind) {
        self.held(kind).heard.store(u64::MAX, Ordering::Release);
    }

    /// The stream is not heard any more.
    pub fn interrupt(&self, kind: Kind, now: u64) {
        self.held(kind).heard.fetch_min(now, Ordering::AcqRel);
    }

    /// A service is there, in this form.
    pub fn put_service(&self, service: Service, now: u64) {
        let claimed = Claimed { name: service.name, addresses: service.addresses, ports: None };
        self.put(Kind::Service, service.uid, claimed, now);
    }

    /// A slice is there, in this form.
    pub fn put_slice(&self, slice: Slice, now: u64) {
        let Slice { uid, name, addresses, ports } = slice;
        let Some(name) = name else { return self.gone(Kind::Slice, &uid, now) };
        self.put(Kind::Slice, uid, Claimed { name, addresses, ports: ports.map(Arc::from) }, now);
    }

    /// An object is no more.
    pub fn gone(&self, kind: Kind, uid: &str, now: u64) {
        let Some(object) = self.held(kind).objects.remove(uid) else { return };
        self.release(uid, &object.claimed.addresses, now);
    }

    /// Forgets what ended a while ago. Call it now and then.
    pub fn sweep(&self, now: u64) {
        let is_kept = |claim: &Claim| claim.until.is_none_or(|until| now.saturating_sub(until) < GRACE);
        self.0.addresses.retain(|_, claims| {
            claims.retain(|claim| is_kept(claim));
            !claims.is_empty()
        });
    }

    // === inside ===

    fn put(&self, kind: Kind, uid: Box<str>, claimed: Claimed, now: u64) {
        let (before, heard) = {
            let mut held = self.held(kind);
            let round = held.round;
            if let Some(object) = held.objects.get_mut(&uid).filter(|object| object.claimed == claimed) {
                object.round = round;
                return;
            }
            let before = held.objects.insert(uid.clone(), Object { claimed: claimed.clone(), round });
            (before, Arc::clone(&held.heard))
        };
        let old: &[IpAddr] = before.as_ref().map_or(&[], |object| &object.claimed.addresses);
        let stays = before.as_ref().is_some_and(|object| {
            (&object.claimed.name, &object.claimed.ports) == (&claimed.name, &claimed.ports)
        });
        // Addresses are sorted.
        let is_in = |address: &IpAddr, those: &[IpAddr]| stays && those.binary_search(address).is_ok();
        let ended: Vec<IpAddr> =
            old.iter().filter(|address| !is_in(address, &claimed.addresses)).copied().collect();
        self.release(&uid, &ended, now);
        for address in claimed.addresses.iter().filter(|address| !is_in(address, old)) {
            self.claim(*address, || Claim {
                uid: uid.clone(),
                name: claimed.name.clone(),
                ports: claimed.ports.clone(),
                from: now,
                until: None,
                heard: Arc::clone(&heard),
            });
        }
    }

    fn claim(&self, address: IpAddr, claim: impl FnOnce() -> Claim) {
        if self.0.addresses.len() >= ADDRESSES_MAX && !self.0.addresses.contains_key(&address) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut claims = self.0.addresses.entry(address).or_default();
        if claims.len() >= CLAIMS_MAX {
            let Some(ended) = claims.iter().position(|claim| claim.until.is_some()) else {
                self.0.refused.fetch_add(1, Ordering::Relaxed);
                return;
            };
            claims.remove(ended);
        }
        claims.push(claim());
    }

    fn release(&self, uid: &str, addresses: &[IpAddr], now: u64) {
        for address in addresses {
            let Some(mut claims) = self.0.addresses.get_mut(address) else { continue };
            for claim in claims.iter_mut().filter(|claim| *claim.uid == *uid) {
                claim.until.get_or_insert(now);
            }
        }
    }

    fn held(&self, kind: Kind) -> MutexGuard<'_, Held> {
        self.0.held[kind as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
