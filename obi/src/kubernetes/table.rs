//! The pods that are known, as every thread reads them.
//!
//! In: pods of the one thread that asks sources, with the time by `CLOCK_MONOTONIC`. Out: the pod of a UID now, the pod
//! of an address at a time, and which pods are new to those who name processes. No thread holds a lock for longer than
//! a copy takes. Refuses to guess: an address that may have moved belongs to no pod.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::services::Services;
use super::view::{Counts, SourceState, View};
use super::{Pod, PodUid};
use claims::Claims;

mod claims;

/// Pods of one node at most, those that ended a while ago among them: some sixteen times as many as a kubelet runs
/// unless it is configured otherwise.
const PODS_MAX: usize = 2048;
/// How long a pod that is no more is known, ns: its last spans may still be on their way.
const GRACE: u64 = 300_000_000_000;

/// The pods of this node; a clone is the same table.
#[derive(Debug, Clone, Default)]
pub struct Pods(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pods: DashMap<PodUid, Known, RandomState>,
    addresses: Claims,
    /// Pods that those who name processes have not taken yet.
    changed: Mutex<HashSet<PodUid>>,
    /// Something has been put.
    news: Condvar,
    state: Mutex<SourceState>,
    /// Number of the stream's beginning: what is not seen again is no more.
    round: AtomicU64,
    /// The stream was heard until then; `u64::MAX` while it is.
    heard: AtomicU64,
    /// What sources sent, what could not be named.
    counts: Counts,
    /// Of the whole cluster, where they are asked for.
    services: Services,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            pods: DashMap::default(),
            addresses: Claims::default(),
            changed: Mutex::default(),
            news: Condvar::new(),
            state: Mutex::default(),
            round: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            counts: Counts::default(),
            services: Services::default(),
        }
    }
}

#[derive(Debug)]
struct Known {
    pod: Arc<Pod>,
    gone: Option<u64>,
    round: u64,
}

impl Pods {
    /// The pod with this UID, alive or ended a moment ago.
    #[must_use]
    pub fn get(&self, uid: PodUid) -> Option<Arc<Pod>> {
        self.0.pods.get(&uid).map(|known| Arc::clone(&known.pod))
    }

    /// The pod that a container belongs to, if its runtime has reported its id.
    #[must_use]
    pub fn of_container(&self, id: &str) -> Option<Arc<Pod>> {
        // Containers whose ids are not known yet have an empty one, and so have processes outside of containers.
        let has_it =
            |pod: &Pod| !id.is_empty() && pod.containers.iter().any(|container| &*container.id == id);
        self.0.pods.iter().find(|known| has_it(&known.pod)).map(|known| Arc::clone(&known.pod))
    }

    /// The same as [`Self::get`], but waits a little while a stream of pods is heard: its next message may be that one.
    #[must_use]
    pub fn wait_for(&self, uid: PodUid, within: Duration) -> Option<Arc<Pod>> {
        if self.get(uid).is_none() && self.is_live() {
            let changed = self.changed();
            // A put takes this lock after it has put.
            let _waited =
                self.0.news.wait_timeout_while(changed, within, |_| !self.0.pods.contains_key(&uid));
        }
        self.get(uid)
    }

    /// Waits until all pods that were there have been sent, within bounds. Whether they have.
    #[must_use]
    pub fn wait_until_live(&self, within: Duration) -> bool {
        let waited = self.0.news.wait_timeout_while(self.changed(), within, |_| !self.is_live());
        drop(waited);
        self.is_live()
    }

    /// Whose `address` was at this time; `None` when that is not certain.
    #[must_use]
    pub fn at(&self, address: IpAddr, time: u64) -> Option<Arc<Pod>> {
        self.0.addresses.at(address, time, self.0.heard.load(Ordering::Acquire))
    }

