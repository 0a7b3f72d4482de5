//! Integers and strings of a header block (RFC 7541 §5).
//!
//! In: the bytes of a block. Out: numbers, and strings as they are coded. Refuses to know fields.

use super::{Malformed, huffman};

/// A block and how far it is read.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A string, still as coded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'a> {
    coded: &'a [u8],
    is_huffman: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(block: &'a [u8]) -> Self {
        Self { rest: block }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*first)
    }

    /// An integer that begins in the last `prefix` bits of the next byte.
    pub(super) fn integer(&mut self, prefix: u32) -> Result<u32, Malformed> {
        let mask = u32::from(u8::MAX) >> (8 - prefix);
        let first = u32::from(self.byte()?) & mask;
        if first < mask {
            return Ok(first);
        }
        let mut value = u64::from(first);
        // Five bytes are more than any table or string needs.
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            value += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| Malformed);
            }
        }
        Err(Malformed)
    }

    /// A string.
    pub(super) fn text(&mut self) -> Result<Text<'a>, Malformed> {
        let is_huffman = self.peek().ok_or(Malformed)? & 0x80 != 0;
        let length = self.integer(7)? as usize;
        let (coded, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(Text { coded, is_huffman })
    }
}

impl<'a> Text<'a> {
    /// Bytes as coded.
    pub(super) fn coded_length(&self) -> usize {
        self.coded.len()
    }

    /// The bytes themselves, where they are not coded.
    pub(super) fn plain(&self) -> Option<&'a [u8]> {
        (!self.is_huffman).then_some(self.coded)
    }

    /// Bytes when decoded.
    pub(super) fn length(&self) -> Result<usize, Malformed> {
        let mut length = 0;
        match self.is_huffman {
            true => huffman::decode(self.coded, |_| length += 1)?,
            false => length = self.coded.len(),
        }
        Ok(length)
    }

    /// Hands over each decoded byte.
    pub(super) fn write(&self, mut write: impl FnMut(u8)) -> Result<(), Malformed> {
        match self.is_huffman {
            true => huffman::decode(self.coded, write),
            false => {
                self.coded.iter().copied().for_each(&mut write);
                Ok(())
            }
        }
    }
}
