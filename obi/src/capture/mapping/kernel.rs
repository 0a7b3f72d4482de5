//! The kernel side's maps for walking stacks: tables of files, and which table holds where in a process.
//!
//! In: tables, a process's mappings. Out: elements of the maps `unwind_chunk` and `mappings`
//! (`obi-ebpf/src/bpf/profile/unwind_table.h`). Needs only the maps' descriptors. Refuses to know what a rule says,
//! and when something is to be changed.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aya::maps::{HashMap, MapData, MapError};
use obi_ebpf::{
    MAPPING_ENTRIES, MAPPING_POINTERS, UNUSED_START, mapping_block, mapping_entry, mapping_key, unwind_key,
};

use super::backing::Kind;
use super::file::ExecutableFile;
use super::space::Mapping;
use crate::capture::program::profile::{MappingBlock, MappingKey, UnwindChunk, UnwindKey};
use crate::capture::unwind::Table;

/// A part of a file that has a table in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First address, in the file's own layout.
    pub first: u64,
    /// First address behind it.
    pub last: u64,
    /// The table's number.
    pub table: u32,
}

const ENTRIES: usize = MAPPING_ENTRIES as usize;

/// Map `unwind_chunk`.
pub struct Chunks(HashMap<MapData, UnwindKey, UnwindChunk>);

impl Chunks {
    /// That of the profiler.
    #[must_use]
    pub fn new(map: HashMap<MapData, UnwindKey, UnwindChunk>) -> Self {
        Self(map)
    }

    /// Puts a table in, under a number that was never used. In part when it fails: then it is to be removed.
    ///
    /// # Errors
    /// When the map is full, or the kernel has no memory.
    pub fn put(&mut self, number: u32, table: &Table) -> Result<(), MapError> {
        table.chunks(number).try_for_each(|chunk| self.0.insert(UnwindKey(chunk.key), UnwindChunk(chunk), 0))
    }

    /// Takes a table out; first what leads to the rest.
    pub fn remove(&mut self, number: u32, n_chunks: usize) {
        for chunk in (0..).take(n_chunks) {
            // What is not there need not be removed.
            let _ = self.0.remove(&UnwindKey(unwind_key { table: number, chunk }));
        }
    }

    /// Whether an element is there.
    #[must_use]
    pub fn has(&self, table: u32, chunk: u32) -> bool {
        self.0.get(&UnwindKey(unwind_key { table, chunk }), 0).is_ok()
    }
}

/// Map `mappings`.
pub struct Blocks(HashMap<MapData, MappingKey, MappingBlock>);

impl Blocks {
    /// That of the profiler.
    #[must_use]
    pub fn new(map: HashMap<MapData, MappingKey, MappingBlock>) -> Self {
        Self(map)
    }

    /// Stores what a process maps, sorted by address; `before` elements were stored last time. Returns how many now.
    ///
    /// # Errors
    /// When the map is full, or the kernel has no memory. Then nothing of the process is left.
    pub fn put(&mut self, tgid: u32, entries: &[mapping_entry], before: u32) -> Result<u32, MapError> {
        let blocks = blocks(tgid, entries);
        // What leads to the others comes last.
        let mut in_order = blocks.iter().rev();
        let put =
            in_order.try_for_each(|block| self.0.insert(MappingKey(block.key), MappingBlock(*block), 0));
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        if let Err(error) = put {
            self.remove(tgid, before.max(count));
            return Err(error);
        }
        (count..before).for_each(|block| self.remove_one(tgid, block));
        Ok(count)
    }

    /// Forgets a process of which so many elements were stored.
    pub fn remove(&mut self, tgid: u32, count: u32) {
        (0..count).for_each(|block| self.remove_one(tgid, block));
    }

    /// An element as the kernel has it.
    #[must_use]
    pub fn get(&self, tgid: u32, block: u32) -> Option<mapping_block> {
        self.0.get(&MappingKey(mapping_key { tgid, block }), 0).ok().map(|block| block.0)
    }

    fn remove_one(&mut self, tgid: u32, block: u32) {
        // What is not there need not be removed.
        let _ = self.0.remove(&MappingKey(mapping_key { tgid, block }));
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Chunks")
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Blocks")
    }
}

