//! The thread that reads `/proc` for the pipeline: who processes are, what our own maps take.
//!
//! In: the kernel's news of processes, questions about them. Out: the table of processes, which the pipeline reads, and
//! who is watched, for the kernel. The pipeline itself opens no file, and waits for this thread for a bounded time
//! only: a program that holds its memory lock must not stop capture on the machine.
//!
//! ```text
//! pipeline ── Notice: exec, fork, exit, a question ──▶ processes ──▶ /proc
//!     ▲  └─ waits for the number of its notice ─────────┘ │ └──▶ memory (may hang; replaced)
//!     └──────────── table of processes, News ─────────────┘
//! ```

mod at_hand;
mod question;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use obi_ebpf::ignored_program;

use self::at_hand::AtHand;
use self::question::Question;
use super::part::{self, Ending, Running};
use crate::capture::discover::{Change, Container, ExecArguments, Process, Processes, Table, Verdict};
use crate::capture::program::HeldMaps;
use crate::clock::monotonic_ns;
use crate::config::Discover;
use crate::kubernetes::{Pod, Pods};
use crate::span::service::{self, Services};
use crate::span::{Instance, Service};

/// Notices that may wait for the thread. What finds no room is mended by a comparison with `/proc`.
const NOTICES: usize = 4096;
/// Processes whose program is remembered; any program of others is ignored with the process.
const PROGRAMS: usize = 32_768;
/// How long the pipeline waits for an answer. Longer than a process may keep the reader of its memory waiting.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long the end of the agent waits for the thread.
const ENDING: Duration = Duration::from_secs(1);
/// Comparisons with `/proc`, and processes that ended.
const SWEEP: Duration = Duration::from_secs(1);
/// News of pods: how long they may wait while nothing else happens.
const PODS: Duration = Duration::from_millis(100);

/// What the pipeline says.
#[derive(Debug)]
enum Notice {
    Exec {
        tgid: u32,
        comm: [u8; 16],
        /// Apart, since the queue takes memory for as many notices as may ever wait.
        given: Box<ExecArguments>,
    },
    Fork {
        tgid: u32,
        parent: u32,
    },
    Exit {
        tgid: u32,
        time: u64,
    },
    /// An exchange of this process has ended: who is it?
    Settle {
        tgid: u32,
    },
    /// It serves on a port that was not seen before.
    Serves {
        tgid: u32,
    },
    Rules(Box<Discover>),
    /// A scrape wants to know what our maps take.
    CountMaps,
}

/// What the thread says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Who is watched has changed.
    Verdict(Change),
    /// A watched process runs another program, and was read.
    Began(u32),
    /// A process is called otherwise from now on.
    Renamed(u32),
}

/// Who a process is.
#[derive(Debug, Clone, Default)]
pub(super) struct Identity {
    pub(super) service: Arc<Service>,
    pub(super) instance: Arc<Instance>,
    pub(super) executable: Arc<str>,
    pub(super) is_watched: bool,
}

/// The number of the last notice that was taken.
#[derive(Debug, Default)]
struct Progress {
    taken: Mutex<u64>,
    changed: Condvar,
}

/// The pipeline's end.
#[derive(Debug)]
pub(super) struct Directory {
    table: Table<Arc<Service>, Arc<Instance>>,
    notices: SyncSender<(u64, Notice)>,
    news: Receiver<News>,
    /// Of processes that are pending.
    kept_back: HashMap<u32, Change, RandomState>,
    /// Which program each process runs, by its last record.
    exec_ids: HashMap<u32, u32, RandomState>,
    progress: Arc<Progress>,
    /// Number of the last notice.
    sent: u64,
    /// Of processes that began or changed: the last notice about each, until it was taken.
    pending: HashMap<u32, u64, RandomState>,
    /// An answer to this notice did not come in time. No one is waited for until it was taken.
    overdue: u64,
    looks_at_ports: bool,
    at_hand: AtHand,
    /// What [`Self::answered`] has not answered, the oldest first.
    questions: VecDeque<Question>,
    counts: Counts,
    map_bytes: Option<Arc<AtomicU64>>,
}

