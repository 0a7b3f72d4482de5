//! Small reads all over a large file, as few system calls.
//!
//! In: places in a file. Out: bytes. Keeps 128 pages of it, whatever its size. Refuses to map the file: who can write
//! to it could make every look at it a fault.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use crate::capture::tls::elf::Source;

const PAGE: u64 = 4096;
const PAGES: usize = 128;

/// A part of a file, through a few pages of memory.
#[derive(Debug)]
pub struct Pages<S> {
    source: S,
    start: u64,
    length: u64,
    kept: RefCell<Vec<Option<Page>>>,
}

#[derive(Debug)]
struct Page {
    number: u64,
    bytes: Box<[u8]>,
}

impl<S: Source> Pages<S> {
    /// `length` bytes at `start`; fewer, if the file ends before.
    pub fn new(source: S, start: u64, length: u64) -> Self {
        let length = length.min(source.length().saturating_sub(start));
        Self { source, start, length, kept: RefCell::default() }
    }

    fn page(&self, number: u64) -> io::Result<Page> {
        let start = number * PAGE;
        let length = self.length.saturating_sub(start).min(PAGE);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()].into_boxed_slice();
        self.source.read_at(self.start + start, &mut bytes)?;
        Ok(Page { number, bytes })
    }
}

impl<S: Source> Source for Pages<S> {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut kept = self.kept.borrow_mut();
        kept.resize_with(PAGES, || None);
        let mut offset = offset;
        while !buffer.is_empty() {
            let number = offset / PAGE;
            let slot = &mut kept[usize::try_from(number % PAGES as u64).unwrap_or_default()];
            if slot.as_ref().is_none_or(|page| page.number != number) {
                *slot = Some(self.page(number)?);
            }
            let Some(page) = slot else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            let start = usize::try_from(offset % PAGE).unwrap_or_default();
            let bytes = page.bytes.get(start..).unwrap_or_default();
            let length = bytes.len().min(buffer.len());
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (now, rest) = buffer.split_at_mut(length);
            now.copy_from_slice(&bytes[..length]);
            buffer = rest;
            offset += length as u64;
        }
        Ok(())
    }
}

impl<S: Source> Source for Arc<S> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_are_the_file(
            length in 0_usize..40_000,
            start in 0_u64..10_000,
            window in 0_u64..50_000,
            reads in proptest::collection::vec((0_u64..50_000, 0_usize..9000), 1..40),
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
            let pages = Pages::new(bytes.as_slice(), start, window);
            let expected = bytes.get(usize::try_from(start).unwrap()..).unwrap_or_default();
            let expected = &expected[..expected.len().min(usize::try_from(window).unwrap())];
            prop_assert_eq!(pages.length(), expected.len() as u64);
            for (offset, length) in reads {
                let mut buffer = vec![0; length];
                let at = usize::try_from(offset).unwrap();
                let wanted = expected.get(at..).and_then(|rest| rest.get(..length));
                let found = pages.read_at(offset, &mut buffer).ok().map(|()| buffer.as_slice());
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
