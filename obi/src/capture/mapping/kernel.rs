//! The kernel side's maps for walking stacks: tables of files, and which table holds where in a process.
//!
//! In: tables, a process's mappings. Out: elements of the maps `unwind_chunk` and `mappings`
//! (`obi-ebpf/src/bpf/unwind_table.h`). Needs only the maps' descriptors. Refuses to know what a rule says, and when
//! something is to be told.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use obi_ebpf::{
    MAPPING_ENTRIES, MAPPING_POINTERS, mapping_block, mapping_entry, mapping_key, unwind_chunk, unwind_key,
};
use zerocopy::IntoBytes as _;

use super::backing::Kind;
use super::file::ExecutableFile;
use super::space::Mapping;
use crate::capture::bpf::hash::{Hash, Shape};
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

/// Memory that an element of either map takes in the kernel, bytes.
pub const ELEMENT_BYTES: u64 = 2048;
const ENTRIES: usize = MAPPING_ENTRIES as usize;

/// Map `unwind_chunk`.
#[derive(Debug)]
pub struct Chunks(Hash);

impl Chunks {
    const SHAPE: Shape = Shape { key_bytes: size_of::<unwind_key>(), value_bytes: size_of::<unwind_chunk>() };

    /// That of a loaded object.
    #[must_use]
    pub fn of(descriptor: OwnedFd) -> Self {
        Self(Hash::of(descriptor, Self::SHAPE))
    }

    /// One of so many elements that no program uses.
    ///
    /// # Errors
    /// As `bpf(2)`.
    pub fn create(most: u32) -> io::Result<Self> {
        Hash::create(Self::SHAPE, most).map(Self)
    }

    /// Puts a table in, under a number that was never used. In part when it fails: then it is to be removed.
    ///
    /// # Errors
    /// As `bpf(2)`: when the map is full, or the kernel has no memory.
    pub fn put(&self, number: u32, table: &Table) -> io::Result<()> {
        table.chunks(number).try_for_each(|chunk| self.0.put(chunk.key.as_bytes(), chunk.as_bytes()))
    }

    /// Takes a table out; first what leads to the rest.
    pub fn remove(&self, number: u32, n_chunks: usize) {
        for chunk in (0..).take(n_chunks) {
            // What is not there need not be removed.
            let _ = self.0.remove(unwind_key { table: number, chunk }.as_bytes());
        }
    }

    /// An element as the kernel has it.
    ///
    /// # Errors
    /// As `bpf(2)`: `ENOENT` when it is not there.
    pub fn get(&self, key: unwind_key) -> io::Result<Vec<u8>> {
        self.0.get(key.as_bytes())
    }
}

/// Map `mappings`.
#[derive(Debug)]
pub struct Blocks(Hash);

impl Blocks {
    const SHAPE: Shape =
        Shape { key_bytes: size_of::<mapping_key>(), value_bytes: size_of::<mapping_block>() };

    /// That of a loaded object.
    #[must_use]
    pub fn of(descriptor: OwnedFd) -> Self {
        Self(Hash::of(descriptor, Self::SHAPE))
    }

    /// One of so many elements that no program uses.
    ///
    /// # Errors
    /// As `bpf(2)`.
    pub fn create(most: u32) -> io::Result<Self> {
        Hash::create(Self::SHAPE, most).map(Self)
    }

    /// Tells what a process maps, sorted by address; `before` elements were told of it last time. Returns how many now.
    ///
    /// # Errors
    /// As `bpf(2)`: when the map is full, or the kernel has no memory. Then nothing of the process is left.
    pub fn put(&self, tgid: u32, entries: &[mapping_entry], before: u32) -> io::Result<u32> {
        let blocks = blocks(tgid, entries);
        // What leads to the others comes last.
        let put = blocks.iter().rev().try_for_each(|block| self.0.put(block.key.as_bytes(), block.as_bytes()));
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        if let Err(error) = put {
            self.remove(tgid, before.max(count));
            return Err(error);
        }
        (count..before).for_each(|block| self.remove_one(tgid, block));
        Ok(count)
    }

    /// Forgets a process of which so many elements were told.
    pub fn remove(&self, tgid: u32, count: u32) {
        (0..count).for_each(|block| self.remove_one(tgid, block));
    }

    /// An element as the kernel has it.
    ///
    /// # Errors
    /// As `bpf(2)`: `ENOENT` when it is not there.
    pub fn get(&self, key: mapping_key) -> io::Result<Vec<u8>> {
        self.0.get(key.as_bytes())
    }

    fn remove_one(&self, tgid: u32, block: u32) {
        // What is not there need not be removed.
        let _ = self.0.remove(mapping_key { tgid, block }.as_bytes());
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
    let mut block = mapping_block { key, ..mapping_block::default() };
    for (to, from) in block.entry.iter_mut().zip(entries) {
        *to = *from;
        block.n_entries += 1;
    }
    block
}

/// What the kernel side needs to know of a process's mappings. Files that it lacks a table of are handed to `missing`.
pub fn entries(mappings: &[Arc<Mapping>], mut missing: impl FnMut(Arc<ExecutableFile>)) -> Vec<mapping_entry> {
    let mut entries = Vec::new();
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
        let place = file.as_ref().and_then(|file| Some((file.tables()?, file.address(mapping.offset)?)));
        match place {
            Some((spans, address)) => under_tables(plain, address, &spans, &mut entries),
            None => {
                entries.push(plain);
                file.map(&mut missing);
            }
        }
    }
    entries
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
        entries.push(mapping_entry { start, end, origin: in_process(span.first), table: span.table, ..plain });
        rest = end;
    }
    if rest < plain.end {
        entries.push(mapping_entry { start: rest, ..plain });
    }
}

#[cfg(test)]
mod tests;