/// What did not go as it should.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Notices that found no room.
    pub(super) dropped: u64,
    /// Answers that did not come in time: an exchange has the name that was known.
    pub(super) late: u64,
}

/// The thread, to be started.
pub(super) struct Prepared(Box<Work>);

/// What the thread will do, and the pipeline's end of it. `maps`: those that are counted, if this kernel counts them.
/// `pods`: those of this node, if it has any.
pub(super) fn prepare(
    processes: Processes<Services>,
    maps: Option<HeldMaps>,
    pods: Option<Pods>,
) -> (Directory, Prepared) {
    let (notices, received) = sync_channel(NOTICES);
    // Bounded by the notices, of which it has at most two each, and by the table.
    let (sender, news) = channel();
    let progress = Arc::new(Progress::default());
    let directory = Directory {
        table: processes.table().clone(),
        notices,
        news,
        kept_back: HashMap::default(),
        exec_ids: HashMap::default(),
        progress: Arc::clone(&progress),
        sent: 0,
        pending: HashMap::default(),
        overdue: 0,
        looks_at_ports: processes.looks_at_ports(),
        at_hand: AtHand::default(),
        questions: VecDeque::new(),
        counts: Counts::default(),
        map_bytes: maps.as_ref().map(|_| Arc::default()),
    };
    let counted = maps.zip(directory.map_bytes.clone());
    (directory, Prepared(Box::new(Work { processes, received, news: sender, progress, counted, pods })))
}

impl Prepared {
    /// Starts the thread, with the privileges that its starter has left.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub(super) fn start(self) -> std::io::Result<Running> {
        let ending = Ending { within: ENDING, else_left: "/proc still keeps it waiting", is_loss: false };
        part::spawn("processes", ending, move || self.0.run())
    }
}

impl Directory {
    /// The process runs another program: `exec_id` is the kernel's number for it.
    pub(super) fn exec(&mut self, tgid: u32, exec_id: u32, comm: [u8; 16], given: ExecArguments) {
        self.runs(tgid, exec_id);
        self.send_about(tgid, Notice::Exec { tgid, comm, given: Box::new(given) });
    }

    /// `parent` has made the process, which runs the same program.
    pub(super) fn fork(&mut self, tgid: u32, exec_id: u32, parent: u32) {
        self.runs(tgid, exec_id);
        self.send_about(tgid, Notice::Fork { tgid, parent });
    }

    /// The process has ended.
    pub(super) fn exit(&mut self, tgid: u32, time: u64) {
        self.exec_ids.remove(&tgid);
        self.send(Notice::Exit { tgid, time });
    }

    /// The process answers on a port that was not the last one: rules may look at ports.
    pub(super) fn serves(&mut self, tgid: u32) {
        if self.looks_at_ports {
            self.send_about(tgid, Notice::Serves { tgid });
        }
    }

    /// From now on these rules decide. Waits until they do, within bounds.
    pub(super) fn set_rules(&mut self, rules: Discover) {
        self.looks_at_ports = rules.looks_at_ports();
        if let Some(number) = self.send(Notice::Rules(Box::new(rules))) {
            self.wait(number);
        }
    }

    /// Who the process is; asks, and waits a little, if that is not known.
    pub(super) fn identity(&mut self, tgid: u32) -> Arc<Identity> {
        if let Some(identity) = self.confirmed(tgid) {
            return Arc::clone(identity);
        }
        let is_answered = self.send(Notice::Settle { tgid }).is_some_and(|number| self.wait(number));
        self.counts.late += u64::from(!is_answered);
        Arc::new(self.known(tgid))
    }

    /// Whether it is watched; asks as [`Self::identity`] does.
    pub(super) fn is_watched(&mut self, tgid: u32) -> bool {
        if let Some(identity) = self.confirmed(tgid) {
            return identity.is_watched;
        }
        self.identity(tgid).is_watched
    }

