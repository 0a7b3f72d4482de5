//! A shelf: the segments of one signal to one destination, oldest first.
//!
//! In: requests. Out: the oldest request that is not done. Everything that leaves it is counted. Refuses to know other
//! shelves, and when there is too much.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::counts::{Counts, Gone};
use super::record::{Encoding, Header, PAYLOAD_BYTES};
use super::segment::{Reading, Segment};
use super::steady::TooOld;

/// How long what was written may wait for the disk, while something is written.
const SYNC: Duration = Duration::from_secs(1);

/// What is kept of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its body.
    pub body: Vec<u8>,
    /// What is appended to the URL; empty for nothing.
    pub query: String,
    /// How the body is kept.
    pub encoding: Encoding,
    /// Spans, points, samples or profiles in it.
    pub items: u64,
    /// When it was put here, by [`Slot::now`](super::Slot::now).
    pub time: u64,
}

/// A shelf on the disk.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) folder: PathBuf,
    pub(super) counts: Arc<Counts>,
    segments: VecDeque<Segment>,
    /// The end of the last segment, if this run has begun it and more may come.
    writing: Option<Writing>,
    /// In the first segment.
    reading: Option<Reading>,
    taken: Option<Taken>,
    /// Number of the next segment.
    next: u64,
}

#[derive(Debug)]
struct Writing {
    file: File,
    synced: Instant,
}

/// A request that was handed out, and is neither done nor back.
#[derive(Debug)]
struct Taken {
    sequence: u64,
    header: Header,
    /// Why its segment is gone meanwhile.
    gone: Option<Gone>,
}

impl Shelf {
    /// The shelf in `folder`, with what an earlier run has left there. A file that cannot be read is left alone.
    pub(super) fn open(folder: PathBuf, counts: Arc<Counts>) -> Self {
        let (segments, writing, reading, taken) = (VecDeque::new(), None, None, None);
        let mut shelf = Self { folder, counts, segments, writing, reading, taken, next: 1 };
        let entries = fs::read_dir(&shelf.folder).into_iter().flatten().flatten();
        let numbered = |path: PathBuf| Some((Segment::sequence(&path)?, path));
        let mut found: Vec<(u64, PathBuf)> = entries.filter_map(|entry| numbered(entry.path())).collect();
        found.sort_unstable();
        for (sequence, path) in found {
            shelf.next = sequence.saturating_add(1);
            shelf.restore(path, sequence);
        }
        shelf.tell();
        shelf
    }

