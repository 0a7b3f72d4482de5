//! The thread that writes: no other thread waits for the disk.
//!
//! In: batches, one at a time. Out: the same on disk, sooner or later; what went wrong, said once and counted. While a
//! batch cannot be written no other is asked for: what changes meanwhile stays where it is counted. Refuses to know
//! what is in a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::alert::nanos;
use super::state::{Batch, Key, Left, State, StateError};
use super::view::{StoreCounts, StoreView};
use crate::privilege;

/// Between two tries while the disk is full or broken.
const RETRY: Duration = Duration::from_secs(5);
/// Shortest time between two transactions: what `kill -9` may cost.
const PACE: Duration = Duration::from_secs(1);
/// A transaction that takes long is followed by a pause this many times as long, so that writing never takes more than
/// a fiftieth of the time.
const REST: u32 = 49;
/// However long it took.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long the last write may take at the end.
const FINISH: Duration = Duration::from_secs(3);

/// The writing thread, seen from the one that counts.
#[derive(Debug)]
pub struct Writer {
    jobs: SyncSender<Job>,
    is_idle: Arc<AtomicBool>,
    counts: Arc<StoreCounts>,
    finished: Receiver<()>,
    thread: JoinHandle<()>,
}

/// Decides which chunks are still needed.
pub type Needed = Box<dyn Fn(Key) -> bool + Send>;
/// Takes what an earlier run has left, together with the first batch, into which it may work that.
pub type Late = Box<dyn FnOnce(Left, &mut Batch) + Send>;

enum Job {
    Write(Batch),
    /// Coverage is needed from this time on.
    Prune(i64, Needed),
    Finish(Batch),
}

/// The thread's own.
struct Work {
    directory: PathBuf,
    state: Option<State>,
    /// Takes what an earlier run has left, if that could not be read at the start.
    late: Option<Late>,
    jobs: Receiver<Job>,
    is_idle: Arc<AtomicBool>,
    counts: Arc<StoreCounts>,
    is_failing: bool,
    /// How long the last transaction took.
    took: Duration,
}

impl Writer {
    /// Opens the file of an earlier run and starts the thread. Without a file that can be used the thread tries to open
    /// it again and again, and gives what is in it to `late`.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(directory: &Path, late: Late) -> std::io::Result<(Self, Left)> {
        let counts = Arc::new(StoreCounts::default());
        let opened = State::open(directory).and_then(|state| state.load().map(|left| (state, left)));
        let (jobs, received) = sync_channel(2);
        let is_idle = Arc::new(AtomicBool::new(true));
        let mut work = Work {
            directory: directory.to_owned(),
            state: None,
            late: None,
            jobs: received,
            is_idle: Arc::clone(&is_idle),
            counts: Arc::clone(&counts),
            is_failing: false,
            took: Duration::ZERO,
        };
        let left = match opened {
            Ok((state, left)) => {
                work.state = Some(state);
                left
            }
            Err(error) => {
                work.late = Some(late);
                work.fail(&error);
                Left::default()
            }
        };
        let (done, finished) = sync_channel(1);
        let thread = std::thread::Builder::new().name("objectives-disk".to_owned()).spawn(move || {
            privilege::give_up().expect("giving up needs no privilege");
            work.run();
            // Perhaps no thread waits any more.
            let _ = done.try_send(());
        })?;
        Ok((Self { jobs, is_idle, counts, finished, thread }, left))
    }

    /// Whether it would take a batch now.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Acquire)
    }

    /// Hands over a batch; only when it is idle.
    pub fn write(&self, batch: Batch) {
        self.is_idle.store(false, Ordering::Release);
        // An idle thread has taken everything that was in the channel.
        let _ = self.jobs.try_send(Job::Write(batch));
    }

    /// Lets it forget what is not needed; only when it is idle.
    pub fn prune(&self, horizon: i64, needed: Needed) {
        self.is_idle.store(false, Ordering::Release);
        let _ = self.jobs.try_send(Job::Prune(horizon, needed));
    }

    /// What it did so far.
    #[must_use]
    pub fn view(&self) -> StoreView {
        self.counts.view(unix_now())
    }

    /// Writes the last batch and ends. Returns whether all is written.
    pub fn finish(self, batch: Batch) -> bool {
        if self.jobs.send(Job::Finish(batch)).is_err() || self.finished.recv_timeout(FINISH).is_err() {
            tracing::error!(?FINISH, "the last counts could not be written in time");
            return false;
        }
        // It has just said that it is done.
        let _ = self.thread.join();
        self.counts.unsaved_since.load(Ordering::Relaxed) == 0
    }
}

