//! DWARF's call frame information to rows.
//!
//! In: the bytes of `.eh_frame` or `.debug_frame`, which anybody may have made. Out: rows sorted by address, without
//! overlaps; between functions a row that there is no rule. Time and memory are bounded by the length of the section and
//! by fixed limits. Never panics. Refuses to know what a rule looks like.
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

/// Rows of one function, in a list of all.
#[derive(Debug, Clone, Copy)]
struct Function {
    first: u64,
    last: u64,
    start: usize,
    end: usize,
}

/// The rows of a section. What is malformed is left out, with all behind it when even its length cannot be told.
pub(super) fn rows<'a, S>(machine: Machine, section: &S, bases: &BaseAddresses) -> Vec<Row>
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: gimli::UnwindOffset<usize> + std::hash::Hash,
{
    let mut all = Vec::new();
    let mut functions = Vec::new();
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
        if function.cie().entry_len() > MOST_COMMON_BYTES || all.len() >= MOST_ROWS {
            continue;
        }
        let start = all.len();
        let is_signal = function.is_signal_trampoline();
        let Ok(mut table) = function.rows(section, bases, &mut context) else { continue };
        // A malformed end leaves what came before it.
        let mut last = function.initial_address();
        while let Ok(Some(row)) = table.next_row() {
            if row.end_address() <= row.start_address() || row.start_address() < last {
                continue;
            }
            let rule = rule::pack(machine, section, is_signal, row);
            all.push(Row { address: row.start_address(), rule });
            last = row.end_address();
            if all.len() >= MOST_ROWS {
                break;
            }
        }
        if all.len() > start {
            functions.push(Function { first: all[start].address, last, start, end: all.len() });
        }
    }
    functions.sort_unstable_by_key(|function| function.first);
    join(&functions, &all)
}

/// One after the other, equal neighbours made one, gaps told.
fn join(functions: &[Function], all: &[Row]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::with_capacity(all.len());
    let mut push = |row: Row| {
        if rows.last().is_none_or(|last| last.rule != row.rule) {
            rows.push(row);
        }
    };
    let mut end = 0;
    for function in functions {
        // The first of two that overlap is believed: linkers leave the information of code that they have removed.
        if function.first < end || function.last <= function.first {
            continue;
        }
        if function.first > end {
            push(Row { address: end, rule: UNWIND_NONE });
        }
        all[function.start..function.end].iter().for_each(|row| push(*row));
        end = function.last;
    }
    push(Row { address: end, rule: UNWIND_NONE });
    // The gap before the first function is none.
    if rows.first().is_some_and(|row| row.rule == UNWIND_NONE) {
        rows.remove(0);
    }
    rows
}
