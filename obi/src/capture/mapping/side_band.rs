//! The kernel's side-band: what processes map to be executed, and how they begin and end.
//!
//! In: bytes of one record of a performance event's ring (`perf_event_open(2)`). Out: [`Record`]. Pure; lengths are
//! checked, and nothing in a record makes it fail otherwise or grow. Refuses to know what was mapped before.
#![forbid(unsafe_code)]

use thiserror::Error;

/// A record and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// What happened.
    pub event: Event<'a>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A process maps something that may be executed.
    Mapped {
        /// Which process.
        tgid: u32,
        /// What.
        mapped: Mapped<'a>,
    },
    /// Another program in a process: nothing of what it mapped is left.
    Exec {
        /// Which process.
        tgid: u32,
    },
    /// A process was made; it maps what its parent does.
    Fork {
        /// Its parent.
        parent: u32,
        /// The process.
        tgid: u32,
    },
    /// The first thread of a process has ended; others may go on.
    Exit {
        /// Which process.
        tgid: u32,
    },
    /// Records did not fit into the ring.
    Lost {
        /// How many.
        n: u64,
    },
    /// Nothing that concerns mappings: threads, names, throttling.
    Other,
}

/// A mapping that may be executed, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped<'a> {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Of `start` in the file, bytes.
    pub offset: u64,
    /// Major and minor number of the file system; 0 for what is no file.
    pub device: (u32, u32),
    /// Inode; 0 for what is no file.
    pub inode: u64,
    /// Distinguishes files that had one inode after each other; 0: not known.
    pub generation: u64,
    /// Path inside the process's root, or what the kernel calls it: `//anon`, `[vdso]`.
    pub path: &'a str,
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Shorter than what its kind has.
    #[error("side-band record of kind {kind} and {bytes} bytes is cut")]
    Short {
        /// Its kind, 0 if even that is missing.
        kind: u32,
        /// Bytes there are.
        bytes: usize,
    },
}

// `enum perf_event_type`
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC`: the name has changed because the program has.
const IS_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`: a build id stands where device and inode do else.
const HAS_BUILD_ID: u16 = 1 << 14;
const EXECUTED: u32 = 4;
/// Type, flags, length.
pub const HEADER_BYTES: usize = 8;
/// Behind each record (`sample_id_all` with only `PERF_SAMPLE_TIME`).
const TIME_BYTES: usize = 8;
/// Longest path that is kept, bytes.
const PATH_BYTES: usize = 4096;

/// Length of the record that begins with this header, its header included. Never 0.
#[must_use]
pub fn length(header: [u8; HEADER_BYTES]) -> usize {
    let [.., low, high] = header;
    usize::from(u16::from_ne_bytes([low, high])).max(HEADER_BYTES)
}

/// Reads one record, header and all. The events were opened with their time as the only sample field.
///
/// # Errors
/// When it is shorter than its kind.
pub fn parse(record: &[u8]) -> Result<Record<'_>, RecordError> {
    let kind = Fields(record).u32(0).unwrap_or(0);
    read(record, kind).ok_or(RecordError::Short { kind, bytes: record.len() })
}

fn read(record: &[u8], kind: u32) -> Option<Record<'_>> {
    let flags = Fields(record).u16(4)?;
    let (body, time) = record.get(HEADER_BYTES..)?.split_last_chunk::<TIME_BYTES>()?;
    let fields = Fields(body);
    let event = match kind {
        MMAP2 => mapped(fields, flags)?,
        COMM if flags & IS_EXEC != 0 => process(fields.u32(0)?, |tgid| Event::Exec { tgid }),
        FORK | EXIT => {
            let (tgid, parent, thread) = (fields.u32(0)?, fields.u32(4)?, fields.u32(8)?);
            match kind {
                FORK if tgid != parent => process(tgid, |tgid| Event::Fork { parent, tgid }),
                EXIT if tgid == thread => process(tgid, |tgid| Event::Exit { tgid }),
                _ => Event::Other,
            }
        }
        LOST => Event::Lost { n: fields.u64(8)? },
        _ => Event::Other,
    };
    Some(Record { time: u64::from_ne_bytes(*time), event })
}

