//! The fields of one header block that matter.
//!
//! In: fields in any order. Out: values by [`Name`], in one buffer that is used again. Refuses to know where they come
//! from and what they mean.

use super::{Malformed, Name, reader::Text};
use crate::protocol::http1_lines::MAX_TRACESTATES;

/// Memory that is kept for the next block, bytes.
const KEPT_BYTES: usize = 64 * 1024;

/// What is known of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Field {
    #[default]
    Absent,
    Unknown,
    Known(u32, u32),
}

/// The fields of one header block.
#[derive(Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
    fields: [Field; Name::KEPT],
    tracestates: [Field; MAX_TRACESTATES],
    n_tracestates: usize,
    n_unknown: u32,
}

impl Head {
    /// The value of the first field of that name; `None` when there was none, or it is not known. Paths may have values
    /// in them still.
    #[must_use]
    pub fn get(&self, name: Name) -> Option<&[u8]> {
        self.value(*self.fields.get(name as usize)?)
    }

    /// The field was there.
    #[must_use]
    pub fn has(&self, name: Name) -> bool {
        self.fields.get(name as usize).is_some_and(|field| *field != Field::Absent)
    }

    /// The first values of `tracestate`; empty ones at the end.
    pub(in crate::protocol) fn tracestates(&self) -> [&[u8]; MAX_TRACESTATES] {
        self.tracestates.map(|field| self.value(field).unwrap_or_default())
    }

    /// Fields of which the name or the value is not known.
    #[must_use]
    pub fn unknown(&self) -> u32 {
        self.n_unknown
    }

    fn value(&self, field: Field) -> Option<&[u8]> {
        match field {
            Field::Known(start, end) => self.bytes.get(start as usize..end as usize),
            Field::Absent | Field::Unknown => None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.fields = Default::default();
        self.tracestates = Default::default();
        self.n_tracestates = 0;
        self.n_unknown = 0;
    }

    pub(super) fn push(&mut self, name: Name, value: &[u8]) {
        if name.is_kept() {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(value);
            self.note(name, start);
        } else if name == Name::Unknown {
            self.n_unknown += 1;
        }
    }

    pub(super) fn push_unknown(&mut self, name: Name) {
        self.n_unknown += 1;
        if let Some(field @ Field::Absent) = self.fields.get_mut(name as usize) {
            *field = Field::Unknown;
        }
    }

    /// Adds a field whose value is a text; returns the value.
    pub(super) fn push_text(&mut self, name: Name, text: Text<'_>) -> Result<&[u8], Malformed> {
        let start = self.bytes.len();
        match text.plain() {
            Some(plain) => self.bytes.extend_from_slice(plain),
            None => text.write(|byte| self.bytes.push(byte))?,
        }
        self.note(name, start);
        Ok(&self.bytes[start..])
    }

    /// The bytes since `start` are the value of one more field.
    fn note(&mut self, name: Name, start: usize) {
        // A block is far smaller than 4 GiB.
        let value = Field::Known(start as u32, self.bytes.len() as u32);
        if name == Name::Tracestate
            && let Some(place) = self.tracestates.get_mut(self.n_tracestates)
        {
            *place = value;
            self.n_tracestates += 1;
        }
        let Some(field) = self.fields.get_mut(name as usize) else { return };
        match (*field, name) {
            (Field::Absent, _) => *field = value,
            // Two parents are no parent (W3C Trace Context §3.2): an empty value is invalid downstream.
            (_, Name::Traceparent) => *field = Field::Known(0, 0),
            _ => {}
        }
    }
}