    /// What the thread has found since the last call, of each process the last verdict. That a process is not watched
    /// is kept back while it may be another program by now: the kernel would miss what that does first.
    pub(super) fn news(&mut self) -> Vec<News> {
        // Before the channel is emptied: a notice that is taken from here on may have its verdict behind what is there.
        let taken = self.progress.taken();
        let mut verdicts = std::mem::take(&mut self.kept_back);
        let mut news = Vec::new();
        for one in self.news.try_iter() {
            match one {
                News::Verdict(change) => drop(verdicts.insert(change.tgid, change)),
                News::Began(_) | News::Renamed(_) => news.push(one),
            }
        }
        for (tgid, change) in verdicts {
            let is_pending = self.pending.get(&tgid).is_some_and(|number| *number > taken);
            if change.is_ignored() && is_pending {
                self.kept_back.insert(tgid, change);
            } else {
                news.push(News::Verdict(change));
            }
        }
        news
    }

    /// The program of the process that what [`Self::news`] says is about: any, of a process that was there first.
    pub(super) fn program(&self, tgid: u32) -> ignored_program {
        let exec_id = self.exec_ids.get(&tgid);
        ignored_program { exec_id: exec_id.copied().unwrap_or_default(), any: u32::from(exec_id.is_none()) }
    }

    /// Executable and control group of a known process.
    pub(super) fn place(&self, tgid: u32) -> Option<(Arc<str>, Arc<str>)> {
        self.table.with(tgid, |process| (Arc::clone(&process.executable), Arc::clone(&process.cgroup)))
    }

    /// The table, for those that only read.
    pub(super) fn table(&self) -> &Table<Arc<Service>, Arc<Instance>> {
        &self.table
    }

    /// What our maps take, bytes; `None` where the kernel does not say. The number of the last time, if it cannot be
    /// counted within bounds.
    pub(super) fn map_bytes(&mut self) -> Option<u64> {
        let bytes = Arc::clone(self.map_bytes.as_ref()?);
        if let Some(number) = self.send(Notice::CountMaps) {
            self.wait(number);
        }
        Some(bytes.load(Ordering::Relaxed))
    }

    /// What did not go as it should since the last call.
    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Forgets what has been taken. Call it every second.
    pub(super) fn tick(&mut self) {
        let taken = self.progress.taken();
        self.pending.retain(|_, number| *number > taken);
    }

    // === inside ===

    fn runs(&mut self, tgid: u32, exec_id: u32) {
        if self.exec_ids.len() >= PROGRAMS {
            // Records of ends may have been lost.
            self.exec_ids.retain(|tgid, _| self.table.is_running(*tgid));
        }
        if self.exec_ids.len() < PROGRAMS {
            self.exec_ids.insert(tgid, exec_id);
        }
    }

    /// Who it is, where all is known and no notice about it is under way.
    fn confirmed(&mut self, tgid: u32) -> Option<&Arc<Identity>> {
        if self.is_pending(tgid) { None } else { self.settled(tgid) }
    }

    fn settled(&mut self, tgid: u32) -> Option<&Arc<Identity>> {
        let Self { at_hand, table, .. } = self;
        at_hand.get(tgid, table.version(), || {
            table.with(tgid, |process| process.is_settled().then(|| Identity::of(process))).flatten()
        })
    }

    fn known(&self, tgid: u32) -> Identity {
        let unknown = || Identity { service: Services::unknown(), is_watched: true, ..Identity::default() };
        self.table.with(tgid, Identity::of).unwrap_or_else(unknown)
    }

    /// Whether a notice about the process has not been taken.
    fn is_pending(&mut self, tgid: u32) -> bool {
        let Some(number) = self.pending.get(&tgid) else { return false };
        let is_pending = *number > self.progress.taken();
        if !is_pending {
            self.pending.remove(&tgid);
        }
        is_pending
    }

    fn send_about(&mut self, tgid: u32, notice: Notice) {
        if let Some(number) = self.send(notice) {
            self.pending.insert(tgid, number);
        }
    }

    /// The notice's number; `None` when there was no room.
    fn send(&mut self, notice: Notice) -> Option<u64> {
        if self.notices.try_send((self.sent + 1, notice)).is_err() {
            self.counts.dropped += 1;
            return None;
        }
        self.sent += 1;
        Some(self.sent)
    }

