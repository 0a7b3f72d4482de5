//! What stands behind a mapping: a file that may have been opened, or memory that belongs to none.
//!
//! In: what the kernel calls it. Out: [`Backing`], one for all mappings of the same file, and [`Backings`], all of
//! them. A file is opened elsewhere, by a thread that may wait for it; until then it is not known yet.
#![forbid(unsafe_code)]

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::file::ExecutableFile;
use super::side_band::Mapped;

/// A file by the kernel's name for it. Two may turn out to be the same [`ExecutableFile`].
#[derive(Debug)]
pub struct Backing {
    /// Inside the process's root, as it was when mapped; or what the kernel calls it; empty for anonymous memory.
    pub path: Arc<str>,
    /// What it is.
    pub kind: Kind,
    /// Of the file system: major and minor number.
    pub device: (u32, u32),
    /// On it.
    pub inode: u64,
    generation: u64,
    state: AtomicU8,
    file: ArcSwapOption<ExecutableFile>,
    /// When it was last found to be what its name means, `CLOCK_MONOTONIC` nanoseconds.
    confirmed: AtomicU64,
    /// A thread was asked whether it still is.
    confirming: AtomicBool,
}

/// Kinds of memory with code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file.
    File,
    /// Memory of the process's own: code made at run time.
    Anonymous,
    /// The kernel's code in every process, an ELF file in memory.
    Vdso,
    /// Something else of the kernel's: `[vsyscall]`, `[uprobes]`.
    Special,
}

/// How far a file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nobody has looked.
    New = 0,
    /// A thread was asked to look.
    Asked = 1,
    /// It is known.
    Open = 2,
    /// It could not be opened.
    Unavailable = 3,
}

impl Backing {
    fn new(mapped: &Mapped<'_>) -> Self {
        let kind = kind(mapped);
        Self {
            path: if kind == Kind::Anonymous { "".into() } else { mapped.path.into() },
            kind,
            device: mapped.device,
            inode: mapped.inode,
            generation: mapped.generation,
            state: AtomicU8::new(State::New as u8),
            file: ArcSwapOption::empty(),
            confirmed: AtomicU64::new(0),
            confirming: AtomicBool::new(false),
        }
    }

    /// The file, once it is known.
    #[must_use]
    pub fn file(&self) -> Option<Arc<ExecutableFile>> {
        self.file.load_full()
    }

    /// The same, borrowed for a moment.
    pub(super) fn loaded(&self) -> Guard<Option<Arc<ExecutableFile>>> {
        self.file.load()
    }

    /// The thread that wanted it opened could not ask.
    pub(super) fn not_asked(&self) {
        self.set_state(State::New);
    }