    fn restore(&mut self, path: PathBuf, sequence: u64) {
        match Segment::count(path.clone(), sequence) {
            Ok((segment, damaged)) => {
                self.counts.lose(Gone::Corrupt, damaged);
                self.counts.restore(segment.items);
                if segment.items > 0 {
                    self.segments.push_back(segment);
                } else {
                    remove(&path);
                }
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a segment of the spool is left alone");
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Puts a request behind all others; a segment is closed when it has `segment_bytes`.
    pub(super) fn append(&mut self, kept: &Kept, segment_bytes: u64) -> io::Result<()> {
        let payload = [kept.query.as_bytes(), &kept.body].concat();
        let header = Header {
            is_done: false,
            encoding: kept.encoding,
            query: u16::try_from(kept.query.len()).map_err(io::Error::other)?,
            length: u32::try_from(payload.len()).map_err(io::Error::other)?,
            items: u32::try_from(kept.items).unwrap_or(u32::MAX),
            time: kept.time,
            check: crc32fast::hash(&payload),
        };
        if payload.len() > PAYLOAD_BYTES {
            return Err(io::Error::other("longer than a record may be"));
        }
        if self.segments.back().is_some_and(|segment| segment.bytes >= segment_bytes) {
            self.close();
        }
        // The file that was begun may be gone, as when a person has removed the folder.
        if self.writing.is_none() || self.segments.back().is_some_and(|segment| !segment.path.exists()) {
            self.close();
            self.begin()?;
        }
        let (Some(writing), Some(segment)) = (&mut self.writing, self.segments.back_mut()) else {
            return Err(io::Error::other("no segment is open"));
        };
        let appended = segment.append(&writing.file, &header, &payload);
        if appended.is_ok() {
            self.counts.write(header.items.into());
            if writing.synced.elapsed() >= SYNC {
                writing.synced = Instant::now();
                sync(&writing.file);
            }
        }
        self.tell();
        appended
    }

    fn begin(&mut self) -> io::Result<()> {
        if !self.folder.exists() {
            create_folder(&self.folder)?;
        }
        let (segment, file) = Segment::create(&self.folder, self.next)?;
        self.next = self.next.saturating_add(1);
        self.segments.push_back(segment);
        self.writing = Some(Writing { file, synced: Instant::now() });
        Ok(())
    }

    /// Nothing more goes into the last segment.
    pub(super) fn close(&mut self) {
        if let Some(Writing { file, .. }) = self.writing.take() {
            sync(&file);
        }
    }

    /// The oldest request that is not too old. It stays here until [`Self::done`]. `None` as well while one
    /// is taken.
    pub(super) fn take(&mut self, too_old: TooOld) -> Option<Kept> {
        while self.taken.is_none() {
            let sequence = self.segments.front()?.sequence;
            match self.read() {
                Ok(Some((header, _))) if too_old.is(header.time) => self.settle(&header, Some(Gone::Expired)),
                Ok(Some((header, Some(payload)))) => {
                    let (query, body) = payload.split_at(header.query.into());
                    let (body, query) = (body.to_vec(), String::from_utf8_lossy(query).into_owned());
                    let (encoding, items, time) = (header.encoding, header.items.into(), header.time);
                    self.taken = Some(Taken { sequence, header, gone: None });
                    return Some(Kept { body, query, encoding, items, time });
                }
                Ok(Some((header, None))) => self.settle(&header, Some(Gone::Corrupt)),
                // What is still to be had of it was damaged.
                Ok(None) => {
                    self.remove_first(Gone::Corrupt);
                }
                Err(error) => {
                    tracing::warn!(%error, folder = %self.folder.display(), "a segment of the spool is given up");
                    self.remove_first(Gone::Corrupt);
                }
            }
        }
        None
    }

    fn read(&mut self) -> io::Result<Option<(Header, Option<Vec<u8>>)>> {
        let Some(segment) = self.segments.front() else { return Ok(None) };
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(Reading::open(&segment.path)?),
        };
        let Some(header) = reading.next(segment.bytes)? else { return Ok(None) };
        Ok(Some((header, reading.payload(&header)?)))
    }

    /// The record at hand has been delivered, or is gone.
    fn settle(&mut self, header: &Header, gone: Option<Gone>) {
        let items = u64::from(header.items);
        match gone {
            Some(gone) => self.counts.lose(gone, items),
            None => self.counts.deliver(items),
        }
        if let (Some(reading), Some(segment)) = (&mut self.reading, self.segments.front_mut()) {
            reading.mark();
            reading.pass(header);
            segment.items = segment.items.saturating_sub(items);
            let is_over = reading.at >= segment.bytes;
            if is_over {
                self.remove_first(Gone::Corrupt);
            }
        }
        self.tell();
    }

    /// The request that was taken has been settled by its destination.
    pub(super) fn done(&mut self) {
        match self.taken.take() {
            Some(Taken { header, gone: None, .. }) => self.settle(&header, None),
            Some(Taken { header, .. }) => self.counts.deliver(header.items.into()),
            None => {}
        }
    }

    /// The request that was taken is none, whatever its checksum says.
    pub(super) fn spoil(&mut self) {
        match self.taken.take() {
            Some(Taken { header, gone: None, .. }) => self.settle(&header, Some(Gone::Corrupt)),
            Some(Taken { header, .. }) => self.counts.lose(Gone::Corrupt, header.items.into()),
            None => {}
        }
    }

    /// The request that was taken comes again.
    pub(super) fn put_back(&mut self) {
        if let Some(Taken { header, gone: Some(gone), .. }) = self.taken.take() {
            self.counts.lose(gone, header.items.into());
        }
    }

    /// Removes the oldest segment, with what is not done in it. Needs no space. `false` when there is none.
    pub(super) fn remove_first(&mut self, gone: Gone) -> bool {
        let Some(segment) = self.segments.pop_front() else { return false };
        let mut items = segment.items;
        if let Some(taken) = &mut self.taken
            && taken.sequence == segment.sequence
            && taken.gone.is_none()
        {
            // It is counted when its destination has said what becomes of it.
            taken.gone = Some(gone);
            items = items.saturating_sub(taken.header.items.into());
        }
        self.counts.lose(gone, items);
        self.reading = None;
        if self.segments.is_empty() {
            self.writing = None;
        }
        remove(&segment.path);
        self.tell();
        true
    }

    /// Removes segments in which everything is too old.
    pub(super) fn expire(&mut self, too_old: TooOld) {
        while self.segments.front().is_some_and(|segment| too_old.is(segment.newest)) {
            self.remove_first(Gone::Expired);
        }
    }

    fn tell(&self) {
        let items = self.segments.iter().map(|segment| segment.items).sum();
        let oldest = self.segments.front().map_or(0, |segment| segment.oldest);
        self.counts.hold(self.bytes(), items, oldest);
    }
}

/// A folder for this user alone.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn sync(file: &File) {
    if let Err(error) = file.sync_data() {
        tracing::warn!(%error, "a segment of the spool may not be on the disk yet");
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "a segment of the spool could not be removed");
    }
}