    /// Waits until the notice was taken. `false` when that takes too long.
    fn wait(&mut self, number: u64) -> bool {
        let taken = self.progress.taken();
        if taken < self.overdue {
            return taken >= number;
        }
        let is_taken = self.progress.reaches(number, PATIENCE);
        if !is_taken {
            self.overdue = number;
        }
        is_taken
    }
}

impl Identity {
    fn of(process: &Process<Arc<Service>, Arc<Instance>>) -> Self {
        Self {
            service: Arc::clone(&process.service),
            instance: process.instance.clone().unwrap_or_default(),
            executable: Arc::clone(&process.executable),
            is_watched: process.verdict.is_watched(),
        }
    }
}

impl Progress {
    fn taken(&self) -> u64 {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, number: u64) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = number;
        self.changed.notify_one();
    }

    fn reaches(&self, number: u64, within: Duration) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(taken, within, |taken| *taken < number);
        *waited.unwrap_or_else(PoisonError::into_inner).0 >= number
    }
}

struct Work {
    processes: Processes<Services>,
    received: Receiver<(u64, Notice)>,
    news: Sender<News>,
    progress: Arc<Progress>,
    /// Our maps, and where their size goes.
    counted: Option<(HeldMaps, Arc<AtomicU64>)>,
    /// The pods of this node: their names may come after their processes began.
    pods: Option<Pods>,
}

impl Work {
    fn run(mut self) {
        let mut next = Instant::now() + SWEEP;
        loop {
            let mut patience = next.saturating_duration_since(Instant::now());
            if self.pods.is_some() {
                patience = patience.min(PODS);
            }
            let received = self.received.recv_timeout(patience);
            // Before anything is said of a process: it has the name of now.
            self.follow_pods();
            match received {
                Ok((number, notice)) => {
                    self.take(notice);
                    self.publish();
                    self.progress.reach(number);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next {
                self.processes.sweep(monotonic_ns());
                self.publish();
                next = Instant::now() + SWEEP;
            }
        }
    }

    fn take(&mut self, notice: Notice) {
        let processes = &mut self.processes;
        match notice {
            Notice::Exec { tgid, comm, given } => {
                let verdict = processes.exec(tgid, &comm, &given);
                let is_read = processes.table().with(tgid, Process::is_read);
                if (verdict, is_read) == (Some(Verdict::Watch), Some(true)) {
                    // The pipeline has ended if no one receives it.
                    let _ = self.news.send(News::Began(tgid));
                }
            }
            Notice::Fork { tgid, parent } => {
                processes.fork(tgid, parent);
            }
            Notice::Exit { tgid, time } => processes.exit(tgid, time),
            Notice::Settle { tgid } => {
                if processes.confirmed(tgid).is_none() {
                    processes.exec(tgid, service::UNKNOWN.as_bytes(), &ExecArguments::default());
                }
                processes.instance(tgid);
            }
            Notice::Serves { tgid } => {
                processes.ports_changed(tgid);
            }
            Notice::Rules(rules) => processes.set_rules(*rules),
            Notice::CountMaps => {
                if let Some((maps, bytes)) = &self.counted {
                    bytes.store(maps.bytes(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Names the processes of pods that are new or have changed.
    fn follow_pods(&mut self) {
        let Some(pods) = &self.pods else { return };
        let changed = pods.take_changed();
        if changed.is_empty() {
            return;
        }
        let is_new = |pod: &Pod| pod.key().is_some_and(|uid| changed.contains(&uid));
        let is_affected = |container: &Container| match container.pod {
            Some(uid) => changed.contains(&uid),
            None if container.id.is_empty() => false,
            None => pods.of_container(&container.id).is_some_and(|pod| is_new(&pod)),
        };
        for tgid in self.processes.rename(is_affected) {
            let _ = self.news.send(News::Renamed(tgid));
        }
        self.publish();
    }

    fn publish(&mut self) {
        for change in self.processes.changes() {
            let _ = self.news.send(News::Verdict(change));
        }
    }
}

#[cfg(test)]
mod tests;
