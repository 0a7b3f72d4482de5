//! Numbers of several bytes, as HotSpot compresses them.
//!
//! In: bytes. Out: numbers. A byte below 192 is the last of its number; each next one counts 64 times more. Since 20 no
//! byte is 0: all are one more. Pure, never panics.

/// Numbers one behind the other.
pub(super) struct Numbers<I> {
    pub(super) bytes: I,
    /// Since 20.
    pub(super) excludes_zero: bool,
}

const LAST: u32 = 192;
const SHIFT: u32 = 6;
const LONGEST: u32 = 5;

impl<I: Iterator<Item = u8>> Iterator for Numbers<I> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut sum = 0_u32;
        for index in 0..LONGEST {
            let byte = u32::from(self.bytes.next()?);
            let value = byte.checked_sub(self.excludes_zero.into())?;
            sum = sum.wrapping_add(value << (SHIFT * index));
            if byte < LAST {
                break;
            }
        }
        Some(sum)
    }
}
