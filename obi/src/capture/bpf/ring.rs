//! The ring that kernel programs write records into (`BPF_MAP_TYPE_RINGBUF`), read in place.
//!
//! In: the map. Out: records as the kernel wrote them, each whole, in their order. The kernel offers its data twice,
//! one behind the other, so that no record is ever in two pieces; then each page counts twice as ours, 8 MB with the
//! default ring. Here the data is mapped once, and the rare record around its end is put together. Refuses to know
//! what a record says.
//!
//! The layout is that of `kernel/bpf/ringbuf.c`: a page with the reader's position, one with the writers', the data. A
//! record has a head of eight bytes, of which the first four are its length and two flags, and begins at a multiple of
//! eight.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use aya::maps::{Map, MapData, MapError};
use aya::sys::SyscallError;
use aya_obj::generated::{BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT};

use super::attach::step;

const HEAD_BYTES: u64 = 8;

/// A ring and its only reader.
#[derive(Debug)]
pub struct Ring {
    map: MapData,
    pages: Pages,
}

/// The memory of a ring, and how far it was read.
#[derive(Debug)]
struct Pages {
    /// The page with our position.
    reader: Mapping,
    /// The page with the writers' position, and the data.
    writers: Mapping,
    page_bytes: usize,
    /// A power of two.
    data_bytes: u64,
    position: u64,
    /// The writers' position when it was last looked at.
    end: u64,
    /// Our position has changed since the writers' was looked at.
    has_moved: bool,
    /// A record around the data's end, put together; aligned as it was.
    whole: Vec<u64>,
}

/// A record. Its place goes back to the writers when it is dropped.
#[derive(Debug)]
pub struct Record<'a> {
    pages: &'a mut Pages,
    length: usize,
}

impl Ring {
    /// The oldest record that is finished, if no unfinished one is before it. A program calls only a reader that has
    /// read everything, so what comes while this looks is either found or calls.
    #[expect(
        clippy::should_implement_trait,
        reason = "a record borrows the ring, which no iterator's item can"
    )]
    pub fn next(&mut self) -> Option<Record<'_>> {
        self.pages.next()
    }
}

impl Pages {
    /// Maps the ring of a map that holds so many bytes, a power of two and whole pages.
    ///
    /// # Errors
    /// As `mmap(2)`; the text names the step.
    fn of(map: BorrowedFd<'_>, data_bytes: u32) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let data_bytes = u64::from(data_bytes);
        if !data_bytes.is_power_of_two() || !data_bytes.is_multiple_of(page_bytes as u64) {
            let reason = format!("a ring of {data_bytes} bytes, which is no power of two or no whole pages");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let length = page_bytes + usize::try_from(data_bytes).map_err(io::Error::other)?;
        let reader = Mapping::new(map, 0, page_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let writers = Mapping::new(map, page_bytes, length, libc::PROT_READ)?;
        let position = reader.position().load(Ordering::Acquire);
        let (has_moved, whole) = (false, Vec::new());
        Ok(Self { reader, writers, page_bytes, data_bytes, position, end: position, has_moved, whole })
    }

    /// See [`Ring::next`].
    fn next(&mut self) -> Option<Record<'_>> {
        loop {
            if self.position == self.end && !self.looks_again() {
                return None;
            }
            let head = self.head();
            if head & BPF_RINGBUF_BUSY_BIT != 0 {
                if !self.looks_again() || self.head() & BPF_RINGBUF_BUSY_BIT != 0 {
                    return None;
                }
                continue;
            }
            let length = head & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
            if u64::from(length) + HEAD_BYTES > self.end.wrapping_sub(self.position) {
                // The kernel does not write such. What follows cannot be found any more.
                self.advance_to(self.end);
            } else if head & BPF_RINGBUF_DISCARD_BIT != 0 {
                self.advance(length as usize);
            } else {
                self.put_together(length as usize);
                return Some(Record { pages: self, length: length as usize });
            }
        }
    }

    /// Asks for the writers' position. True when there may be something that was not there before.
    fn looks_again(&mut self) -> bool {
        let before = (self.end, std::mem::take(&mut self.has_moved));
        if before.1 {
            // Either this sees what a writer has finished, or the writer sees our position, and calls.
            fence(Ordering::SeqCst);
        }
        self.end = self.writers.position().load(Ordering::Acquire);
        before.1 && self.position != self.end || self.end != before.0
    }

    /// The first four bytes of the record at our position, which a writer may be about to change.
    fn head(&self) -> u32 {
        let at = self.data(self.position).cast::<u32>();
        // SAFETY: a multiple of eight within the data, mapped for as long as we live, and only accessed atomically.
        unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire)
    }

