//! Which address was whose, and when.
//!
//! In: pods with their addresses as they come, change and go. Out: the pod that an address belonged to at a time. Two
//! pods that claim one address at once show that news of one was late: from its last news on, it belongs to no pod.

use std::net::IpAddr;
use std::sync::Arc;

use dashmap::DashMap;
use foldhash::fast::RandomState;

use crate::kubernetes::{Pod, PodUid};

/// Former owners kept of one address.
const FORMER_MAX: usize = 4;

/// Addresses by owner and time.
#[derive(Debug, Default)]
pub(super) struct Claims(DashMap<IpAddr, Vec<Claim>, RandomState>);

/// One pod had the address from `from` on.
#[derive(Debug)]
struct Claim {
    uid: PodUid,
    pod: Arc<Pod>,
    from: u64,
    /// Not any more from then on.
    until: Option<u64>,
    /// The last news that said so.
    confirmed: u64,
}

impl Claims {
    /// Whose it was at `time`. What is not ended is known up to `heard`.
    pub(super) fn at(&self, address: IpAddr, time: u64, heard: u64) -> Option<Arc<Pod>> {
        let claims = self.0.get(&address)?;
        let is_it = |claim: &&Claim| (claim.from..claim.until.unwrap_or(heard)).contains(&time);
        claims.iter().find(is_it).map(|claim| Arc::clone(&claim.pod))
    }

    /// The pod is now in this form: it has its addresses, and no others, unless it is about to end.
    pub(super) fn claim(&self, uid: PodUid, pod: &Arc<Pod>, now: u64) {
        let held: &[IpAddr] = if pod.is_ending { &[] } else { &pod.addresses };
        self.release_all(uid, now, |address| !held.contains(address));
        for address in held {
            let mut claims = self.0.entry(*address).or_default();
            if let Some(own) = claims.iter_mut().find(|claim| claim.uid == uid && claim.until.is_none()) {
                (own.pod, own.confirmed) = (Arc::clone(pod), now);
                continue;
            }
            for other in claims.iter_mut().filter(|claim| claim.until.is_none()) {
                other.until = Some(other.confirmed);
            }
            if claims.len() >= FORMER_MAX {
                claims.remove(0);
            }
            claims.push(Claim { uid, pod: Arc::clone(pod), from: now, until: None, confirmed: now });
        }
    }

    /// News of the pod: nothing has changed.
    pub(super) fn confirm(&self, uid: PodUid, now: u64) {
        for mut claims in self.0.iter_mut() {
            for claim in claims.iter_mut().filter(|claim| claim.uid == uid && claim.until.is_none()) {
                claim.confirmed = now;
            }
        }
    }

    /// The pod is no more.
    pub(super) fn release(&self, uid: PodUid, now: u64) {
        self.release_all(uid, now, |_| true);
    }

    /// Forgets what ended before `time`.
    pub(super) fn forget_before(&self, time: u64) {
        self.0.retain(|_, claims| {
            claims.retain(|claim| claim.until.is_none_or(|until| until >= time));
            !claims.is_empty()
        });
    }

    fn release_all(&self, uid: PodUid, now: u64, which: impl Fn(&IpAddr) -> bool) {
        for mut entry in self.0.iter_mut().filter(|entry| which(entry.key())) {
            for claim in entry.iter_mut().filter(|claim| claim.uid == uid) {
                claim.until.get_or_insert(now);
            }
        }
    }
}