/// The elements of a process, that under number 0 first. What does not fit is left out, highest addresses first.
fn blocks(tgid: u32, entries: &[mapping_entry]) -> Vec<mapping_block> {
    if entries.len() <= ENTRIES {
        return vec![block(mapping_key { tgid, block: 0 }, entries)];
    }
    let parts = || (1..).zip(entries.chunks(ENTRIES).take(ENTRIES));
    let begins = |(number, part): (u32, &[mapping_entry])| mapping_entry {
        start: part.first().map_or(0, |entry| entry.start),
        table: number,
        ..mapping_entry::default()
    };
    let index: Vec<mapping_entry> = parts().map(begins).collect();
    let index = mapping_block { index: 1, ..block(mapping_key { tgid, block: 0 }, &index) };
    let rest = parts().map(|(number, part)| block(mapping_key { tgid, block: number }, part));
    [index].into_iter().chain(rest).collect()
}

fn block(key: mapping_key, entries: &[mapping_entry]) -> mapping_block {
    let unused = mapping_entry { start: UNUSED_START, ..mapping_entry::default() };
    let mut block = mapping_block { key, n_entries: 0, index: 0, entry: [unused; ENTRIES] };
    for (to, from) in block.entry.iter_mut().zip(entries) {
        *to = *from;
        block.n_entries += 1;
    }
    block
}

/// What the kernel side needs to know of a process's mappings. Files that it lacks a table of are handed to `missing`.
pub fn entries(
    mappings: &[Arc<Mapping>],
    mut missing: impl FnMut(Arc<ExecutableFile>),
) -> Vec<mapping_entry> {
    let mut entries = Vec::new();
    let mut marks = Vec::new();
    for mapping in mappings {
        let plain = mapping_entry { start: mapping.start, end: mapping.end, ..mapping_entry::default() };
        if mapping.backing.kind == Kind::Special {
            continue;
        }
        if mapping.backing.is_made_at_run_time() {
            entries.push(mapping_entry { flags: MAPPING_POINTERS, ..plain });
            continue;
        }
        let file = mapping.file();
        let address = file.as_ref().and_then(|file| file.address(mapping.offset));
        // Frames of interpreters do not need the file's tables, which may be let go.
        if let (Some(address), Some(Ok(build))) =
            (address, file.as_ref().and_then(|file| file.interpreter()).as_deref())
        {
            marks.extend(build.marked_at(mapping.start.wrapping_sub(address)));
        }
        match file.as_ref().and_then(|file| file.tables()).zip(address) {
            Some((spans, address)) => under_tables(plain, address, &spans, &mut entries),
            None => {
                entries.push(plain);
                file.map(&mut missing);
            }
        }
    }
    marks.iter().for_each(|(range, bits)| flag(&mut entries, range, *bits));
    entries
}

/// Marks with bits what of the entries lies in a range, cutting those that reach beyond it.
fn flag(entries: &mut Vec<mapping_entry>, range: &Range<u64>, bits: u32) {
    let mut cut = Vec::with_capacity(entries.len() + 2);
    for entry in entries.drain(..) {
        let (start, end) = (range.start.max(entry.start), range.end.min(entry.end));
        if start >= end {
            cut.push(entry);
            continue;
        }
        let parts = [(entry.start, start, 0), (start, end, bits), (end, entry.end, 0)];
        let parts = parts.into_iter().filter(|(start, end, _)| start < end);
        cut.extend(parts.map(|(start, end, flag)| mapping_entry {
            start,
            end,
            flags: entry.flags | flag,
            ..entry
        }));
    }
    *entries = cut;
}

/// Cuts a mapping, whose start has this address in its file, along its file's tables.
fn under_tables(plain: mapping_entry, address: u64, spans: &[Span], entries: &mut Vec<mapping_entry>) {
    let mut rest = plain.start;
    let in_process = |of_file: u64| plain.start.wrapping_add(of_file.wrapping_sub(address));
    let end_in_file = address.saturating_add(plain.end - plain.start);
    for span in spans {
        let (first, last) = (span.first.max(address), span.last.min(end_in_file));
        if first >= last {
            continue;
        }
        let (start, end) = (in_process(first), in_process(last));
        if rest < start {
            entries.push(mapping_entry { start: rest, end: start, ..plain });
        }
        entries.push(mapping_entry {
            start,
            end,
            origin: in_process(span.first),
            table: span.table,
            ..plain
        });
        rest = end;
    }
    if rest < plain.end {
        entries.push(mapping_entry { start: rest, ..plain });
    }
}

#[cfg(test)]
pub(super) mod tests;