    /// Where a position is in memory.
    fn data(&self, position: u64) -> *mut u8 {
        let at = usize::try_from(position & (self.data_bytes - 1)).unwrap_or(0);
        self.writers.address.as_ptr().wrapping_add(self.page_bytes + at)
    }

    /// Bytes from a position to the data's end.
    fn to_the_end(&self, position: u64) -> usize {
        usize::try_from(self.data_bytes - (position & (self.data_bytes - 1))).unwrap_or(0)
    }

    /// Copies a record that goes around the data's end.
    fn put_together(&mut self, length: usize) {
        let start = self.position.wrapping_add(HEAD_BYTES);
        let first = self.to_the_end(start);
        if length <= first {
            return;
        }
        self.whole.resize(length.div_ceil(size_of::<u64>()), 0);
        let to = self.whole.as_mut_ptr().cast::<u8>();
        let (from, rest) = (self.data(start), self.data(start.wrapping_add(first as u64)));
        // SAFETY: the record is as long as both pieces, which are within the data, and fits into the words. It is
        // finished, so nothing writes it before our position has passed it.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, first);
            std::ptr::copy_nonoverlapping(rest, to.wrapping_add(first), length - first);
        }
    }

    /// Gives back the place of the record at our position.
    fn advance(&mut self, length: usize) {
        self.advance_to(
            self.position.wrapping_add((length as u64 + HEAD_BYTES).next_multiple_of(HEAD_BYTES)),
        );
    }

    fn advance_to(&mut self, position: u64) {
        self.position = position;
        // What was read is read before a writer may write over it.
        self.reader.position().store(position, Ordering::Release);
        self.has_moved = true;
    }
}

impl AsFd for Ring {
    /// Readable when a program has called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }
}

impl TryFrom<Map> for Ring {
    type Error = MapError;

    fn try_from(map: Map) -> Result<Self, MapError> {
        // What it is instead the library does not say.
        let Map::RingBuf(map) = map else { return Err(MapError::InvalidMapType { map_type: 0 }) };
        let data_bytes = map.info()?.max_entries();
        let pages = Pages::of(map.fd().as_fd(), data_bytes);
        let refused = |io_error| MapError::SyscallError(SyscallError { call: "mmap", io_error });
        Ok(Self { pages: pages.map_err(refused)?, map })
    }
}

impl Deref for Record<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.pages.position.wrapping_add(HEAD_BYTES);
        let at = match self.length <= self.pages.to_the_end(start) {
            true => self.pages.data(start).cast_const(),
            false => self.pages.whole.as_ptr().cast(),
        };
        // SAFETY: so many bytes of the data, or of the words that the record was put together in. Neither changes while
        // the record borrows the ring: it is finished, and our position is before it.
        unsafe { std::slice::from_raw_parts(at, self.length) }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.pages.advance(self.length);
    }
}

/// Memory that is shared with the kernel.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(of: BorrowedFd<'_>, from: usize, length: usize, protection: libc::c_int) -> io::Result<Self> {
        let from = libc::off_t::try_from(from).map_err(io::Error::other)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; nothing else is touched.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, of.as_raw_fd(), from)
        };
        if address == libc::MAP_FAILED {
            return Err(step("mmap", &io::Error::last_os_error()));
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { address, length })
    }

    /// The word at its beginning.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: the beginning of a page, mapped for as long as we live, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.address.as_ptr().cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made when it was opened, which nothing refers to any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
