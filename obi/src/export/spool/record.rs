//! A record of a segment file: a header with a checksum of its own, then the payload.
//!
//! In: payloads; bytes of files, which may hold anything. Out: records; the next record behind damage. Refuses to know
//! what a payload means.
//!
//! ```text
//! 0      4    5        6     8      12    16   24     28       32     36
//! magic  done encoding query length items time  check  zero     check  payload: query, then body
//!                                              of payload      of header, with `done` as zero
//! ```
//!
//! Numbers are little endian. `done` is the one byte that changes later, by an overwrite that needs no space.

use std::io::{self, Read, Seek, SeekFrom};

use memchr::memmem;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 36;
/// Longest payload: what a request may be, with room for its query.
pub(super) const PAYLOAD_BYTES: usize = 4 << 20;
const MAGIC: [u8; 4] = *b"obiR";
/// Where `done` is.
pub(super) const DONE_AT: u64 = 4;
pub(super) const DONE: u8 = 0xff;
/// Read at once while looking for a header.
const LOOK_BYTES: usize = 64 << 10;

/// How a body is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As it was.
    Plain,
    /// As RFC 1952 says.
    Gzip,
}

/// All about a record but its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) is_done: bool,
    pub(super) encoding: Encoding,
    /// Bytes of the query, at the beginning of the payload.
    pub(super) query: u16,
    /// Bytes of the payload.
    pub(super) length: u32,
    pub(super) items: u32,
    /// Seconds since the Unix epoch.
    pub(super) time: u64,
    pub(super) check: u32,
}

impl Header {
    /// Bytes of the whole record.
    pub(super) fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.length)
    }

    pub(super) fn written(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[5] = match self.encoding {
            Encoding::Plain => 0,
            Encoding::Gzip => 1,
        };
        bytes[6..8].copy_from_slice(&self.query.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.items.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.check.to_le_bytes());
        let check = crc32fast::hash(&bytes[..32]);
        bytes[32..].copy_from_slice(&check.to_le_bytes());
        bytes[4] = if self.is_done { DONE } else { 0 };
        bytes
    }

    /// `None` when it is none.
    pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut checked = *bytes;
        checked[4] = 0;
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC || crc32fast::hash(&checked[..32]) != number(32) {
            return None;
        }
        let encoding = match bytes[5] {
            0 => Encoding::Plain,
            1 => Encoding::Gzip,
            _ => return None,
        };
        let header = Self {
            // The only byte without a checksum: more than half of its bits decide.
            is_done: bytes[4].count_ones() > 4,
            encoding,
            query: u16::from_le_bytes([bytes[6], bytes[7]]),
            length: number(8),
            items: number(12),
            time: u64::from(number(16)) | u64::from(number(20)) << 32,
            check: number(24),
        };
        let length = header.length as usize;
        (length <= PAYLOAD_BYTES && usize::from(header.query) <= length).then_some(header)
    }
}

/// What is at a place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A whole record; its payload may be damaged.
    Record(Header),
    /// None; go on at `next`. `items` is what a record that was cut off had; one where nothing is known.
    Damage { items: u64, next: u64 },
    /// The end of the file.
    End,
}

/// What is at `at` of a file that ends at `end`.
pub(super) fn find(file: &mut (impl Read + Seek), at: u64, end: u64) -> io::Result<Found> {
    if at >= end {
        return Ok(Found::End);
    }
    let mut bytes = [0; HEADER_BYTES];
    if end - at >= HEADER_BYTES as u64 {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut bytes)?;
        if let Some(header) = Header::read(&bytes) {
            let is_whole = header.record_bytes() <= end - at;
            let cut_off = Found::Damage { items: header.items.into(), next: end };
            return Ok(if is_whole { Found::Record(header) } else { cut_off });
        }
    }
    Ok(Found::Damage { items: 1, next: next_header(file, at + 1, end)? })
}

/// Where the next header begins behind damage; `end` where there is none.
fn next_header(file: &mut (impl Read + Seek), from: u64, end: u64) -> io::Result<u64> {
    let mut window = vec![0; LOOK_BYTES + HEADER_BYTES - 1];
    let mut at = from;
    while end.saturating_sub(at) >= HEADER_BYTES as u64 {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(window.len());
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut window[..length])?;
        for place in memmem::find_iter(&window[..length], &MAGIC) {
            let header = window[place..length].first_chunk().and_then(Header::read);
            if header.is_some() {
                return Ok(at + place as u64);
            }
        }
        // A header that began in the last bytes begins in the next look.
        at += (length - (HEADER_BYTES - 1)) as u64;
    }
    Ok(end)
}

/// The payload of a record at `at`; `None` when it is damaged.
pub(super) fn payload(
    file: &mut (impl Read + Seek),
    at: u64,
    header: &Header,
) -> io::Result<Option<Vec<u8>>> {
    let mut payload = vec![0; header.length as usize];
    file.seek(SeekFrom::Start(at + HEADER_BYTES as u64))?;
    file.read_exact(&mut payload)?;
    Ok((crc32fast::hash(&payload) == header.check).then_some(payload))
}

/// A record with this payload, as it is written. For tests.
#[must_use]
pub fn record_of(payload: &[u8]) -> Vec<u8> {
    let header = Header {
        is_done: false,
        encoding: Encoding::Plain,
        query: 0,
        length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        items: 1,
        time: 1,
        check: crc32fast::hash(payload),
    };
    [&header.written()[..], payload].concat()
}

/// Reads a file of any content as the spool does: whole records, and items of others. For tests with hostile bytes.
///
/// # Errors
/// When `file` cannot be read.
pub fn read_all(file: &mut (impl Read + Seek)) -> io::Result<(Vec<Vec<u8>>, u64)> {
    let end = file.seek(SeekFrom::End(0))?;
    let (mut at, mut whole, mut damaged) = (0, Vec::new(), 0_u64);
    loop {
        match find(file, at, end)? {
            Found::End => return Ok((whole, damaged)),
            Found::Damage { items, next } => {
                damaged = damaged.saturating_add(items);
                at = next;
            }
            Found::Record(header) => {
                match payload(file, at, &header)? {
                    Some(payload) => whole.push(payload),
                    None => damaged = damaged.saturating_add(header.items.into()),
                }
                at += header.record_bytes();
            }
        }
    }
}