impl Work {
    fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            let next = match job {
                Job::Write(batch) => self.write_until_done(batch),
                Job::Prune(horizon, needed) => {
                    self.prune(horizon, &needed);
                    None
                }
                Job::Finish(batch) => Some(batch),
            };
            let next = next.or_else(|| self.rest((self.took * REST).clamp(PACE, LONGEST_REST)));
            if let Some(mut last) = next {
                self.try_write(&mut last);
                return;
            }
            self.is_idle.store(true, Ordering::Release);
        }
    }

    /// Waits; returns early with the last batch when the end comes.
    fn rest(&self, pause: Duration) -> Option<Batch> {
        match self.jobs.recv_timeout(pause) {
            Ok(Job::Finish(batch)) => Some(batch),
            // Handed over although we are not idle: cannot be.
            Ok(Job::Write(_) | Job::Prune(..)) | Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Tries until it is written; when the end comes first, returns what is to be written last.
    fn write_until_done(&mut self, mut batch: Batch) -> Option<Batch> {
        while !self.try_write(&mut batch) {
            if let Some(last) = self.rest(RETRY) {
                return Some(merged(batch, last));
            }
        }
        None
    }

    fn try_write(&mut self, batch: &mut Batch) -> bool {
        let begun = Instant::now();
        let written = self.open(batch).and_then(|state| state.write(batch));
        self.took = begun.elapsed();
        match written {
            Ok(()) => {
                self.counts.writes.fetch_add(1, Ordering::Relaxed);
                self.counts.unsaved_since.store(0, Ordering::Relaxed);
                if std::mem::replace(&mut self.is_failing, false) {
                    tracing::info!("counts of objectives are written again");
                }
                true
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// The file; `batch` is what will be written into it first.
    fn open<'w>(&'w mut self, batch: &mut Batch) -> Result<&'w State, StateError> {
        let state = match self.state.take() {
            Some(state) => state,
            None => State::open(&self.directory)?,
        };
        if let Some(late) = self.late.take() {
            match state.load() {
                Ok(left) => late(left, batch),
                Err(error) => {
                    self.late = Some(late);
                    return Err(error);
                }
            }
        }
        Ok(self.state.insert(state))
    }

    fn prune(&mut self, horizon: i64, needed: &Needed) {
        // Nothing to prune while nothing can be written.
        let Some(state) = &self.state else { return };
        match state.prune(horizon, needed) {
            Ok(n) => tracing::debug!(n, "old counts removed"),
            Err(error) => self.fail(&error),
        }
    }

    /// Says once what is wrong. The file is opened anew for the next try: the store does not go on after an error.
    fn fail(&mut self, error: &StateError) {
        self.state = None;
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        let since = &self.counts.unsaved_since;
        let _ = since.compare_exchange(0, unix_now().max(1), Ordering::Relaxed, Ordering::Relaxed);
        if !std::mem::replace(&mut self.is_failing, true) {
            let retry = RETRY;
            tracing::error!(%error, ?retry, "counts of objectives are not written; they are kept in memory and tried again");
        } else {
            tracing::debug!(%error, "counts of objectives are still not written");
        }
    }
}

/// Both, the newer one wins.
fn merged(mut older: Batch, newer: Batch) -> Batch {
    older.chunks.extend(newer.chunks);
    older.coverage.extend(newer.coverage);
    Batch { alerts: newer.alerts.or(older.alerts), ..older }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn batch(number: u8) -> Batch {
        let coverage = vec![(0, number.into())];
        Batch { chunks: vec![((1, 0, 0, 1), vec![number])], coverage, ..Batch::default() }
    }

    fn seen(left: &Left) -> i64 {
        left.coverage.first().map_or(0, |(_, end)| *end)
    }

    fn never() -> Late {
        Box::new(|_, _| panic!("it opened at once"))
    }

    #[track_caller]
    fn wait_until(mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_is_handed_over_is_there_for_the_next_run() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, left) = Writer::start(directory.path(), never()).unwrap();
        assert_eq!(seen(&left), 0);
        writer.write(batch(1));
        assert!(!writer.is_idle());
        assert!(writer.finish(batch(2)));
        let (writer, left) = Writer::start(directory.path(), never()).unwrap();
        assert_eq!((seen(&left), left.chunks), (2, vec![((1, 0, 0, 1), vec![2])]));
        writer.prune(0, Box::new(|_| false));
        wait_until(|| writer.is_idle());
        assert!(writer.finish(batch(3)));
    }

    #[test]
    fn a_directory_that_comes_late_is_read_late() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::start(&directory.path().join("x"), never()).unwrap();
        assert!(writer.finish(batch(1)));
        // A file in its place: it cannot be a directory.
        std::fs::rename(directory.path().join("x"), directory.path().join("y")).unwrap();
        std::fs::write(directory.path().join("x"), "").unwrap();
        let (sender, receiver) = mpsc::channel();
        let late: Late = Box::new(move |left, batch| {
            batch.chunks[0].1[0] += left.chunks[0].1[0];
            sender.send(left).unwrap();
        });
        let (writer, left) = Writer::start(&directory.path().join("x"), late).unwrap();
        assert_eq!((seen(&left), writer.view().failures), (0, 1));
        std::fs::remove_file(directory.path().join("x")).unwrap();
        std::fs::rename(directory.path().join("y"), directory.path().join("x")).unwrap();
        writer.write(batch(2));
        assert_eq!(seen(&receiver.recv_timeout(Duration::from_secs(30)).unwrap()), 1);
        wait_until(|| writer.view().writes == 1);
        assert_eq!(writer.view().unsaved_seconds, 0);
        drop(writer);
        let begun = Instant::now();
        let state = loop {
            match State::open(&directory.path().join("x")) {
                Ok(state) => break state,
                // Its thread ends on its own.
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
            }
        };
        assert_eq!(state.load().unwrap().chunks[0].1, [3]);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_does_not_hold_up_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        std::fs::write(&file, "").unwrap();
        let (writer, _) = Writer::start(&file, never()).unwrap();
        writer.write(batch(1));
        wait_until(|| writer.view().failures >= 2);
        assert!(!writer.is_idle());
        let begun = Instant::now();
        assert!(!writer.finish(batch(2)));
        assert!(begun.elapsed() < FINISH);
    }
}
