//! The rows of a file as the kernel side searches them.
//!
//! In: rows sorted by address. Out: [`Table`]s of bounded size, and the elements of the kernel's map `unwind_chunk`
//! that make up each. Refuses to know what a rule says.
#![forbid(unsafe_code)]

use obi_ebpf::{UNUSED_PC, UNWIND_NONE, UNWIND_ROWS, unwind_chunk, unwind_key, unwind_row};

const ROWS: usize = UNWIND_ROWS as usize;
/// Rows of the largest table: as many chunks as an index has rows.
const MOST_ROWS: usize = ROWS * ROWS;
/// Bytes from its first row to its last: the last one may be as long again.
const MOST_BYTES: u64 = 1 << 31;

/// From this address to the next row's, this rule holds (`enum unwind_kind` and what goes with it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Address in the file's own layout.
    pub address: u64,
    /// As the kernel side reads it.
    pub rule: u32,
}

/// A part of a file, or all of it.
#[derive(Debug, Clone)]
pub struct Table {
    /// The first address, in the file's own layout; what `mapping_entry.origin` is the place of.
    pub first: u64,
    /// The address behind the last one.
    pub last: u64,
    rows: Vec<unwind_row>,
}

impl Table {
    /// Cuts sorted rows into tables. The last row says where the rules end: its own is not kept if it is none.
    #[must_use]
    pub fn cut(rows: &[Row]) -> Vec<Self> {
        let mut tables = Vec::new();
        let mut rest = rows;
        while let Some((first, _)) = rest.split_first() {
            let fits = |row: &&Row| row.address - first.address < MOST_BYTES;
            let n = rest.iter().take(MOST_ROWS).take_while(fits).count();
            let (own, next) = rest.split_at(n);
            let last = next.first().or(own.last()).map_or(first.address, |row| row.address);
            let relative = |row: &Row| unwind_row {
                pc: u32::try_from(row.address - first.address).unwrap_or(u32::MAX),
                rule: row.rule,
            };
            let last = last.min(first.address.saturating_add(2 * MOST_BYTES - 1));
            if last > first.address {
                tables.push(Self { first: first.address, last, rows: own.iter().map(relative).collect() });
            }
            rest = next;
        }
        tables.retain(|table| table.rows.iter().any(|row| row.rule != UNWIND_NONE));
        tables
    }

    /// Elements of the kernel's map that it takes.
    #[must_use]
    pub fn n_chunks(&self) -> usize {
        match self.rows.len() {
            0..=ROWS => 1,
            n => 1 + n.div_ceil(ROWS),
        }
    }

    /// Rows in it.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The elements under a table's number, each with its key in it. The index comes last: who finds it finds all.
    pub fn chunks(&self, table: u32) -> impl Iterator<Item = unwind_chunk> + '_ {
        let indexed = self.rows.len() > ROWS;
        let parts = (u32::from(indexed)..).zip(self.rows.chunks(ROWS));
        let index = indexed.then(|| {
            let rows: Vec<unwind_row> = parts
                .clone()
                .map(|(number, rows)| unwind_row { pc: rows.first().map_or(0, |row| row.pc), rule: number })
                .collect();
            chunk(unwind_key { table, chunk: 0 }, true, &rows)
        });
        parts.map(move |(number, rows)| chunk(unwind_key { table, chunk: number }, false, rows)).chain(index)
    }
}

fn chunk(key: unwind_key, index: bool, rows: &[unwind_row]) -> unwind_chunk {
    let unused = unwind_row { pc: UNUSED_PC, rule: UNWIND_NONE };
    let mut chunk = unwind_chunk { key, n_rows: 0, index: u32::from(index), row: [unused; ROWS] };
    for (to, from) in chunk.row.iter_mut().zip(rows) {
        *to = *from;
        chunk.n_rows += 1;
    }
    chunk
}

#[cfg(test)]
mod tests {
    use obi_ebpf::UNWIND_STACK;
    use proptest::prelude::*;

    use super::*;

    /// As the kernel side does it.
    fn find(chunks: &[unwind_chunk], pc: u32) -> Option<u32> {
        let last = |chunk: &unwind_chunk| {
            chunk.row[..chunk.n_rows as usize].iter().rev().find(|row| row.pc <= pc).map(|row| row.rule)
        };
        let top = chunks.iter().find(|chunk| chunk.key.chunk == 0)?;
        let found = last(top)?;
        if top.index == 0 {
            return Some(found);
        }
        last(chunks.iter().find(|chunk| chunk.key.chunk == found)?)
    }

    fn check(rows: &[Row]) {
        let tables = Table::cut(rows);
        for pair in rows.windows(2) {
            for address in [pair[0].address, pair[1].address - 1] {
                let table = tables.iter().find(|table| (table.first..table.last).contains(&address)).unwrap();
                let chunks: Vec<_> = table.chunks(7).collect();
                assert_eq!(chunks.len(), table.n_chunks());
                let pc = u32::try_from(address - table.first).unwrap();
                assert_eq!(find(&chunks, pc), Some(pair[0].rule), "{address:#x}");
            }
        }
    }

    fn row(address: u64, rule: u32) -> Row {
        Row { address, rule: rule << 6 | UNWIND_STACK }
    }

    #[test]
    fn every_row_is_found() {
        check(&[row(16, 1), row(24, 2), row(40, 3)]);
        check(&(0..1000).map(|n| row(0x40_0000 + 3 * u64::from(n), n)).collect::<Vec<_>>());
        check(&[row(16, 1), row(0x2_0000_0000, 2), row(0x2_0000_0010, 3)][1..]);
        assert!(Table::cut(&[]).is_empty());
        assert!(Table::cut(&[row(16, 1)]).is_empty());
    }

    #[test]
    fn many_rows_take_many_tables() {
        let rows: Vec<Row> = (0..MOST_ROWS as u32 + 5).map(|n| row(u64::from(n), n)).collect();
        let tables = Table::cut(&rows);
        let sizes: Vec<(u64, u64, usize)> =
            tables.iter().map(|table| (table.first, table.last, table.n_chunks())).collect();
        let most = MOST_ROWS as u64;
        assert_eq!(sizes, [(0, most, ROWS + 1), (most, most + 4, 1)]);
    }

    proptest! {
        #[test]
        fn any_rows_are_found(steps in proptest::collection::vec((1_u64..0x1000_0000, any::<u16>()), 2..700)) {
            let mut address = 0;
            let rows: Vec<Row> = steps.iter().map(|(step, rule)| {
                address += step;
                row(address, u32::from(*rule))
            }).collect();
            check(&rows);
        }
    }
}
