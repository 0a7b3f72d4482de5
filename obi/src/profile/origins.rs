//! Who processes are: told after their first samples, changed by exec, and pids are used again.
//!
//! In: pids, in the order of time, and who they are. Out: an [`Origin`] for each sample. Refuses to know samples.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::sample::Origin;

/// What a sample holds of its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OriginId(u32);

/// One program in one process.
#[derive(Debug)]
struct Slot {
    origin: Arc<Origin>,
    is_told: bool,
    /// Samples that hold it, and one for being the process's present one.
    users: u32,
}

/// Origins of the samples that are held.
#[derive(Debug, Default)]
pub(super) struct Origins {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    current: HashMap<u32, u32, RandomState>,
}

impl Origins {
    /// The present one of a process, for one more sample; and whether somebody should tell who it is: for the first of
    /// its samples only.
    pub(super) fn of(&mut self, pid: u32) -> (OriginId, bool) {
        if let Some(id) = self.current.get(&pid) {
            if let Some(slot) = &mut self.slots[*id as usize] {
                slot.users += 1;
            }
            return (OriginId(*id), false);
        }
        let id = self.add(pid, 2);
        (OriginId(id), true)
    }

    /// Who the process is.
    pub(super) fn is_called(&mut self, pid: u32, origin: Arc<Origin>) {
        let id = self.current.get(&pid).copied();
        match id.and_then(|id| self.slots[id as usize].as_mut()) {
            Some(slot) if !slot.is_told => (slot.origin, slot.is_told) = (origin, true),
            // Told again, as it may be named anew: of older samples nothing else was known either.
            Some(slot) => slot.origin = origin,
            None => {}
        }
    }

    /// What comes from the process now is of something else. Whoever has no name yet gets that of what follows: a shell's
    /// child, sampled before it became its program.
    pub(super) fn renews(&mut self, pid: u32) {
        let is_told = |id: &u32| self.slots[*id as usize].as_ref().is_some_and(|slot| slot.is_told);
        if self.current.get(&pid).is_some_and(is_told)
            && let Some(id) = self.current.remove(&pid)
        {
            self.release(OriginId(id));
        }
    }

    /// A sample has gone.
    pub(super) fn release(&mut self, OriginId(id): OriginId) {
        let Some(slot) = &mut self.slots[id as usize] else { return };
        slot.users -= 1;
        if slot.users == 0 {
            self.slots[id as usize] = None;
            self.free.push(id);
        } else if slot.users == 1 {
            // Perhaps only the process's entry is left: it is made again when there is a sample again.
            let pid = slot.origin.pid;
            if self.current.get(&pid) == Some(&id) {
                self.current.remove(&pid);
                self.slots[id as usize] = None;
                self.free.push(id);
            }
        }
    }

    /// The origin that a sample holds.
    pub(super) fn get(&self, OriginId(id): OriginId) -> Arc<Origin> {
        self.slots[id as usize].as_ref().map(|slot| Arc::clone(&slot.origin)).unwrap_or_default()
    }

    fn add(&mut self, pid: u32, users: u32) -> u32 {
        let slot = Slot { origin: Arc::new(Origin { pid, ..Origin::default() }), is_told: false, users };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1)
                    .expect("fewer slots than samples, which are fewer than 2^32")
            }
        };
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
    fn a_name_told_late_holds_for_earlier_samples_and_not_across_exec() {
        let mut origins = Origins::default();
        let (first, asks) = origins.of(7);
        let (second, asks_again) = origins.of(7);
        assert_eq!((asks, asks_again, first), (true, false, second));
        origins.is_called(7, origin(7, "shell"));
        origins.renews(7);
        let (third, asks) = origins.of(7);
        assert!(asks && third != first);
        origins.is_called(7, origin(7, "program"));
        assert_eq!((&*origins.get(first).executable, &*origins.get(third).executable), ("shell", "program"));
    }

    #[test]
    fn nothing_is_left_when_all_samples_have_gone() {
        let mut origins = Origins::default();
        for pid in 1..100 {
            let (a, _) = origins.of(pid);
            let (b, _) = origins.of(pid);
            if pid % 3 == 0 {
                origins.is_called(pid, origin(pid, "told"));
            }
            if pid % 2 == 0 {
                origins.renews(pid);
            }
            origins.release(a);
            origins.release(b);
        }
        assert!(origins.current.is_empty() && origins.slots.len() <= 2);
        origins.is_called(3, origin(3, "nobody"));
        assert!(origins.current.is_empty());
    }
}