    /// Whether a stream of pods is heard, and all that were there have been sent.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.0.heard.load(Ordering::Acquire) == u64::MAX
    }

    /// Pods that are new or have changed since the last call.
    #[must_use]
    pub fn take_changed(&self) -> HashSet<PodUid> {
        std::mem::take(&mut *self.changed())
    }

    /// The services of the cluster; empty unless they are asked for.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.0.services
    }

    /// What there is to count.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// What users are shown of it.
    #[must_use]
    pub fn view(&self) -> View {
        let ended = self.0.pods.iter().filter(|known| known.gone.is_some()).count();
        let state = self.state().clone();
        let view = View::new(state, &self.0.counts, (self.0.pods.len() - ended, ended), self.is_live());
        view.with_services(&self.0.services)
    }

    // === for the thread that asks ===

    /// Says which source is asked, or what became of it.
    pub fn set_state(&self, change: impl FnOnce(&mut SourceState)) {
        change(&mut self.state());
    }

    /// A stream begins: what it does not send before it is complete is no more.
    pub fn begin(&self) {
        self.0.round.fetch_add(1, Ordering::AcqRel);
    }

    /// A stream has sent all that was there.
    pub fn complete(&self, now: u64) {
        let round = self.0.round.load(Ordering::Acquire);
        let missing = self.0.pods.iter().filter(|known| known.round != round && known.gone.is_none());
        let missing: Vec<PodUid> = missing.map(|known| *known.key()).collect();
        missing.into_iter().for_each(|uid| self.end(uid, now));
        self.resume();
    }

    /// A stream goes on from where it ended: nothing was missed.
    pub fn resume(&self) {
        self.0.heard.store(u64::MAX, Ordering::Release);
        drop(self.changed());
        self.0.news.notify_all();
    }

    /// The stream is not heard any more: from now on an address may move unseen.
    pub fn interrupt(&self, now: u64) {
        self.0.heard.fetch_min(now, Ordering::AcqRel);
    }

    /// A pod is there, in this form. What is known of it by name only never replaces more.
    pub fn put(&self, pod: Pod, now: u64) {
        let Some(uid) = pod.key() else { return Counts::add(&self.0.counts.without_uid, 1) };
        let round = self.0.round.load(Ordering::Acquire);
        if let Some(mut known) = self.0.pods.get_mut(&uid) {
            if known.pod.is_whole && !pod.is_whole {
                return;
            }
            (known.round, known.gone) = (round, None);
            if *known.pod == pod {
                drop(known);
                return self.0.addresses.confirm(uid, now);
            }
        } else if !self.make_room() {
            return Counts::add(&self.0.counts.refused, 1);
        }
        let pod = Arc::new(pod);
        self.0.addresses.claim(uid, &pod, now);
        self.0.pods.insert(uid, Known { pod, gone: None, round });
        self.changed().insert(uid);
        self.0.news.notify_all();
    }

    /// Of those that are known by name only, all others are no more.
    pub fn retain_names(&self, present: &HashSet<PodUid>, now: u64) {
        let is_missing = |uid: &PodUid, known: &Known| {
            !known.pod.is_whole && known.gone.is_none() && !present.contains(uid)
        };
        let missing = self.0.pods.iter().filter(|known| is_missing(known.key(), known));
        let missing: Vec<PodUid> = missing.map(|known| *known.key()).collect();
        missing.into_iter().for_each(|uid| self.end(uid, now));
    }

    /// A pod is no more.
    pub fn gone(&self, pod: &Pod, now: u64) {
        // The kubelet sends no more than the UID; the copy of a static pod has another.
        let by_uid = || self.0.pods.iter().find(|known| known.pod.uid == pod.uid).map(|known| *known.key());
        if let Some(uid) = pod.key().filter(|uid| self.0.pods.contains_key(uid)).or_else(by_uid) {
            self.end(uid, now);
        }
    }

    /// Forgets what ended a while ago. Call it now and then.
    pub fn sweep(&self, now: u64) {
        let is_kept = |gone: Option<u64>| gone.is_none_or(|gone| now.saturating_sub(gone) < GRACE);
        self.0.pods.retain(|_, known| is_kept(known.gone));
        self.0.addresses.forget_before(now.saturating_sub(GRACE));
    }

    // === inside ===

    fn end(&self, uid: PodUid, now: u64) {
        if let Some(mut known) = self.0.pods.get_mut(&uid) {
            known.gone.get_or_insert(now);
        }
        self.0.addresses.release(uid, now);
    }

    /// Whether there is room for one more. What ended first gives way.
    fn make_room(&self) -> bool {
        if self.0.pods.len() < PODS_MAX {
            return true;
        }
        let ended = self.0.pods.iter().filter_map(|known| Some((known.gone?, *known.key())));
        let Some((_, oldest)) = ended.min() else { return false };
        self.0.pods.remove(&oldest);
        true
    }

    fn changed(&self) -> MutexGuard<'_, HashSet<PodUid>> {
        self.0.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, SourceState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
