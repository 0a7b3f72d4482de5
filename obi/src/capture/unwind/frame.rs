//! DWARF's call frame information to rows.
//!
//! In: the bytes of `.eh_frame` or `.debug_frame`, which anybody may have made. Out: rows sorted by address, without
//! overlaps; between functions a row that there is no rule. Time and memory are bounded by the length of the section
//! and by fixed limits. Never panics. Refuses to know what a rule looks like.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, UnwindContext, UnwindSection};
use obi_ebpf::UNWIND_NONE;

use super::file::Machine;
use super::rule::{self, Bytes};
use super::table::Row;

/// Rows that are kept of one file: those of a browser's engine, twice.
const MOST_ROWS: usize = 4_000_000;
/// Bytes of a common entry that are gone through again for every function that refers to it; real ones have 30.
const MOST_COMMON_BYTES: usize = 256;

/// Functions with their rows, in any order.
#[derive(Debug, Default)]
pub(super) struct Functions {
    rows: Vec<Row>,
    functions: Vec<Function>,
    start: usize,
}

/// Rows of one function, in the list of all.
#[derive(Debug, Clone, Copy)]
struct Function {
    first: u64,
    last: u64,
    start: usize,
    end: usize,
}

impl Functions {
    /// No more rows are taken.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= MOST_ROWS
    }

    /// There is no function.
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// A function begins.
    pub(super) fn begin(&mut self) {
        self.start = self.rows.len();
    }

    /// From this address on, this rule holds. Addresses must rise.
    pub(super) fn push(&mut self, address: u64, rule: u32) {
        let own = &self.rows[self.start..];
        if !self.is_full() && own.last().is_none_or(|last| last.address < address) {
            self.rows.push(Row { address, rule });
        }
    }

    /// The function ends before this address.
    pub(super) fn end(&mut self, last: u64) {
        let (start, end) = (self.start, self.rows.len());
        if let Some(first) = self.rows.get(start)
            && self.rows[end - 1].address < last
        {
            self.functions.push(Function { first: first.address, last, start, end });
        }
    }

    /// One after the other, equal neighbours made one, gaps marked.
    pub(super) fn join(mut self) -> Vec<Row> {
        // The first of two that overlap is believed: linkers leave the information of code that they have removed.
        self.functions.sort_by_key(|function| function.first);
        let mut rows: Vec<Row> = Vec::with_capacity(self.rows.len() + self.functions.len());
        let mut push = |row: Row| {
            if rows.last().is_none_or(|last| last.rule != row.rule) {
                rows.push(row);
            }
        };
        let mut end = 0;
        for function in self.functions {
            if function.first < end {
                continue;
            }
            // The gap before the first function is none.
            if function.first > end && end > 0 {
                push(Row { address: end, rule: UNWIND_NONE });
            }
            self.rows[function.start..function.end].iter().for_each(|row| push(*row));
            end = function.last;
        }
        if end > 0 {
            push(Row { address: end, rule: UNWIND_NONE });
        }
        rows
    }
}

/// Takes the rows of a section. What is malformed is left out, with all behind it when even its length is not known.
pub(super) fn rows<'a, S>(machine: Machine, section: &S, bases: &BaseAddresses, into: &mut Functions)
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: gimli::UnwindOffset<usize> + std::hash::Hash,
{
    let mut context = UnwindContext::new();
    let mut common = HashMap::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let parsed = partial.parse(|section, bases, offset| {
            let known = common.entry(offset).or_insert_with(|| section.cie_from_offset(bases, offset));
            known.clone()
        });
        let Ok(function) = parsed else { continue };
        if function.cie().entry_len() > MOST_COMMON_BYTES || into.is_full() {
            continue;
        }
        let is_signal = function.is_signal_trampoline();
        let Ok(mut table) = function.rows(section, bases, &mut context) else { continue };
        into.begin();
        // A malformed end leaves what came before it.
        let mut last = function.initial_address();
        while let Ok(Some(row)) = table.next_row() {
            if row.end_address() > row.start_address() && row.start_address() >= last {
                into.push(row.start_address(), rule::pack(machine, section, is_signal, row));
                last = row.end_address();
            }
        }
        into.end(last);
    }
}
