//! The thread that finds and probes TLS libraries.
//!
//! In: processes that begin, connections that are not read. Out: probes in the kernel, and a view of them for callers.
//! The pipeline sends it notices and never waits for it: what finds no room in the queue is found by a look at all
//! processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;

use super::part::{self, Ending, Running};
use crate::capture::program::UserPrograms;
use crate::capture::tls::attach::Attacher;
use crate::capture::tls::finder::Finder;
use crate::capture::tls::recent_programs::{Program, RecentPrograms};
use crate::capture::tls::view::View;

/// Notices of the pipeline that may wait for the thread.
const NOTICES: usize = 4096;
/// How long the end of the agent waits for probes to be detached. The kernel does what is left when the process ends.
const DETACH: Duration = Duration::from_secs(2);
/// A process of a program that was looked at lately is looked at if it lives that long; most do not.
const SETTLES: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Notice {
    Begun { tgid: u32, program: Program },
    Settled { tgid: u32, program: Program },
    Uncovered { tgid: u32, executable: Arc<str>, connections: u64 },
}

/// The pipeline's end.
#[derive(Debug)]
pub(super) struct Watch {
    notices: SyncSender<Notice>,
    missed: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
    view: Arc<ArcSwap<View>>,
    recent_programs: Arc<ArcSwap<RecentPrograms>>,
    hasher: RandomState,
    /// Processes of programs that were looked at lately, by when they began.
    settling: VecDeque<(Instant, u32, Program)>,
}

/// What is probed before the agent gives up its privileges.
#[derive(Debug)]
pub(super) struct Prepared {
    finder: Finder,
    running: Vec<u32>,
}

/// Probes the libraries in the usual places. `running`: the processes that are watched now.
pub(super) fn prepare(programs: UserPrograms, running: Vec<u32>) -> Prepared {
    raise_descriptor_limit();
    let mut finder = Finder::new(Attacher::new(programs));
    finder.look_in_usual_places();
    if !finder.is_multi() {
        // Where events need more than is kept, what runs now is all that is probed.
        running.iter().for_each(|tgid| finder.begun(*tgid, None, Instant::now()));
    }
    Prepared { finder, running }
}

impl Prepared {
    /// Whether probes go by links; performance events need a capability each time.
    pub(super) fn is_multi(&self) -> bool {
        self.finder.is_multi()
    }

    /// Begins the thread, with the privileges that its starter has left.
    pub(super) fn start(self) -> std::io::Result<(Watch, Running)> {
        let Self { finder, running } = self;
        let (notices, received) = sync_channel(NOTICES);
        let (missed, view) = (Arc::new(AtomicBool::new(false)), Arc::new(ArcSwap::default()));
        let stopping = finder.stopping();
        let recent_programs = Arc::new(ArcSwap::default());
        let watch = Watch {
            notices,
            missed: Arc::clone(&missed),
            stopping,
            view: Arc::clone(&view),
            recent_programs: Arc::clone(&recent_programs),
            hasher: RandomState::default(),
            settling: VecDeque::new(),
        };
        let work = Work { finder, received, missed, view, recent_programs };
        let else_left = "probes in TLS libraries are left to the end of the process";
        let ending = Ending { within: DETACH, else_left, is_loss: false };
        Ok((watch, part::spawn("tls", ending, move || work.run(running))?))
    }
}

impl Watch {
    /// A watched process has begun, or another program in it. The thread is not woken for one of a program that was
    /// looked at lately.
    pub(super) fn begun(&mut self, tgid: u32, (executable, cgroup): (&str, &str), now: Instant) {
        let program = Program::of(&self.hasher, executable, cgroup);
        if self.settling.len() < NOTICES && self.recent_programs.load().contains(program, now) {
            self.settling.push_back((now, tgid, program));
        } else {
            self.tell(Notice::Begun { tgid, program });
        }
    }

