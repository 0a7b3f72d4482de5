//! Counts in pieces to be kept somewhere.
//!
//! In: the values of 60 slots. Out: a few bytes, and the values back. Refuses to write them anywhere.

/// Slots of a page.
pub const PAGE: usize = 60;

/// Whose values these are: one key per page, unique within an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// Which part of the objective; [`Series::Burn`] belongs to the objective, and has 0 here.
    pub part: u16,
    /// Which of its series.
    pub series: Series,
    /// Number of its first slot over [`PAGE`], rounded down.
    pub index: i64,
}

/// The series of an account. The numbers are for storing, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Series {
    /// Slots of 10 s.
    Seconds = 0,
    /// Slots of a minute.
    Minutes = 1,
    /// Slots of an hour, or several in periods longer than 90 days.
    Hours = 2,
    /// Burnt time slices, in slots as [`Self::Hours`]; the first of each pair of values.
    Burn = 3,
}

impl Series {
    /// The series with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Seconds),
            1 => Some(Self::Minutes),
            2 => Some(Self::Hours),
            3 => Some(Self::Burn),
            _ => None,
        }
    }
}

/// The values of [`PAGE`] consecutive slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Whose.
    pub key: PageKey,
    /// Good and bad of each slot.
    pub slots: [(u64, u64); PAGE],
}

impl Page {
    /// The values in a compact form: pairs of variable-length integers, without the empty slots at the end.
    pub fn encode(&self) -> Vec<u8> {
        let used = self.slots.iter().rposition(|slot| *slot != (0, 0)).map_or(0, |last| last + 1);
        let mut bytes = Vec::with_capacity(used * 4);
        for (good, bad) in &self.slots[..used] {
            write(&mut bytes, *good);
            write(&mut bytes, *bad);
        }
        bytes
    }

    /// Values that [`Self::encode`] wrote; `None` when they are none.
    pub fn decode(key: PageKey, mut bytes: &[u8]) -> Option<Self> {
        let mut slots = [(0, 0); PAGE];
        let mut at = 0;
        while !bytes.is_empty() {
            let good = read(&mut bytes)?;
            let bad = read(&mut bytes)?;
            *slots.get_mut(at)? = (good, bad);
            at += 1;
        }
        Some(Self { key, slots })
    }
}

/// Seven bits a byte, lowest first, the highest bit says that more follow.
fn write(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7F {
        bytes.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        value |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PageKey = PageKey { part: 0, series: Series::Minutes, index: 7 };

    proptest::proptest! {
        #[test]
        fn pages_come_back(values: Vec<(u64, u64)>) {
            let mut page = Page { key: KEY, slots: [(0, 0); PAGE] };
            for (slot, value) in page.slots.iter_mut().zip(values) {
                *slot = value;
            }
            proptest::prop_assert_eq!(Page::decode(KEY, &page.encode()), Some(page));
        }

        #[test]
        fn anything_else_is_refused_without_harm(bytes: Vec<u8>) {
            Page::decode(KEY, &bytes);
        }
    }

    #[test]
    fn an_empty_page_takes_nothing() {
        let page = Page { key: KEY, slots: [(0, 0); PAGE] };
        assert!(page.encode().is_empty());
        assert_eq!(Page::decode(KEY, &[0; 2 * PAGE]), Some(page));
        assert_eq!(Page::decode(KEY, &[0; 2 * PAGE + 2]), None);
        assert_eq!(Page::decode(KEY, &[0x80; 10]), None);
        assert_eq!(Page::decode(KEY, &[0; 1]), None);
    }
}
