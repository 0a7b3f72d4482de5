//! What one program of a process maps, now and a little while ago.
//!
//! In: mappings as they are made, with their times. Out: the one that an address was in at a time. The kernel reports
//! new mappings only: what a new one overlaps has gone. Bounded. Refuses to know files and processes.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::backing::{Backing, Kind};
use super::file::ExecutableFile;

/// A range of addresses of a process that may be executed.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Of `start` in the file, bytes.
    pub offset: u64,
    /// What is mapped.
    pub backing: Arc<Backing>,
    /// Since when, `CLOCK_MONOTONIC` nanoseconds; 0: from the start, as far as is known.
    pub since: u64,
}

impl Mapping {
    /// The file, once it is known.
    #[must_use]
    pub fn file(&self) -> Option<Arc<ExecutableFile>> {
        self.backing.file()
    }

    /// Where an address of the process is in the file.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.offset)
    }

    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.start, self.end, self.offset) == (other.start, other.end, other.offset)
            && Arc::ptr_eq(&self.backing, &other.backing)
    }

    fn is_anonymous(&self) -> bool {
        self.backing.kind == Kind::Anonymous
    }
}

/// Mappings of one process; more are not taken.
pub const MAPPINGS: usize = 1024;
/// Mappings that have gone and are remembered.
const FORMER: usize = 256;

/// The mappings of one program, sorted. Forks share them until one changes something.
#[derive(Debug, Clone, Default)]
pub struct Space {
    now: Arc<Vec<Arc<Mapping>>>,
    /// With the time at which each went.
    former: VecDeque<(u64, Arc<Mapping>)>,
}

/// What came of a new mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was known.
    Known,
    /// Something has changed.
    Changed,
    /// There was no room.
    Full,
}

impl Space {
    /// As a child has it.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { now: Arc::clone(&self.now), former: VecDeque::new() }
    }

    /// What is mapped now, sorted by address.
    #[must_use]
    pub fn now(&self) -> &Arc<Vec<Arc<Mapping>>> {
        &self.now
    }

    /// What has gone and samples may still ask for.
    pub fn former(&self) -> impl Iterator<Item = &Arc<Mapping>> {
        self.former.iter().map(|(_, mapping)| mapping)
    }

    /// What was mapped at an address at a time. Something that was mapped there later, when nothing is known of the
    /// time before, is taken as well: a list from `/proc` may be younger than the sample.
    #[must_use]
    pub fn find(&self, address: u64, time: u64) -> Option<&Arc<Mapping>> {
        let current = self.at(address);
        if let Some(mapping) = current.filter(|mapping| mapping.since <= time) {
            return Some(mapping);
        }
        let was = |(until, mapping): &&(u64, Arc<Mapping>)| {
            mapping.holds(address) && mapping.since <= time && time < *until
        };
        self.former.iter().rev().find(was).map(|(_, mapping)| mapping)
    }

    /// What is mapped at an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&Arc<Mapping>> {
        at(&self.now, address)
    }

    /// Something is mapped; what it overlaps goes.
    pub fn map(&mut self, mut mapping: Mapping) -> Outcome {
        let first = self.now.partition_point(|known| known.end <= mapping.start);
        let behind = first + self.now[first..].partition_point(|known| known.start < mapping.end);
        let overlapped = &self.now[first..behind];
        if let [known] = overlapped
            && (known.is_same(&mapping)
                || known.is_anonymous() && mapping.is_anonymous() && contains(known, &mapping))
        {
            return Outcome::Known;
        }
        // Compilers make code in many small pieces side by side.
        let mut range = first..behind;
        let grows = mapping.is_anonymous() && overlapped.iter().all(|known| known.is_anonymous());
        if grows {
            let touches = |index: usize| self.now.get(index).filter(|known| known.is_anonymous());
            mapping.start = overlapped.first().map_or(mapping.start, |known| known.start.min(mapping.start));
            mapping.end = overlapped.last().map_or(mapping.end, |known| known.end.max(mapping.end));
            if let Some(before) = first.checked_sub(1).and_then(touches).filter(|it| it.end == mapping.start)
            {
                (mapping.start, range.start) = (before.start, first - 1);
            }
            if let Some(after) = touches(behind).filter(|it| it.start == mapping.end) {
                (mapping.end, range.end) = (after.end, behind + 1);
            }
        }
        let replaced = &self.now[range.clone()];
        let left = replaced.first().filter(|known| known.start < mapping.start);
        let right = replaced.last().filter(|known| known.end > mapping.end);
        let left = left.map(|known| Arc::new(Mapping { end: mapping.start, ..known.as_ref().clone() }));
        let right = right.map(|known| Arc::new(cut_front(known, mapping.end)));
        let count = 1 + usize::from(left.is_some()) + usize::from(right.is_some());
        if self.now.len() - replaced.len() + count > MAPPINGS {
            return Outcome::Full;
        }
        let since = mapping.since;
        if grows {
            // When which part came does not matter: there is no file to be mistaken.
            mapping.since =
                replaced.iter().map(|known| known.since).min().map_or(since, |first| first.min(since));
        } else {
            let all_gone = self.now[range.clone()].to_vec();
            for gone in all_gone {
                self.remember(since, gone);
            }
        }
        let new = left.into_iter().chain([Arc::new(mapping)]).chain(right);
        Arc::make_mut(&mut self.now).splice(range, new);
        Outcome::Changed
    }

    /// A whole list, read at `time`: what is not in it has gone; what was mapped since stays. True if that changes
    /// anything.
    pub fn replace(&mut self, listed: Vec<Mapping>, time: u64) -> bool {
        let mut fresh = Self::default();
        for mapping in listed {
            fresh.map(mapping);
        }
        for known in self.now.iter().filter(|known| known.since > time) {
            fresh.map(known.as_ref().clone());
        }
        let same = fresh.now.len() == self.now.len()
            && fresh.now.iter().zip(self.now.iter()).all(|(fresh, known)| fresh.is_same(known));
        if same {
            return false;
        }
        let keep = |fresh: &Arc<Mapping>| {
            let known = self.at(fresh.start).filter(|known| known.is_same(fresh));
            known.map_or_else(|| Arc::clone(fresh), Arc::clone)
        };
        let now: Vec<Arc<Mapping>> = fresh.now.iter().map(keep).collect();
        let stays = |known: &Arc<Mapping>| now.iter().any(|kept| Arc::ptr_eq(kept, known));
        let gone: Vec<Arc<Mapping>> = self.now.iter().filter(|known| !stays(known)).cloned().collect();
        for mapping in gone {
            self.remember(time, mapping);
        }
        self.now = Arc::new(now);
        true
    }

    /// Forgets what had gone before `time`.
    pub fn forget_former(&mut self, time: u64) {
        while self.former.front().is_some_and(|(until, _)| *until < time) {
            self.former.pop_front();
        }
    }

    fn remember(&mut self, until: u64, mapping: Arc<Mapping>) {
        if self.former.len() >= FORMER {
            self.former.pop_front();
        }
        self.former.push_back((until, mapping));
    }
}

/// Which of sorted mappings is at an address.
#[must_use]
pub fn at(mappings: &[Arc<Mapping>], address: u64) -> Option<&Arc<Mapping>> {
    let behind = mappings.partition_point(|mapping| mapping.start <= address);
    mappings.get(behind.checked_sub(1)?).filter(|mapping| mapping.holds(address))
}

fn contains(outer: &Mapping, inner: &Mapping) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn cut_front(mapping: &Mapping, start: u64) -> Mapping {
    Mapping { start, offset: mapping.file_offset(start), ..mapping.clone() }
}

#[cfg(test)]
mod tests;