    /// Reports the processes that have lived long enough. Call it every second; `lives` says which are still there.
    pub(super) fn tick(&mut self, now: Instant, lives: impl Fn(u32) -> bool) {
        while let Some((_, tgid, program)) =
            self.settling.pop_front_if(|(begun, ..)| now.duration_since(*begun) >= SETTLES)
        {
            if lives(tgid) {
                self.tell(Notice::Settled { tgid, program });
            }
        }
    }

    /// TLS connections of a watched process are not read.
    pub(super) fn uncovered(&self, tgid: u32, executable: Arc<str>, connections: u64) {
        self.tell(Notice::Uncovered { tgid, executable, connections });
    }

    /// What is probed and what is not.
    pub(super) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    fn tell(&self, notice: Notice) {
        if let Err(TrySendError::Full(_)) = self.notices.try_send(notice) {
            self.missed.store(true, Ordering::Release);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

struct Work {
    finder: Finder,
    received: Receiver<Notice>,
    missed: Arc<AtomicBool>,
    view: Arc<ArcSwap<View>>,
    recent_programs: Arc<ArcSwap<RecentPrograms>>,
}

impl Work {
    fn run(mut self, running: Vec<u32>) {
        self.publish();
        self.finder.end_trial();
        for tgid in running {
            self.finder.look_later(tgid, None, Instant::now());
        }
        loop {
            let due = self.finder.tick(Instant::now());
            if self.missed.swap(false, Ordering::AcqRel) {
                self.finder.missed();
            }
            self.publish();
            match self.received.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Notice::Begun { tgid, program }) => {
                    self.finder.begun(tgid, Some(program), Instant::now());
                }
                Ok(Notice::Settled { tgid, program }) => self.finder.settled(tgid, program, Instant::now()),
                Ok(Notice::Uncovered { tgid, executable, connections }) => {
                    self.finder.uncovered(tgid, &executable, connections);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let begun = Instant::now();
        self.finder.detach();
        tracing::debug!(after = ?begun.elapsed(), "probes in TLS libraries detached");
    }

    fn publish(&mut self) {
        if let Some(view) = self.finder.view() {
            self.view.store(Arc::new(view));
        }
        if let Some(recent_programs) = self.finder.recent_programs() {
            self.recent_programs.store(Arc::new(recent_programs));
        }
    }
}

/// Every link is a descriptor; the usual limit of 1024 is for programs that use `select(2)`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, ?current, "failed to raise the limit of descriptors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_familiar_programs_are_reported_when_they_have_lived() {
        let (notices, received) = sync_channel(8);
        let hasher = RandomState::default();
        let (now, plain) = (Instant::now(), Program::of(&hasher, "/bin/plain", "/a"));
        let mut recent_programs = RecentPrograms::default();
        recent_programs.note(plain, now);
        let mut watch = Watch {
            notices,
            missed: Arc::default(),
            stopping: Arc::default(),
            view: Arc::default(),
            recent_programs: Arc::new(ArcSwap::from_pointee(recent_programs)),
            hasher,
            settling: VecDeque::new(),
        };
        let check = |watch: &mut Watch, after: Duration, expected: &[(u32, bool)]| {
            watch.tick(now + after, |tgid| tgid != 3);
            let reported: Vec<_> = received
                .try_iter()
                .map(|notice| match notice {
                    Notice::Begun { tgid, .. } => (tgid, false),
                    Notice::Settled { tgid, program } => (tgid, program == plain),
                    Notice::Uncovered { tgid, .. } => (tgid, false),
                })
                .collect();
            assert_eq!(reported, expected, "after {after:?}");
        };
        watch.begun(1, ("/bin/other", "/a"), now);
        watch.begun(2, ("/bin/plain", "/b"), now);
        watch.begun(3, ("/bin/plain", "/a"), now);
        watch.begun(4, ("/bin/plain", "/a"), now);
        check(&mut watch, SETTLES / 2, &[(1, false), (2, false)]);
        check(&mut watch, SETTLES, &[(4, true)]);
        check(&mut watch, 2 * SETTLES, &[]);
    }
}
