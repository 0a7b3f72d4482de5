//! Header blocks to the few fields that matter (HPACK, RFC 7541), tolerant of what was not seen.
//!
//! In: whole header blocks of one direction of one connection, in order. Out: a [`Head`]. Where a block refers to a
//! part of the table that was never seen, the field is unknown, and later insertions make the table known again; a
//! value is never made up ([`table`]). Secrets end here: values of cookies and of authorization are neither decoded nor
//! kept, paths are kept without values. Refuses to know frames and streams.

mod head;
mod huffman;
mod name;
mod reader;
mod table;

pub use head::Head;
pub use name::Name;

use crate::protocol::redact::{host_of, split_target, write_path, write_query};
use name::{N_STATIC, static_entry};
use reader::{Reader, Text};
use table::{Found, Table};
use thiserror::Error;

/// No encoder made these bytes, or some of them are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a header block")]
pub struct Malformed;

/// Decodes the header blocks of one direction.
#[derive(Debug, Default)]
pub struct Decoder {
    table: Table,
}

impl Decoder {
    /// Reads a block into `head`, whatever was in it before.
    ///
    /// # Errors
    /// When the bytes are no header block. `head` then holds the fields before that place, and the decoder has
    /// forgotten its table.
    pub fn decode(&mut self, block: &[u8], head: &mut Head) -> Result<(), Malformed> {
        head.clear();
        let outcome = self.fields(&mut Reader::new(block), head);
        if outcome.is_err() {
            self.forget();
        }
        outcome
    }

    /// Blocks were missed: entries are unknown until they are inserted anew.
    pub fn forget(&mut self) {
        self.table.forget();
    }

    /// Memory held, bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }

    fn fields(&mut self, block: &mut Reader<'_>, head: &mut Head) -> Result<(), Malformed> {
        while let Some(first) = block.peek() {
            match first {
                0x80.. => self.indexed(block.integer(7)?, head)?,
                0x40..0x80 => self.literal(block, 6, true, head)?,
                0x20..0x40 => self.table.resize(block.integer(5)?),
                _ => self.literal(block, 4, false, head)?,
            }
        }
        Ok(())
    }

    fn indexed(&mut self, index: u32, head: &mut Head) -> Result<(), Malformed> {
        match self.entry(index)? {
            Some(Found { name, value: Some(value), .. }) => head.push(name, value),
            Some(Found { name, value: None, .. }) => head.push_unknown(name),
            None => head.push_unknown(Name::Unknown),
        }
        Ok(())
    }

    fn literal(
        &mut self,
        block: &mut Reader<'_>,
        prefix: u32,
        is_inserted: bool,
        head: &mut Head,
    ) -> Result<(), Malformed> {
        let (name, name_length) = match block.integer(prefix)? {
            0 => named(block.text()?, is_inserted)?,
            index => match self.entry(index)? {
                Some(found) => (found.name, usize::from(found.name_length)),
                // Too short in the account of the table, which errs on the side of keeping more.
                None => (Name::Unknown, 0),
            },
        };
        let value = block.text()?;
        if !name.is_kept() {
            if is_inserted {
                self.table.insert(name, name_length, value.length()?, |_| ());
            }
            if name == Name::Unknown {
                head.push_unknown(name);
            }
            return Ok(());
        }
        let value = head.push_text(name, value)?;
        if is_inserted {
            self.table.insert(name, name_length, value.len(), |kept| keep(name, value, kept));
        }
        Ok(())
    }

    fn entry(&mut self, index: u32) -> Result<Option<Found<'_>>, Malformed> {
        if index > N_STATIC {
            return Ok(self.table.get(index - N_STATIC));
        }
        let entry = static_entry(index).ok_or(Malformed)?;
        Ok(Some(Found { name: entry.name, name_length: entry.name_length, value: Some(entry.value) }))
    }
}

/// A name that is sent as text, and its length, which only an insertion needs.
fn named(text: Text<'_>, is_inserted: bool) -> Result<(Name, usize), Malformed> {
    /// Names that matter are shorter than this, and so is what they are coded as.
    const LONGEST: usize = 16;
    if text.coded_length() > LONGEST {
        return Ok((Name::Other, if is_inserted { text.length()? } else { 0 }));
    }
    let (mut name, mut length) = ([0; LONGEST], 0);
    text.write(|byte| {
        if let Some(place) = name.get_mut(length) {
            *place = byte;
        }
        length += 1;
    })?;
    Ok((name.get(..length).map_or(Name::Other, Name::of), length))
}

/// Longest value kept in a table of any name but the path, bytes; later stages cut further.
const LONGEST_VALUE: usize = 2049;

/// Writes what a table keeps of a value: no secret, nothing that is never read.
fn keep(name: Name, value: &[u8], kept: &mut Vec<u8>) {
    let push = |kept: &mut Vec<u8>, bytes: &[u8], end: usize| {
        let room = end.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    };
    let end = kept.len() + LONGEST_VALUE;
    match name {
        Name::Path => {
            let target = split_target(b"", value);
            write_path(target.path, |bytes| push(kept, bytes, end));
            if !target.query.is_empty() {
                kept.push(b'?');
                let end = kept.len() + LONGEST_VALUE;
                write_query(target.query, |bytes| push(kept, bytes, end));
            }
        }
        Name::Authority | Name::Host => push(kept, host_of(value), end),
        _ => push(kept, value, end),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
