//! Which line of a Python function an instruction belongs to.
//!
//! In: a code object's table, in the form of its version. Out: [`Lines`], by units of two bytes. Tables come from
//! memory of a process and may be anything: what they say is bounded by their length. Pure, never panics.

/// Lines from the unit on that stands before each, sorted by it; 0: none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lines(Box<[(u32, u32)]>);

impl Lines {
    /// Reads the table of a function that begins in `first`, of Python 3.`minor`.
    #[must_use]
    pub fn read(minor: u8, table: &[u8], first: u32) -> Self {
        let mut lines = Vec::new();
        let push = |unit: u32, line: i64| {
            let line = u32::try_from(line).unwrap_or_default();
            match lines.last_mut() {
                Some((_, known)) if *known == line => {}
                Some((at, known)) if *at == unit => *known = line,
                _ => lines.push((unit, line)),
            }
        };
        match minor {
            11.. => locations(table, first, push),
            10 => ranges(table, first, push),
            _ => steps(table, first, push),
        }
        Self(lines.into_boxed_slice())
    }

    /// That of a unit; `None` where there is none.
    #[must_use]
    pub fn at(&self, unit: u32) -> Option<u32> {
        let after = self.0.partition_point(|(start, _)| *start <= unit);
        let (_, line) = self.0.get(after.checked_sub(1)?)?;
        (*line > 0).then_some(*line)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<(u32, u32)>()
    }
}

/// Up to 3.9: pairs of bytes passed and lines passed.
fn steps(table: &[u8], first: u32, mut push: impl FnMut(u32, i64)) {
    let (mut at, mut line) = (0_u32, i64::from(first));
    push(0, line);
    for pair in table.chunks_exact(2) {
        at += u32::from(pair[0]);
        line += i64::from(pair[1].cast_signed());
        push(at / 2, line);
    }
}

/// 3.10: pairs of the length of a range in bytes and lines passed before it.
fn ranges(table: &[u8], first: u32, mut push: impl FnMut(u32, i64)) {
    let (mut at, mut line) = (0_u32, i64::from(first));
    for pair in table.chunks_exact(2) {
        let passed = pair[1].cast_signed();
        if passed == i8::MIN {
            push(at / 2, 0);
        } else {
            line += i64::from(passed);
            push(at / 2, line);
        }
        at += u32::from(pair[0]);
    }
}

/// From 3.11 on: entries of a byte with a kind and a length in units, and what their kind says.
fn locations(table: &[u8], first: u32, mut push: impl FnMut(u32, i64)) {
    let (mut at, mut line) = (0_u32, i64::from(first));
    let mut bytes = table.iter().copied();
    while let Some(head) = bytes.next() {
        let (kind, length) = (head >> 3 & 15, u32::from(head & 7) + 1);
        let passed = match kind {
            15 => None,
            14 => {
                let passed = signed(&mut bytes);
                // The last line, and columns.
                for _ in 0..3 {
                    unsigned(&mut bytes);
                }
                Some(passed)
            }
            13 => Some(signed(&mut bytes)),
            10..=12 => {
                bytes.by_ref().take(2).for_each(|_column| ());
                Some(i64::from(kind) - 10)
            }
            _ => {
                bytes.next();
                Some(0)
            }
        };
        line = line.saturating_add(passed.unwrap_or_default());
        push(at, if passed.is_some() { line } else { 0 });
        at = at.saturating_add(length);
    }
}

/// Six bits a byte, the lowest first; another one follows where the seventh is set.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> u32 {
    let (mut value, mut shift) = (0_u32, 0);
    for byte in bytes.by_ref().take(6) {
        value |= u32::from(byte & 63).checked_shl(shift).unwrap_or_default();
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let value = unsigned(bytes);
    let size = i64::from(value >> 1);
    if value & 1 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tables_are_those_of_their_version() {
        let check = |minor: u8, table: &[u8], expected: &[(u32, Option<u32>)]| {
            let lines = Lines::read(minor, table, 10);
            for (unit, line) in expected {
                assert_eq!(lines.at(*unit), *line, "3.{minor} {table:x?} at {unit}");
            }
        };
        check(9, &[], &[(0, Some(10)), (99, Some(10))]);
        // Four bytes in line 10, then 12, then back to 11.
        check(8, &[4, 2, 6, 0xff], &[(1, Some(10)), (2, Some(12)), (4, Some(12)), (5, Some(11))]);
        check(10, &[4, 1, 2, 0x80, 4, 2], &[(0, Some(11)), (1, Some(11)), (2, None), (3, Some(13))]);
        // Two units of kind 11 (one line on), one without a line, one of kind 13 (two lines back), one long.
        let table = [0xd9, 0, 5, 0xf8, 0xe8, 5, 0xf0, 2, 0, 1, 1];
        check(
            11,
            &table,
            &[(0, Some(11)), (1, Some(11)), (2, None), (3, Some(9)), (4, Some(10)), (9, Some(10))],
        );
        check(13, &[], &[(0, None)]);
    }

    proptest! {
        #[test]
        fn any_table_is_read(minor in 8_u8..15, table in proptest::collection::vec(any::<u8>(), 0..512), first: u32, unit: u32) {
            let lines = Lines::read(minor, &table, first);
            prop_assert!(lines.0.len() <= table.len() + 1);
            prop_assert!(lines.0.is_sorted_by_key(|(unit, _)| *unit));
            let _ = lines.at(unit);
        }
    }
}