/// `pid, tid, addr, len, pgoff, {maj, min, ino, ino_generation}, prot, flags, filename`
fn mapped(fields: Fields<'_>, flags: u16) -> Option<Event<'_>> {
    let tgid = fields.u32(0)?;
    let (start, length, offset) = (fields.u64(8)?, fields.u64(16)?, fields.u64(24)?);
    let (device, inode, generation) = match flags & HAS_BUILD_ID {
        0 => ((fields.u32(32)?, fields.u32(36)?), fields.u64(40)?, fields.u64(48)?),
        _ => ((0, 0), 0, 0),
    };
    let protection = fields.u32(56)?;
    let name = fields.0.get(64..)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    // A path that is no text names no file of ours; what the kernel knows the file by stays.
    let path = std::str::from_utf8(&name[..name.len().min(PATH_BYTES)]).unwrap_or("");
    let end = start.checked_add(length).filter(|end| *end > start);
    let Some(end) = end.filter(|_| protection & EXECUTED != 0) else { return Some(Event::Other) };
    let mapped = Mapped { start, end, offset, device, inode, generation, path };
    Some(process(tgid, |tgid| Event::Mapped { tgid, mapped }))
}

/// Processes of other pid namespaces have no number here, and the idle ones have 0.
fn process<'a>(tgid: u32, event: impl FnOnce(u32) -> Event<'a>) -> Event<'a> {
    match i32::try_from(tgid) {
        Ok(1..) => event(tgid),
        _ => Event::Other,
    }
}

#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(self, at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn u32(self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn u64(self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.0.get(at..)?.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, flags: u16, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let length = u16::try_from(HEADER_BYTES + body.len() + TIME_BYTES).unwrap();
        let (kind, flags) = (kind.to_ne_bytes(), flags.to_ne_bytes());
        [&kind[..], &flags, &length.to_ne_bytes(), &body, &77_u64.to_ne_bytes()].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    fn mmap2(flags: u16, length: u64, protection: u32, path: &[u8]) -> Vec<u8> {
        let (ids, range) = (words(&[7, 8]), longs(&[0x1000, length, 0x3000]));
        let (device, inode, rest) = (words(&[253, 1]), longs(&[99, 5]), words(&[protection, 2]));
        record(MMAP2, flags, &[&ids, &range, &device, &inode, &rest, path])
    }

    #[test]
    fn what_happened_is_read() {
        fn check(record: &[u8], expected: Event<'_>) {
            assert_eq!(parse(record), Ok(Record { time: 77, event: expected }), "{record:?}");
            assert_eq!(length(*record.first_chunk().unwrap()), record.len());
        }
        let mapped = Mapped {
            start: 0x1000,
            end: 0x3000,
            offset: 0x3000,
            device: (253, 1),
            inode: 99,
            generation: 5,
            path: "/bin/x",
        };
        check(&mmap2(0, 0x2000, 5, b"/bin/x\0\0"), Event::Mapped { tgid: 7, mapped });
        let unnamed = Mapped { device: (0, 0), inode: 0, generation: 0, ..mapped };
        check(&mmap2(HAS_BUILD_ID, 0x2000, 5, b"/bin/x\0\0"), Event::Mapped { tgid: 7, mapped: unnamed });
        check(
            &mmap2(0, 0x2000, 5, b"\xff\0"),
            Event::Mapped { tgid: 7, mapped: Mapped { path: "", ..mapped } },
        );
        check(&mmap2(0, 0x2000, 3, b"/bin/x\0\0"), Event::Other);
        check(&mmap2(0, 0, 5, b"/bin/x\0\0"), Event::Other);
        check(&mmap2(0, u64::MAX, 5, b"/bin/x\0\0"), Event::Other);
        check(&record(COMM, IS_EXEC, &[&words(&[7, 7]), b"name\0\0\0\0"]), Event::Exec { tgid: 7 });
        check(&record(COMM, 0, &[&words(&[7, 7]), b"name\0\0\0\0"]), Event::Other);
        let task = |kind, ids: [u32; 4]| record(kind, 0, &[&words(&ids), &longs(&[77])]);
        check(&task(FORK, [8, 7, 8, 7]), Event::Fork { parent: 7, tgid: 8 });
        check(&task(FORK, [7, 7, 9, 7]), Event::Other);
        check(&task(FORK, [0, 7, 0, 7]), Event::Other);
        check(&task(EXIT, [7, 1, 7, 1]), Event::Exit { tgid: 7 });
        check(&task(EXIT, [7, 7, 9, 7]), Event::Other);
        check(&task(EXIT, [u32::MAX, 7, u32::MAX, 7]), Event::Other);
        check(&record(LOST, 0, &[&longs(&[3, 12])]), Event::Lost { n: 12 });
        check(&record(5, 0, &[]), Event::Other);
    }

    #[test]
    fn what_is_cut_is_refused() {
        assert_eq!(parse(&[]), Err(RecordError::Short { kind: 0, bytes: 0 }));
        let whole = mmap2(0, 0x2000, 5, b"");
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "{end}");
        }
        assert_eq!(length([0; 8]), HEADER_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(kind in 0_u32..20, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let record = [&kind.to_ne_bytes()[..], &bytes].concat();
            if let Ok(Record { event: Event::Mapped { tgid, mapped }, .. }) = parse(&record) {
                prop_assert!(tgid > 0 && mapped.start < mapped.end && mapped.path.len() <= bytes.len());
            }
        }
    }
}
