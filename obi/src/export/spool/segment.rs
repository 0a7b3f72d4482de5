//! A segment: one file of records, written once, read once, removed as a whole.
//!
//! In: records. Out: the same in order. Everything that is known of a segment is in its file; what is kept in memory is
//! counted anew at each start. Refuses to know other segments, and bounds.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::record::{self, DONE, DONE_AT, Found, Header};

/// What is known of a file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) sequence: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Items of records that are not done.
    pub(super) items: u64,
    /// Time of the last record.
    pub(super) newest: u64,
    /// Time of the first record.
    pub(super) oldest: u64,
}

impl Segment {
    /// A new file in `folder`.
    pub(super) fn create(folder: &Path, sequence: u64) -> io::Result<(Self, File)> {
        let path = folder.join(format!("{sequence:016x}.seg"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((Self { sequence, path, bytes: 0, items: 0, newest: 0, oldest: 0 }, file))
    }

    /// The number of a file that may be a segment.
    pub(super) fn sequence(path: &Path) -> Option<u64> {
        let digits = path.file_name()?.to_str()?.strip_suffix(".seg")?;
        (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    }

    /// Counts what is in a file of an earlier run. Items of damaged records come beside it.
    pub(super) fn count(path: PathBuf, sequence: u64) -> io::Result<(Self, u64)> {
        let mut file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let mut segment = Self { sequence, path, bytes, items: 0, newest: 0, oldest: 0 };
        let (mut at, mut damaged) = (0, 0_u64);
        loop {
            match record::find(&mut file, at, bytes)? {
                Found::End => return Ok((segment, damaged)),
                Found::Damage { items, next } => {
                    damaged = damaged.saturating_add(items);
                    at = next;
                }
                Found::Record(header) => {
                    if !header.is_done {
                        segment.note(&header);
                    }
                    at += header.record_bytes();
                }
            }
        }
    }

    /// Appends a record. On failure the file is as it was.
    pub(super) fn append(&mut self, file: &File, header: &Header, payload: &[u8]) -> io::Result<()> {
        let whole = [&header.written()[..], payload].concat();
        let written = file.write_all_at(&whole, self.bytes);
        if let Err(error) = written {
            // What cannot be taken back is damage, which the reader passes over.
            let _ = file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += whole.len() as u64;
        self.note(header);
        Ok(())
    }

    fn note(&mut self, header: &Header) {
        self.items = self.items.saturating_add(header.items.into());
        self.newest = self.newest.max(header.time);
        if self.oldest == 0 {
            self.oldest = header.time;
        }
    }
}

/// A segment that is read.
#[derive(Debug)]
pub(super) struct Reading {
    file: File,
    /// Where the next record is looked for.
    pub(super) at: u64,
}

impl Reading {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, at: 0 })
    }

    /// The next record that is not done, before `end`. Its place stays where it is until [`Self::pass`].
    pub(super) fn next(&mut self, end: u64) -> io::Result<Option<Header>> {
        loop {
            match record::find(&mut self.file, self.at, end)? {
                Found::End => return Ok(None),
                Found::Damage { next, .. } => self.at = next,
                Found::Record(header) if header.is_done => self.pass(&header),
                Found::Record(header) => return Ok(Some(header)),
            }
        }
    }

    /// The payload of the record at hand; `None` when it is damaged.
    pub(super) fn payload(&mut self, header: &Header) -> io::Result<Option<Vec<u8>>> {
        record::payload(&mut self.file, self.at, header)
    }

    /// Marks the record at hand as done. That needs no space: should it fail all the same, the record comes again after
    /// the next start.
    pub(super) fn mark(&self) {
        if let Err(error) = self.file.write_all_at(&[DONE], self.at + DONE_AT) {
            tracing::debug!(%error, "a record of the spool could not be marked as done");
        }
    }

    /// Goes on behind the record at hand.
    pub(super) fn pass(&mut self, header: &Header) {
        self.at += header.record_bytes();
    }
}
