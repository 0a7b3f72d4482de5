//! Who processes are: reported after their first samples, changed by exec, and pids are used again.
//!
//! In: pids with the times of their samples, and who they are. Out: an [`Origin`] for each sample. Refuses to know
//! samples.
//!
//! News that a process has become another program comes by another way than its samples: either may be here first. So
//! what a process was before stays known for a while, with the time until when.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::sample::Origin;
use crate::span::Instance;

/// What a sample holds of its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OriginId(u32);

/// One program in one process.
#[derive(Debug)]
struct Slot {
    origin: Arc<Origin>,
    is_reported: bool,
    /// Samples that hold it, and one for being the process's present one.
    users: u32,
}

/// What a process was.
#[derive(Debug)]
struct Former {
    id: u32,
    /// Its samples are older than this.
    until: u64,
}

/// How long samples may be under way, ns: they wait a second for a list of mappings.
pub(super) const UNDER_WAY: u64 = 5_000_000_000;

/// Origins of the samples that are held.
#[derive(Debug, Default)]
pub(super) struct Origins {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    current: HashMap<u32, u32, RandomState>,
    /// Each uses its slot as a sample does.
    former: HashMap<u32, Former, RandomState>,
    bytes: usize,
}

/// What an origin takes; its service is there anyway.
fn size(origin: &Origin) -> usize {
    let texts = origin.executable.len() + origin.instance.attributes.bytes();
    size_of::<Slot>() + size_of::<Origin>() + size_of::<Instance>() + 2 * ALLOCATION + texts
}

/// Counters of a shared value, and what an allocation takes.
const ALLOCATION: usize = 32;

impl Origins {
    /// That of a process at a time, for one more sample; and whether the caller is to ask who it is: for the first of
    /// its samples only.
    pub(super) fn of(&mut self, pid: u32, time: u64) -> (OriginId, bool) {
        let former = self.former.get(&pid).filter(|former| time < former.until);
        if let Some(id) = former.map(|former| former.id).or_else(|| self.current.get(&pid).copied()) {
            if let Some(slot) = &mut self.slots[id as usize] {
                slot.users += 1;
            }
            return (OriginId(id), false);
        }
        let id = self.add(pid, 2);
        (OriginId(id), true)
    }

    /// Who the process is.
    pub(super) fn is_called(&mut self, pid: u32, origin: Arc<Origin>) {
        let id = self.current.get(&pid).copied();
        if let Some(slot) = id.and_then(|id| self.slots[id as usize].as_mut()) {
            self.bytes = self.bytes - size(&slot.origin) + size(&origin);
            // If reported again, it may be named anew: of older samples nothing else was known either.
            (slot.origin, slot.is_reported) = (origin, true);
        }
    }

    /// What came from the process since `time` is of something else; returns what it was. What has no name yet gets
    /// that of what follows: a shell's child, sampled before it became its program.
    pub(super) fn renews(&mut self, pid: u32, time: u64) -> Option<OriginId> {
        let is_reported = |id: &u32| self.slots[*id as usize].as_ref().is_some_and(|slot| slot.is_reported);
        let id = self.current.get(&pid).copied().filter(is_reported)?;
        self.current.remove(&pid);
        if let Some(older) = self.former.insert(pid, Former { id, until: time }) {
            self.release(OriginId(older.id));
        }
        Some(OriginId(id))
    }

    /// No sample older than [`UNDER_WAY`] comes any more.
    pub(super) fn forget(&mut self, now: u64) {
        let is_over = |_: &u32, former: &mut Former| former.until.saturating_add(UNDER_WAY) < now;
        let over: Vec<Former> = self.former.extract_if(is_over).map(|(_, former)| former).collect();
        for former in over {
            self.release(OriginId(former.id));
        }
    }

    /// A sample has gone.
    pub(super) fn release(&mut self, OriginId(id): OriginId) {
        let Some(slot) = &mut self.slots[id as usize] else { return };
        slot.users -= 1;
        if slot.users == 0 {
            self.clear(id);
        } else if slot.users == 1 {
            // Perhaps only the process's entry is left: it is made again when there is a sample again.
            let pid = slot.origin.pid;
            if self.current.get(&pid) == Some(&id) {
                self.current.remove(&pid);
                self.clear(id);
            }
        }
    }

    /// Memory of all of them, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn clear(&mut self, id: u32) {
        if let Some(slot) = self.slots[id as usize].take() {
            self.bytes -= size(&slot.origin);
            self.free.push(id);
        }
    }

    /// The origin that a sample holds.
    pub(super) fn get(&self, OriginId(id): OriginId) -> Arc<Origin> {
        self.slots[id as usize].as_ref().map(|slot| Arc::clone(&slot.origin)).unwrap_or_default()
    }

    fn add(&mut self, pid: u32, users: u32) -> u32 {
        let slot = Slot { origin: Arc::new(Origin { pid, ..Origin::default() }), is_reported: false, users };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1)
                    .expect("fewer slots than samples, which are fewer than 2^32")
            }
        };
        self.bytes += size(&slot.origin);
        self.slots[id as usize] = Some(slot);
        self.current.insert(pid, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(pid: u32, name: &str) -> Arc<Origin> {
        Arc::new(Origin { pid, executable: name.into(), ..Origin::default() })
    }

    #[test]
    fn a_name_reported_late_holds_for_earlier_samples_and_not_across_exec() {
        let mut origins = Origins::default();
        let (first, asks) = origins.of(7, 10);
        let (second, asks_again) = origins.of(7, 20);
        assert_eq!((asks, asks_again, first), (true, false, second));
        origins.is_called(7, origin(7, "shell"));
        assert_eq!(origins.renews(7, 30), Some(first));
        let (third, asks) = origins.of(7, 30);
        assert!(asks && third != first);
        let (late, asks) = origins.of(7, 29);
        assert!(!asks && late == first, "a sample of the program before that comes late");
        origins.is_called(7, origin(7, "program"));
        assert_eq!((&*origins.get(first).executable, &*origins.get(third).executable), ("shell", "program"));
    }

    #[test]
    fn nothing_is_left_when_all_samples_have_gone() {
        let mut origins = Origins::default();
        for pid in 1..100 {
            let (a, _) = origins.of(pid, 1);
            let (b, _) = origins.of(pid, 2);
            if pid % 3 == 0 {
                origins.is_called(pid, origin(pid, "reported"));
            }
            if pid % 2 == 0 {
                origins.renews(pid, 3);
            }
            origins.release(a);
            origins.release(b);
        }
        assert!(origins.former.len() == 16, "every sixth was reported and renewed");
        origins.forget(3 + UNDER_WAY);
        assert_eq!(origins.former.len(), 16);
        origins.forget(4 + UNDER_WAY);
        assert!(origins.former.is_empty() && origins.current.is_empty());
        assert!(origins.slots.iter().all(Option::is_none));
        origins.is_called(3, origin(3, "nobody"));
        assert!(origins.current.is_empty());
    }
}
