//! The memory of other processes, read on a thread that they can keep waiting.
//!
//! In: the directory of a process. Out: its arguments and a few variables, or nothing in time. `cmdline` and `environ`
//! are memory of the process: the kernel takes that process's memory lock and may have to bring in pages. A process
//! that sits on its lock keeps the reading thread as long as it likes; another thread takes its place, up to a limit.
//! The buffer is wiped after each process.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::facts::{READ_BYTES, read_once};
use super::proc_text::{self, Variables};
use crate::privilege;

/// Memory that is at hand is read in 50 µs.
const DEADLINE: Duration = Duration::from_millis(100);
/// Threads that may be kept waiting at once. Beyond, no memory is read until one of them comes back.
const THREADS: usize = 8;

/// What the memory of a process says.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) command: Vec<String>,
    pub(super) variables: Variables,
}

/// Reads memory with a deadline.
#[derive(Debug)]
pub(super) struct MemoryReader {
    worker: Option<Worker>,
    /// Threads that live, those that are kept waiting among them.
    threads: Arc<AtomicUsize>,
    deadline: Duration,
    read: fn(BorrowedFd<'_>, &mut [u8]) -> Memory,
}

#[derive(Debug)]
struct Worker {
    questions: SyncSender<OwnedFd>,
    answers: Receiver<Memory>,
}

impl MemoryReader {
    pub(super) fn new() -> Self {
        Self { worker: None, threads: Arc::default(), deadline: DEADLINE, read: read_memory }
    }

    /// What the memory of `process` says; `None` when that does not come in time.
    pub(super) fn read(&mut self, process: BorrowedFd<'_>) -> Option<Memory> {
        let process = process.try_clone_to_owned().ok()?;
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.start()?,
        };
        worker.questions.send(process).ok()?;
        let answer = worker.answers.recv_timeout(self.deadline).ok()?;
        self.worker = Some(worker);
        Some(answer)
    }

    fn start(&self) -> Option<Worker> {
        let living = Living::begin(&self.threads)?;
        let (questions, asked) = sync_channel::<OwnedFd>(1);
        let (answered, answers) = sync_channel(1);
        let read = self.read;
        let work = move || {
            let _living = living;
            // It may begin before the agent gives up what it needs for loading.
            if let Err(error) = privilege::reduce(false, || Ok::<_, std::convert::Infallible>(())) {
                tracing::warn!(%error, "arguments of processes are not read");
                return;
            }
            let mut buffer = vec![0; READ_BYTES];
            while let Ok(process) = asked.recv() {
                let memory = read(process.as_fd(), &mut buffer);
                if answered.send(memory).is_err() {
                    return;
                }
            }
        };
        let started = thread::Builder::new().name("memory".to_owned()).spawn(work);
        if let Err(error) = started {
            tracing::warn!(%error, "failed to start a thread that reads arguments of processes");
            return None;
        }
        Some(Worker { questions, answers })
    }
}

/// Counts a thread for as long as it lives.
#[derive(Debug)]
struct Living(Arc<AtomicUsize>);

impl Living {
    fn begin(threads: &Arc<AtomicUsize>) -> Option<Self> {
        let may_begin = |living: usize| (living < THREADS).then_some(living + 1);
        threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, may_begin).ok()?;
        Some(Self(Arc::clone(threads)))
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn read_memory(process: BorrowedFd<'_>, buffer: &mut [u8]) -> Memory {
    let command =
        read_once(process, "cmdline", buffer).map(|(bytes, _)| proc_text::command(bytes)).unwrap_or_default();
    let variables = read_once(process, "environ", buffer)
        .map(|(bytes, whole)| proc_text::environment(bytes, whole))
        .unwrap_or_default();
    buffer.fill(0);
    Memory { command, variables }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Instant;

    use super::super::facts::open_process;
    use super::*;

    #[test]
    fn a_child_tells_its_arguments_and_the_buffer_is_wiped() {
        let mut child = std::process::Command::new("/bin/sleep");
        let mut child =
            child.arg("100").env("OTEL_SERVICE_NAME", "sleeper").env("SECRET", "hunter2").spawn().unwrap();
        let process = open_process(child.id()).unwrap();
        let mut buffer = vec![0; READ_BYTES];
        // The system call that replaces the program returns to the parent before the arguments are in place.
        let mut memory = Memory::default();
        while memory.command.first().is_none_or(|program| program != "/bin/sleep") {
            memory = read_memory(process.as_fd(), &mut buffer);
            assert!(buffer.iter().all(|byte| *byte == 0), "the environment must not stay in memory");
        }
        assert_eq!(memory.command, ["/bin/sleep", "100"]);
        assert_eq!(memory.variables.service_name, "sleeper");
        assert!(MemoryReader::new().read(process.as_fd()).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Lets the readers of the test below go on.
    static HELD: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

    /// Reads a process whose memory lock is held.
    fn hangs(_: BorrowedFd<'_>, _: &mut [u8]) -> Memory {
        let mut held = HELD.0.lock().unwrap();
        while *held {
            held = HELD.1.wait(held).unwrap();
        }
        Memory::default()
    }

    #[test]
    fn processes_that_hold_their_memory_lock_keep_a_bounded_number_of_threads() {
        let own = open_process(std::process::id()).unwrap();
        let mut reader =
            MemoryReader { deadline: Duration::from_millis(1), read: hangs, ..MemoryReader::new() };
        for asked in 1..=2 * THREADS {
            assert!(reader.read(own.as_fd()).is_none());
            assert_eq!(reader.threads.load(Ordering::Acquire), asked.min(THREADS));
        }
        *HELD.0.lock().unwrap() = false;
        HELD.1.notify_all();
        reader.deadline = Duration::from_secs(60);
        let begun = Instant::now();
        while reader.read(own.as_fd()).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no thread has come back");
            thread::yield_now();
        }
        reader.worker = None;
        while reader.threads.load(Ordering::Acquire) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "threads stay");
            thread::yield_now();
        }
    }
}
