//! What survives a restart, a `kill -9` and a full disk: counts of time slots and alerts, in one crash-safe file.
//!
//! In: chunks of slots as bytes, alerts. Out: the same after a restart. Each [`State::write`] is one transaction: after
//! a crash either all of it is there or nothing. Refuses to know what is in a chunk and when to write.
//!
//! The file is a redb database. SQLite would do as well, with a C library; an own log with snapshots would be a second
//! database to maintain; sled is not maintained; an LSM tree (fjall) is made for more data and uses many files.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slo::Time;
use slo::alert::{ArmState, SavedArm};
use thiserror::Error;

use super::alert::Alert;

/// Name of the file in the directory of the configuration.
const FILE: &str = "counts.redb";
/// Its name while it is made.
const UNFINISHED: &str = "counts.redb.unfinished";
/// Pages kept in memory: the newest chunks are few.
const CACHE_BYTES: usize = 4 << 20;
/// Directory mode: names of services concern no other user.
const MODE: u32 = 0o750;

/// Of one objective: (what it counts, part, series, number of the chunk).
pub type Key = (u64, u16, u8, i64);

const CHUNKS: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("chunks");
const COVERAGE: TableDefinition<'_, i64, i64> = TableDefinition::new("coverage");
const TEXTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("texts");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

/// Texts, as JSON.
const ALERTS: &str = "alerts";
const ARMS: &str = "arms";
/// Layout of everything here; another one is refused.
const LAYOUT: &str = "layout";
const LAYOUT_NOW: u64 = 1;

/// Why the state cannot be used. Every text is one line.
#[derive(Debug, Error)]
pub enum StateError {
    /// The directory.
    #[error("failed to make the directory `{}`: {reason}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The file.
    #[error("failed to {what} `{}`: {reason}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the store said.
        reason: Box<redb::Error>,
    },
    /// Written by another version.
    #[error("`{}` has layout {found}, this version knows {LAYOUT_NOW}; move it away to begin anew", path.display())]
    Layout {
        /// Which.
        path: PathBuf,
        /// What is there.
        found: u64,
    },
}

/// One transaction.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Chunks that have changed, each whole.
    pub chunks: Vec<(Key, Vec<u8>)>,
    /// Intervals in which everything was counted, those that have changed: begin and end, Unix nanoseconds.
    pub coverage: Vec<(i64, i64)>,
    /// Alerts; `None` when nothing has changed.
    pub alerts: Option<SavedAlerts>,
}

/// Alerts over a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedAlerts {
    /// The alerts that are reported.
    pub alerts: Vec<Alert>,
    /// Why.
    pub arms: Vec<Arm>,
}

/// The state of one way in which an alert can fire ([`slo::alert::SavedArm`]). Times are Unix nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    objective: String,
    severity: String,
    policy: String,
    arm: u32,
    starts_at: Option<i64>,
    pending_since: Option<i64>,
    firing_since: Option<i64>,
    recovered_at: Option<i64>,
    missing: bool,
}

impl From<SavedArm> for Arm {
    fn from(saved: SavedArm) -> Self {
        let nanos = |time: Option<Time>| time.map(Time::nanos);
        Self {
            objective: saved.objective,
            severity: saved.severity,
            policy: saved.policy,
            arm: saved.arm,
            starts_at: nanos(saved.starts_at),
            pending_since: nanos(saved.state.pending_since),
            firing_since: nanos(saved.state.firing_since),
            recovered_at: nanos(saved.state.recovered_at),
            missing: saved.state.missing,
        }
    }
}

impl From<Arm> for SavedArm {
    fn from(arm: Arm) -> Self {
        let time = |nanos: Option<i64>| nanos.map(Time::from_nanos);
        let state = ArmState {
            pending_since: time(arm.pending_since),
            firing_since: time(arm.firing_since),
            recovered_at: time(arm.recovered_at),
            missing: arm.missing,
        };
        Self {
            objective: arm.objective,
            severity: arm.severity,
            policy: arm.policy,
            arm: arm.arm,
            starts_at: time(arm.starts_at),
            state,
        }
    }
}

/// What an earlier run has left.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// Chunks by key.
    pub chunks: Vec<(Key, Vec<u8>)>,
    /// When it counted.
    pub coverage: Vec<(i64, i64)>,
    /// Alerts.
    pub alerts: SavedAlerts,
}

/// The open file. One process at a time may have it.
#[derive(Debug)]
pub struct State {
    database: Database,
    path: PathBuf,
}

