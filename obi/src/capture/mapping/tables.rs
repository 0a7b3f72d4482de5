//! Which files have tables in the kernel, within a number of bytes.
//!
//! In: files that samples go through. Out: elements of the map `unwind_chunk`, and [`ExecutableFile`]s that know their
//! tables. What was sampled least recently makes room for what is sampled now, and what serves no requests for what
//! does; what was made room with comes back when it is sampled again. Making a table takes from a millisecond to
//! seconds, so [`Builder`] does it in a thread of its own.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::file::ExecutableFile;
use super::kernel::{Chunks, Span};
use super::reader::monotonic;
use super::resolver::MappingCounts;
use crate::capture::guest;
use crate::capture::program::profile::ELEMENT_BYTES;
use crate::capture::tls::elf::Source;
use crate::capture::unwind::{Reason, Table};

/// Makes the tables of a file ([`crate::capture::unwind::build`]).
pub type Build = fn(&dyn Source) -> Result<Vec<Table>, Reason>;

/// A file whose tables are wanted.
#[derive(Debug, Clone)]
pub struct Request {
    /// The file.
    pub file: Arc<ExecutableFile>,
    /// A sample ended for want of them: others make room. Else they come in while there is room.
    pub is_needed: bool,
}

/// What is in the kernel, and what came of the rest.
#[derive(Debug, Default)]
pub struct TableCounts {
    /// Files with tables.
    pub files: AtomicU64,
    /// Tables.
    pub tables: AtomicU64,
    /// Bytes of kernel memory that they take.
    pub bytes: AtomicU64,
    /// Files that made room for others.
    pub evicted: AtomicU64,
    /// Times that there was no room.
    pub full: AtomicU64,
    /// Files that cannot be understood.
    pub refused: AtomicU64,
}

impl TableCounts {
    /// As they are now; nothing else is set.
    #[must_use]
    pub fn load(&self) -> MappingCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MappingCounts {
            table_files: load(&self.files),
            tables: load(&self.tables),
            table_bytes: load(&self.bytes),
            evicted: load(&self.evicted),
            tables_full: load(&self.full),
            tables_refused: load(&self.refused),
            ..MappingCounts::default()
        }
    }
}

/// A file whose samples are this old makes room for others.
const IN_USE: u64 = 10_000_000_000;
/// A file that was sampled within a request this recently makes room only for others of which that is true: a compiler
/// or a backup on the same machine takes no names away from services.
const IN_SERVICE: u64 = 600_000_000_000;

/// The tables in the kernel.
#[derive(Debug)]
pub struct Tables {
    chunks: Chunks,
    build: Build,
    /// Bytes of kernel memory that may be taken.
    most: u64,
    next: u32,
    there: HashMap<u64, There, RandomState>,
    /// Files whose interpreter, if there is one, is known.
    recognised: HashSet<u64, RandomState>,
    /// Bytes that tables took, or would have taken, which are not there: they are made when there is room for them.
    outside: HashMap<u64, u64, RandomState>,
    counts: Arc<TableCounts>,
}

#[derive(Debug)]
struct There {
    file: Arc<ExecutableFile>,
    /// Number and elements of each.
    tables: Vec<(u32, usize)>,
    bytes: u64,
}

impl Tables {
    /// None yet.
    #[must_use]
    pub fn new(chunks: Chunks, build: Build, most: u64) -> Self {
        Self {
            chunks,
            build,
            most,
            next: 1,
            there: HashMap::default(),
            recognised: HashSet::default(),
            outside: HashMap::default(),
            counts: Arc::default(),
        }
    }

    /// What is there.
    #[must_use]
    pub fn counts(&self) -> Arc<TableCounts> {
        Arc::clone(&self.counts)
    }

    /// Looks for an interpreter in a file, once. True if there is one that was not known before. It takes far less time
    /// than tables, and no room in the kernel; the program's functions are seen without them, too.
    pub fn recognise(&mut self, file: &ExecutableFile) -> bool {
        let Some(source) = file.source() else { return false };
        if !self.recognised.insert(file.id) {
            return false;
        }
        file.set_interpreter(guest::recognise(&source));
        file.interpreter().is_some()
    }

