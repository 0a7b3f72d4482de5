//! Time slots as bytes: what is written to disk.
//!
//! In: consecutive slots, each with its counts or nothing. Out: bytes, and back. A slot of a quiet minute takes one byte,
//! one of a busy hour some five. Refuses to know how long a slot is.

/// Slots in a chunk.
pub const SLOTS: u32 = 60;

/// Counts of a slot; `None` where nobody counted.
pub type Slot = Option<(u64, u64)>;

/// Each slot as `good + 1` and `bad`, in LEB128; a single 0 where nobody counted. What is missing at the end was not
/// counted either.
pub fn encode(slots: impl IntoIterator<Item = Slot>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * SLOTS as usize);
    let mut used = 0;
    for slot in slots {
        match slot {
            None => bytes.push(0),
            Some((good, bad)) => {
                write(&mut bytes, good.saturating_add(1));
                write(&mut bytes, bad);
                used = bytes.len();
            }
        }
    }
    bytes.truncate(used);
    bytes
}

/// The slots again; `None` when these are not bytes of ours. At most [`SLOTS`] of them.
#[must_use]
pub fn decode(mut bytes: &[u8]) -> Option<Vec<Slot>> {
    let mut slots = Vec::with_capacity(SLOTS as usize);
    while !bytes.is_empty() {
        if slots.len() >= SLOTS as usize {
            return None;
        }
        let good = read(&mut bytes)?;
        slots.push(match good.checked_sub(1) {
            None => None,
            Some(good) => Some((good, read(&mut bytes)?)),
        });
    }
    Some(slots)
}

fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).expect("seven bits fit") | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("seven bits fit"));
}

fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes() {
        let check = |slots: &[Slot], bytes: &[u8]| {
            assert_eq!(encode(slots.iter().copied()), bytes, "{slots:?}");
        };
        check(&[], &[]);
        check(&[None, None], &[]);
        check(&[Some((0, 0)), None, Some((2, 1)), None], &[1, 0, 0, 3, 1]);
        check(&[Some((1_000_000, 127))], &[0xc1, 0x84, 0x3d, 127]);
    }

    proptest! {
        #[test]
        fn what_went_in_comes_out(slots in vec(option::of((0..u64::MAX, any::<u64>())), 0..=60)) {
            let mut expected = slots.clone();
            while expected.last() == Some(&None) {
                expected.pop();
            }
            prop_assert_eq!(decode(&encode(slots)), Some(expected));
        }

        #[test]
        fn any_bytes_are_slots_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            if let Some(slots) = decode(&bytes) {
                prop_assert!(slots.len() <= SLOTS as usize);
            }
        }
    }
}