impl State {
    /// Opens the file in this directory; makes both at need. After a crash it is put in order first.
    ///
    /// # Errors
    /// When the directory cannot be made, the file cannot be opened or made (no room, no permission, another agent has
    /// it), or it is none of ours.
    pub fn open(directory: &Path) -> Result<Self, StateError> {
        DirBuilder::new()
            .recursive(true)
            .mode(MODE)
            .create(directory)
            .map_err(|reason| StateError::Directory { path: directory.to_owned(), reason })?;
        let path = directory.join(FILE);
        if path.exists() {
            return Self::open_file(path);
        }
        // A file is there when it is whole: one that was begun on a full disk could never be opened again.
        let unfinished = directory.join(UNFINISHED);
        let remove = || drop(std::fs::remove_file(&unfinished));
        remove();
        let state = Self::open_file(unfinished.clone()).inspect_err(|_| remove())?;
        std::fs::rename(&unfinished, &path)
            .map_err(|reason| failed("rename", &unfinished)(redb::Error::Io(reason)))?;
        Ok(Self { path, ..state })
    }

    fn open_file(path: PathBuf) -> Result<Self, StateError> {
        let opened = redb::Builder::new().set_cache_size(CACHE_BYTES).create(&path);
        let database = opened.map_err(|error| failed("open", &path)(error.into()))?;
        let state = Self { database, path };
        let found = state.prepare().map_err(failed("prepare", &state.path))?;
        if found == LAYOUT_NOW { Ok(state) } else { Err(StateError::Layout { path: state.path, found }) }
    }

    /// Makes the tables and says which layout they have.
    fn prepare(&self) -> Result<u64, redb::Error> {
        let transaction = self.database.begin_write()?;
        let found = {
            transaction.open_table(CHUNKS)?;
            transaction.open_table(COVERAGE)?;
            transaction.open_table(TEXTS)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            let found = numbers.get(LAYOUT)?.map(|layout| layout.value());
            match found {
                Some(found) => found,
                None => {
                    numbers.insert(LAYOUT, LAYOUT_NOW)?;
                    LAYOUT_NOW
                }
            }
        };
        transaction.commit()?;
        Ok(found)
    }

    /// Everything that is there.
    ///
    /// # Errors
    /// When reading fails.
    pub fn load(&self) -> Result<Left, StateError> {
        self.try_load().map_err(failed("read", &self.path))
    }

    fn try_load(&self) -> Result<Left, redb::Error> {
        let mut left = Left::default();
        let transaction = self.database.begin_read()?;
        for entry in transaction.open_table(CHUNKS)?.iter()? {
            let (key, bytes) = entry?;
            left.chunks.push((key.value(), bytes.value().to_vec()));
        }
        for entry in transaction.open_table(COVERAGE)?.iter()? {
            let (begin, end) = entry?;
            left.coverage.push((begin.value(), end.value()));
        }
        let texts = transaction.open_table(TEXTS)?;
        left.alerts = SavedAlerts { alerts: parse(&texts, ALERTS)?, arms: parse(&texts, ARMS)? };
        Ok(left)
    }

    /// Writes all of it or nothing; when this returns it survives a power cut.
    ///
    /// # Errors
    /// When the disk is full or broken. The file must be opened anew then.
    pub fn write(&self, batch: &Batch) -> Result<(), StateError> {
        self.try_write(batch).map_err(failed("write", &self.path))
    }