    /// Makes a file's tables and puts them in. True if the file has some now that it did not have before.
    pub fn add(&mut self, request: &Request, now: u64) -> bool {
        let file = &request.file;
        if self.there.contains_key(&file.id) {
            return false;
        }
        // Making them takes longer than everything else.
        if let Some(bytes) = self.outside.get(&file.id).copied()
            && !self.make_room(bytes, request, now)
        {
            self.counts.full.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // What was let go meanwhile is not mapped by anybody.
        let Some(source) = file.source() else { return false };
        let tables = match (self.build)(&source) {
            Ok(tables) => tables,
            Err(error) => {
                tracing::debug!(path = %file.path, %error, "no tables for walking stacks");
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            }
        };
        if tables.is_empty() {
            // It stays known as one without.
            file.set_tables(Some(Vec::new()));
            return true;
        }
        let bytes = tables.iter().map(Table::n_chunks).sum::<usize>() as u64 * ELEMENT_BYTES;
        if !self.make_room(bytes, request, now) || !self.put(file, &tables, bytes) {
            self.counts.full.fetch_add(1, Ordering::Relaxed);
            self.outside.insert(file.id, bytes);
            return false;
        }
        self.outside.remove(&file.id);
        true
    }

    /// Takes a file's tables out, and knows nothing of it any more.
    pub fn remove(&mut self, id: u64) {
        self.outside.remove(&id);
        self.recognised.remove(&id);
        self.evict(id);
    }

    fn evict(&mut self, id: u64) {
        let Some(gone) = self.there.remove(&id) else { return };
        gone.file.set_tables(None);
        self.take_out(&gone.tables);
        self.count();
    }

    fn put(&mut self, file: &Arc<ExecutableFile>, tables: &[Table], bytes: u64) -> bool {
        let (mut put, mut spans) = (Vec::new(), Vec::new());
        for table in tables {
            let number = self.next;
            self.next += 1;
            put.push((number, table.n_chunks()));
            spans.push(Span { first: table.first, last: table.last, table: number });
            if let Err(error) = self.chunks.put(number, table) {
                tracing::debug!(path = %file.path, %error, "a table did not go into the kernel");
                self.take_out(&put);
                return false;
            }
        }
        file.set_tables(Some(spans));
        self.there.insert(file.id, There { file: Arc::clone(file), tables: put, bytes });
        self.count();
        true
    }

    fn take_out(&mut self, tables: &[(u32, usize)]) {
        for (number, n_chunks) in tables {
            self.chunks.remove(*number, *n_chunks);
        }
    }

    fn make_room(&mut self, bytes: u64, request: &Request, now: u64) -> bool {
        if bytes > self.most {
            return false;
        }
        let serves =
            |file: &ExecutableFile| file.served() > 0 && file.served().saturating_add(IN_SERVICE) > now;
        let for_service = serves(&request.file);
        while self.bytes() + bytes > self.most {
            if !request.is_needed {
                return false;
            }
            let gives_way = |there: &&There| match (serves(&there.file), for_service) {
                (false, true) => true,
                (true, false) => false,
                _ => there.file.sampled().saturating_add(IN_USE) < now,
            };
            let first = self
                .there
                .values()
                .filter(gives_way)
                .min_by_key(|there| (serves(&there.file), there.file.sampled()));
            let Some((id, freed)) = first.map(|there| (there.file.id, there.bytes)) else { return false };
            self.evict(id);
            self.outside.insert(id, freed);
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn bytes(&self) -> u64 {
        self.there.values().map(|there| there.bytes).sum()
    }

    fn count(&self) {
        let tables: usize = self.there.values().map(|there| there.tables.len()).sum();
        self.counts.files.store(self.there.len() as u64, Ordering::Relaxed);
        self.counts.tables.store(tables as u64, Ordering::Relaxed);
        self.counts.bytes.store(self.bytes(), Ordering::Relaxed);
    }
}

enum Order {
    Add(Request),
    Remove(u64),
}

/// The thread that makes tables: those that samples need first, then the smallest files. Interpreters are looked for
/// before.
#[derive(Debug)]
pub struct Builder {
    orders: Sender<Order>,
    added: Receiver<Arc<ExecutableFile>>,
    _thread: JoinHandle<()>,
}

impl Builder {
    /// Starts it, with the capabilities that the calling thread has now. It ends when this is dropped.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(mut tables: Tables) -> io::Result<Self> {
        let (orders, to_do) = channel();
        let (done, added) = channel();
        let work = move || {
            let mut waiting: Vec<Request> = Vec::new();
            loop {
                if waiting.is_empty() {
                    // Making tables takes memory that is not needed again.
                    crate::capture::program::return_memory();
                    match to_do.recv() {
                        Ok(order) => take(order, &mut waiting, &mut tables),
                        Err(_) => return,
                    }
                }
                while let Ok(order) = to_do.try_recv() {
                    take(order, &mut waiting, &mut tables);
                }
                // Before any table: the largest file's comes last, and it is the one with the interpreter.
                for Request { file, .. } in &waiting {
                    if tables.recognise(file) && done.send(Arc::clone(file)).is_err() {
                        return;
                    }
                }
                let next = (0..waiting.len()).min_by_key(|index| {
                    let Request { file, is_needed } = &waiting[*index];
                    (!is_needed, file.identity.length)
                });
                let Some(request) = next.map(|index| waiting.swap_remove(index)) else { continue };
                if tables.add(&request, monotonic()) && done.send(request.file).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tables".into()).spawn(work)?;
        Ok(Self { orders, added, _thread: thread })
    }

    /// Asks for a file's tables. Each asker does so once a while for each file, so the queue is bounded by the files.
    pub fn add(&self, request: Request) {
        // It has ended only if it panicked; then nothing is to be had.
        let _ = self.orders.send(Order::Add(request));
    }

    /// Nobody maps the file any more.
    pub fn remove(&self, id: u64) {
        let _ = self.orders.send(Order::Remove(id));
    }

    /// Files that have their tables now, or whose interpreter is known now.
    pub fn added(&self) -> impl Iterator<Item = Arc<ExecutableFile>> {
        self.added.try_iter()
    }
}

fn take(order: Order, waiting: &mut Vec<Request>, tables: &mut Tables) {
    match order {
        Order::Add(request) => match waiting.iter_mut().find(|known| known.file.id == request.file.id) {
            Some(known) => known.is_needed |= request.is_needed,
            None => waiting.push(request),
        },
        Order::Remove(id) => {
            waiting.retain(|request| request.file.id != id);
            tables.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use obi_ebpf::UNWIND_STACK;

    use super::super::kernel::tests::empty;
    use super::*;
    use crate::capture::unwind::Row;

    thread_local! {
        static BUILT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// As many rows as the file has bytes; none for an empty file.
    fn rows(file: &dyn Source) -> Result<Vec<Table>, Reason> {
        BUILT.set(BUILT.get() + 1);
        let row = |n| Row { address: 16 * n, rule: UNWIND_STACK | 1 << 14 };
        let rows: Vec<Row> = (0..file.length()).map(row).collect();
        if rows.is_empty() { Err(Reason::Silent) } else { Ok(Table::cut(&rows)) }
    }

    fn file(id: u64, rows: usize) -> Request {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![b'x'; rows]).unwrap();
        let file = std::fs::File::open(path).unwrap();
        let file = Arc::new(ExecutableFile::new(id, "x".into(), file).unwrap());
        Request { file, is_needed: false }
    }

    fn needed(request: &Request) -> Request {
        Request { is_needed: true, ..request.clone() }
    }

    #[test]
    fn what_is_sampled_least_recently_makes_room() {
        let mut tables = Tables::new(Chunks::new(empty(100)), rows, 5 * ELEMENT_BYTES);
        let counts = tables.counts();
        let state = || {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (
                load(&counts.files),
                load(&counts.bytes) / ELEMENT_BYTES,
                load(&counts.evicted),
                load(&counts.full),
            )
        };
        let (small, large, other) = (file(1, 100), file(2, 300), file(3, 400));
        let now = 100 * IN_USE;
        assert!(tables.add(&small, now) && tables.add(&large, now));
        assert!(!tables.add(&large, now), "it is there");
        assert_eq!(state(), (2, 4, 0, 0));
        // There is no room, and it was not sampled.
        assert!(!tables.add(&other, now));
        assert_eq!(state(), (2, 4, 0, 1));
        // Both others are in use.
        small.file.touch(now, false);
        large.file.touch(now - 1, false);
        let built = BUILT.get();
        assert!(!tables.add(&needed(&other), now));
        assert_eq!(state(), (2, 4, 0, 2));
        assert_eq!(BUILT.get(), built, "for nothing");
        let now = now + IN_USE;
        let old = large.file.tables().unwrap()[0].table;
        assert!(tables.chunks.has(old, 0) && tables.chunks.has(old, 2));
        assert!(tables.add(&needed(&other), now));
        assert_eq!(state(), (2, 4, 1, 2));
        assert!(large.file.tables().is_none() && small.file.tables().is_some());
        assert!((0..4).all(|chunk| !tables.chunks.has(old, chunk)));
        // It comes back under another number.
        assert!(tables.add(&needed(&large), now + 10 * IN_USE));
        assert!(large.file.tables().unwrap()[0].table > old);
        assert_eq!(state(), (2, 4, 2, 2));
        tables.remove(2);
        assert_eq!(state(), (1, 1, 2, 2));
        assert!(large.file.tables().is_none());
        // Larger than everything.
        assert!(!tables.add(&needed(&file(4, 5000)), now));
    }

    #[test]
    fn what_serves_requests_has_room_before_others() {
        let mut tables = Tables::new(Chunks::new(empty(100)), rows, 5 * ELEMENT_BYTES);
        let (service, compiler, other) = (file(1, 300), file(2, 400), file(3, 400));
        let now = 100 * IN_SERVICE;
        service.file.touch(now, true);
        assert!(tables.add(&needed(&service), now));
        // It has not been sampled since, and the other one is, all the time.
        let later = now + 2 * IN_USE;
        compiler.file.touch(later, false);
        assert!(!tables.add(&needed(&compiler), later));
        assert!(service.file.tables().is_some() && compiler.file.tables().is_none());
        // It is out of service after a while, and comes back when it serves: what is sampled now makes room.
        let late = now + IN_SERVICE;
        compiler.file.touch(late, false);
        assert!(tables.add(&needed(&compiler), late) && service.file.tables().is_none());
        service.file.touch(late, true);
        assert!(tables.add(&needed(&service), late) && compiler.file.tables().is_none());
        // Of two services the one that was sampled last.
        other.file.touch(late + 1, true);
        assert!(!tables.add(&needed(&other), late + 1));
        assert!(tables.add(&needed(&other), late + 2 * IN_USE) && service.file.tables().is_none());
    }

    #[test]
    fn a_file_without_tables_is_known_as_such() {
        let mut tables = Tables::new(Chunks::new(empty(10)), rows, 10 * ELEMENT_BYTES);
        let nothing = file(1, 0);
        assert!(tables.add(&nothing, 1));
        assert!(nothing.file.tables().unwrap().is_empty());
        let gone = file(2, 10);
        gone.file.let_go();
        assert!(!tables.add(&gone, 1));
    }

    #[test]
    fn a_kernel_that_refuses_keeps_nothing_of_a_table() {
        let mut tables = Tables::new(Chunks::new(empty(2)), rows, 100 * ELEMENT_BYTES);
        let large = file(1, 1000);
        assert!(!tables.add(&large, 1));
        assert!(large.file.tables().is_none());
        assert!((0..10).all(|chunk| !tables.chunks.has(1, chunk)));
        assert!(tables.add(&file(2, 100), 1));
    }

    #[test]
    fn the_thread_makes_them() {
        let builder = Builder::start(Tables::new(Chunks::new(empty(100)), rows, 1 << 20)).unwrap();
        for id in 1..=3 {
            builder.add(file(id, 100));
        }
        let mut added = Vec::new();
        while added.len() < 3 {
            added.extend(builder.added().map(|file| file.id));
            std::thread::yield_now();
        }
        added.sort_unstable();
        assert_eq!(added, [1, 2, 3]);
    }
}