    /// How far it is known.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::New,
            1 => State::Asked,
            2 => State::Open,
            _ => State::Unavailable,
        }
    }

    /// Code made at run time, also in files that exist for nothing else: frame pointers and perf maps are all there is.
    #[must_use]
    pub fn is_made_at_run_time(&self) -> bool {
        let is_memory = || {
            ["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"]
                .iter()
                .any(|start| self.path.starts_with(start))
        };
        match self.kind {
            Kind::Anonymous => true,
            Kind::File => {
                is_memory() && self.file.load().as_ref().is_none_or(|file| file.segments().is_empty())
            }
            Kind::Vdso | Kind::Special => false,
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(super) fn set_file(&self, file: Option<Arc<ExecutableFile>>) {
        let state = if file.is_some() { State::Open } else { State::Unavailable };
        self.file.store(file);
        self.set_state(state);
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    pub(super) fn confirm(&self, now: u64) {
        self.confirmed.store(now, Ordering::Relaxed);
        self.confirming.store(false, Ordering::Relaxed);
    }

    /// A process is to confirm it; false if one is already.
    pub(super) fn begin_confirming(&self) -> bool {
        !self.confirming.swap(true, Ordering::Relaxed)
    }

    /// A while after the last look at it.
    pub(super) fn is_confirmable(&self, now: u64, after: u64) -> bool {
        now.saturating_sub(self.confirmed()) >= after
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The same file as far as a list says.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let name = |it: &Self| (it.kind, it.device, it.inode);
        name(self) == name(other) && self.path == other.path
    }

    fn is_of(&self, mapped: &Mapped<'_>) -> bool {
        let (device, inode, generation) = (self.device, self.inode, self.generation);
        self.kind == kind(mapped)
            && (device, inode, generation) == (mapped.device, mapped.inode, mapped.generation)
            && (self.kind == Kind::Anonymous || *self.path == *mapped.path)
    }
}

fn kind(mapped: &Mapped<'_>) -> Kind {
    match mapped.path {
        "[vdso]" => Kind::Vdso,
        "[vsyscall]" | "[uprobes]" | "[sigpage]" | "[vectors]" => Kind::Special,
        path if mapped.inode != 0 && path.starts_with('/') && !path.starts_with("//") => Kind::File,
        _ => Kind::Anonymous,
    }
}

/// Backings that are remembered. Beyond, one is made for a mapping of its own.
const BACKINGS: usize = 16_384;

/// All of them, so that a file that is mapped again is opened once.
#[derive(Debug, Default)]
pub struct Backings {
    known: HashMap<u64, Arc<Backing>>,
    hasher: RandomState,
}

impl Backings {
    /// That of a mapping.
    pub fn of(&mut self, mapped: &Mapped<'_>) -> Arc<Backing> {
        let name = match kind(mapped) {
            Kind::Anonymous => self.hasher.hash_one("anonymous"),
            _ => self.hasher.hash_one((mapped.device, mapped.inode, mapped.generation, mapped.path)),
        };
        if let Some(known) = self.known.get(&name).filter(|known| known.is_of(mapped)) {
            return Arc::clone(known);
        }
        let made = Arc::new(Backing::new(mapped));
        if self.known.len() < BACKINGS {
            self.known.insert(name, Arc::clone(&made));
        }
        made
    }

    /// The next mapping of the same name is another file.
    pub fn forget(&mut self, backing: &Arc<Backing>) {
        self.known.retain(|_, known| !Arc::ptr_eq(known, backing));
    }

    /// Forgets those that nothing else holds.
    pub fn sweep(&mut self) {
        self.known.retain(|_, known| Arc::strong_count(known) > 1);
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(inode: u64, path: &str) -> Mapped<'_> {
        Mapped { start: 1, end: 2, offset: 0, device: (8, 1), inode, generation: 0, path }
    }

    #[test]
    fn a_name_tells_what_it_is() {
        fn check(inode: u64, path: &str, expected: (Kind, bool)) {
            let backing = Backing::new(&mapped(inode, path));
            assert_eq!((backing.kind, backing.is_made_at_run_time()), expected, "{path}");
        }
        check(5, "/bin/x", (Kind::File, false));
        check(5, "/bin/x (deleted)", (Kind::File, false));
        check(0, "", (Kind::Anonymous, true));
        check(0, "//anon", (Kind::Anonymous, true));
        check(0, "[heap]", (Kind::Anonymous, true));
        check(0, "[anon:v8]", (Kind::Anonymous, true));
        check(7, "/memfd:doublemapper (deleted)", (Kind::File, true));
        check(7, "/dev/zero (deleted)", (Kind::File, true));
        check(0, "[vdso]", (Kind::Vdso, false));
        check(0, "[vsyscall]", (Kind::Special, false));
    }

    #[test]
    fn one_file_is_one_backing_until_it_is_forgotten() {
        let mut backings = Backings::default();
        let first = backings.of(&mapped(5, "/bin/x"));
        assert!(Arc::ptr_eq(&first, &backings.of(&mapped(5, "/bin/x"))));
        for other in
            [mapped(6, "/bin/x"), mapped(5, "/bin/y"), Mapped { generation: 1, ..mapped(5, "/bin/x") }]
        {
            assert!(!Arc::ptr_eq(&first, &backings.of(&other)), "{other:?}");
        }
        assert!(Arc::ptr_eq(&backings.of(&mapped(0, "//anon")), &backings.of(&mapped(0, ""))));
        backings.sweep();
        assert_eq!(backings.len(), 1);
        backings.forget(&first);
        assert!(backings.is_empty());
        assert!(!Arc::ptr_eq(&first, &backings.of(&mapped(5, "/bin/x"))));
    }
}