    fn try_write(&self, batch: &Batch) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut chunks = transaction.open_table(CHUNKS)?;
            for (key, bytes) in &batch.chunks {
                chunks.insert(*key, bytes.as_slice())?;
            }
            let mut coverage = transaction.open_table(COVERAGE)?;
            for (begin, end) in &batch.coverage {
                coverage.insert(begin, end)?;
            }
            if let Some(SavedAlerts { alerts, arms }) = &batch.alerts {
                let mut texts = transaction.open_table(TEXTS)?;
                texts.insert(ALERTS, json(alerts).as_slice())?;
                texts.insert(ARMS, json(arms).as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Forgets chunks that are needed no more, and coverage that ended before `horizon`. Returns how many chunks.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn prune(&self, horizon: i64, is_needed: impl Fn(Key) -> bool) -> Result<u64, StateError> {
        let prune = || -> Result<u64, redb::Error> {
            let transaction = self.database.begin_write()?;
            let mut n_removed = 0;
            transaction.open_table(CHUNKS)?.retain(|key, _| {
                let needed = is_needed(key);
                n_removed += u64::from(!needed);
                needed
            })?;
            transaction.open_table(COVERAGE)?.retain(|_, end| end >= horizon)?;
            transaction.commit()?;
            Ok(n_removed)
        };
        prune().map_err(failed("prune", &self.path))
    }
}

/// A text that cannot be read is as good as none: what still fires will fire again.
fn parse<T: DeserializeOwned>(
    texts: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Vec<T>, redb::Error> {
    let Some(text) = texts.get(name)? else { return Ok(Vec::new()) };
    Ok(serde_json::from_slice(text.value()).unwrap_or_else(|error| {
        tracing::warn!(%error, name, "stored state of alerts skipped");
        Vec::new()
    }))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are always JSON")
}

fn failed(what: &'static str, path: &Path) -> impl Fn(redb::Error) -> StateError {
    let path = path.to_owned();
    move |reason| StateError::File { what, path: path.clone(), reason: Box::new(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::alert::Labels;

    fn batch(number: u32) -> Batch {
        let labels = Labels::from([("slo".to_owned(), number.to_string())]);
        let alert = Alert { labels, annotations: Labels::new(), starts_at: 7, resolved_at: None };
        let bytes = vec![u8::try_from(number).unwrap(); 100];
        let chunks = vec![((1, 0, 0, number.into()), bytes.clone()), ((2, 0, 1, 5), bytes)];
        let state = ArmState { firing_since: Some(Time::from_seconds(7)), ..ArmState::default() };
        let arm = SavedArm {
            objective: "shop".to_owned(),
            severity: "page".to_owned(),
            policy: "default".to_owned(),
            arm: number,
            starts_at: Some(Time::from_seconds(7)),
            state,
        };
        let alerts = Some(SavedAlerts { alerts: vec![alert], arms: vec![arm.into()] });
        Batch { chunks, alerts, coverage: vec![(7, number.into())] }
    }

    #[test]
    fn what_was_written_is_there_again() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a/b");
        for number in 1..4 {
            let state = State::open(&below).unwrap();
            let seen = state.load().unwrap().coverage.first().map_or(0, |(_, end)| *end);
            assert_eq!(seen, i64::from(number - 1));
            state.write(&batch(number)).unwrap();
        }
        let left = State::open(&below).unwrap().load().unwrap();
        let keys: Vec<Key> = left.chunks.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [(1, 0, 0, 1), (1, 0, 0, 2), (1, 0, 0, 3), (2, 0, 1, 5)]);
        assert_eq!((left.chunks[3].1[0], left.coverage), (3, vec![(7, 3)]));
        assert_eq!(Some(left.alerts.clone()), batch(3).alerts);
        let arm: SavedArm = left.alerts.arms[0].clone().into();
        assert_eq!(
            (arm.arm, arm.starts_at, arm.state.firing_since),
            (3, arm.state.firing_since, arm.starts_at)
        );
    }

    #[test]
    fn what_nobody_needs_goes() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        (1..10).for_each(|number| state.write(&batch(number)).unwrap());
        assert_eq!(state.prune(9, |(objective, _, _, chunk)| objective == 1 && chunk > 6).unwrap(), 7);
        let left = state.load().unwrap();
        assert_eq!(left.chunks.iter().map(|((_, _, _, chunk), _)| *chunk).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(left.coverage, [(7, 9)]);
        state.prune(10, |_| true).unwrap();
        assert_eq!(state.load().unwrap().coverage, []);
    }

    #[test]
    fn one_process_at_a_time_and_only_our_files() {
        let directory = tempfile::tempdir().unwrap();
        let first = State::open(directory.path()).unwrap();
        let error = State::open(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("failed to open `") && !error.contains('\n'), "{error}");
        drop(first);
        let file = directory.path().join(FILE);
        std::fs::write(&file, "something else, long enough to be looked at".repeat(1_000)).unwrap();
        let error = State::open(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("failed to open `") && !error.contains('\n'), "{error}");
        let error = State::open(&file).unwrap_err().to_string();
        assert!(error.starts_with("failed to make the directory `"), "{error}");
    }

    #[test]
    fn another_layout_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let transaction = state.database.begin_write().unwrap();
        transaction.open_table(NUMBERS).unwrap().insert(LAYOUT, 77).unwrap();
        transaction.commit().unwrap();
        drop(state);
        let error = State::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("has layout 77"), "{error}");
    }
}
