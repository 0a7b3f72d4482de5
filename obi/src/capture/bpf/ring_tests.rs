//! A ring whose writer is this test, in a file of memory with the kernel's layout.

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const DATA_BYTES: u32 = 4096;

/// The kernel's side.
struct Writer {
    page: Mapping,
    data: Mapping,
    position: u64,
    finished: Vec<(u64, u32)>,
}

impl Writer {
    fn with_ring() -> (Self, Pages) {
        let page_bytes = rustix::param::page_size();
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (2 * page_bytes + DATA_BYTES as usize) as u64).unwrap();
        let map = |from, length| {
            Mapping::new(file.as_fd(), from, length, libc::PROT_READ | libc::PROT_WRITE).unwrap()
        };
        let page = map(page_bytes, page_bytes);
        let data = map(2 * page_bytes, DATA_BYTES as usize);
        let writer = Self { page, data, position: 0, finished: Vec::new() };
        (writer, Pages::of(file.as_fd(), DATA_BYTES).unwrap())
    }

    fn word(&self, position: u64) -> &AtomicU32 {
        let at = usize::try_from(position % u64::from(DATA_BYTES)).unwrap();
        assert!(at.is_multiple_of(4));
        // SAFETY: aligned, within the data, which lives as long as `self`; only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.data.address.as_ptr().wrapping_add(at).cast()) }
    }

    fn room(&self, ring: &Pages) -> u64 {
        u64::from(DATA_BYTES) - (self.position - ring.position)
    }

    /// Reserves a record and fills it; it is finished by [`Self::finish`].
    fn reserve(&mut self, bytes: &[u8], flag: u32) {
        let length = u32::try_from(bytes.len()).unwrap();
        self.word(self.position).store(length | BPF_RINGBUF_BUSY_BIT, Ordering::Relaxed);
        for (at, byte) in (self.position + HEAD_BYTES..).zip(bytes) {
            let at = usize::try_from(at % u64::from(DATA_BYTES)).unwrap();
            // SAFETY: within the data; the reader does not read what is not finished.
            unsafe { self.data.address.as_ptr().wrapping_add(at).write(*byte) };
        }
        self.finished.push((self.position, length | flag));
        self.position += (u64::from(length) + HEAD_BYTES).next_multiple_of(HEAD_BYTES);
        self.page.position().store(self.position, Ordering::Release);
    }

    fn finish(&mut self) {
        for (position, head) in std::mem::take(&mut self.finished) {
            self.word(position).store(head, Ordering::Release);
        }
    }
}

#[test]
fn what_is_no_ring_is_refused() {
    let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
    for bytes in [0, 100, 3 * 4096] {
        assert!(Pages::of(file.as_fd(), bytes).is_err(), "{bytes}");
    }
}

#[test]
fn an_unfinished_record_is_waited_for() {
    let (mut writer, mut ring) = Writer::with_ring();
    assert!(ring.next().is_none());
    writer.reserve(b"one", 0);
    assert!(ring.next().is_none());
    writer.finish();
    assert_eq!(&*ring.next().unwrap(), b"one");
    assert!(ring.next().is_none());
    writer.reserve(b"two", 0);
    writer.finish();
    writer.reserve(b"three", 0);
    assert_eq!(&*ring.next().unwrap(), b"two");
    assert!(ring.next().is_none());
    writer.finish();
    assert_eq!(&*ring.next().unwrap(), b"three");
}

#[test]
fn a_length_beyond_the_writers_ends_in_nothing() {
    let (mut writer, mut ring) = Writer::with_ring();
    writer.reserve(b"abc", 0);
    writer.finish();
    writer.word(0).store(4000, Ordering::Release);
    assert!(ring.next().is_none());
    assert_eq!(ring.position, writer.position);
    writer.reserve(b"def", 0);
    writer.finish();
    assert_eq!(&*ring.next().unwrap(), b"def");
}

proptest! {
    /// Whatever is written arrives whole and in order, around the end too; what is discarded does not.
    #[test]
    fn records_arrive_as_they_were_written(
        lengths in proptest::collection::vec((0_usize..1500, 1_usize..6, any::<bool>()), 1..60)
    ) {
        let (mut writer, mut ring) = Writer::with_ring();
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        let mut read = |ring: &mut Pages, most: usize| {
            for _ in 0..most {
                let Some(record) = ring.next() else { break };
                assert!(record.as_ptr().addr().is_multiple_of(8));
                seen.push(record.to_vec());
            }
        };
        for (number, (length, reads, is_kept)) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..*length).map(|at| (at * 31 + number) as u8).collect();
            while writer.room(&ring) < *length as u64 + 16 {
                let before = ring.position;
                read(&mut ring, 1);
                assert!(ring.position > before);
            }
            writer.reserve(&bytes, if *is_kept { 0 } else { BPF_RINGBUF_DISCARD_BIT });
            writer.finish();
            if *is_kept {
                sent.push(bytes);
            }
            read(&mut ring, *reads);
        }
        read(&mut ring, usize::MAX);
        prop_assert_eq!(sent, seen);
        prop_assert_eq!(ring.position, writer.position);
    }
}
