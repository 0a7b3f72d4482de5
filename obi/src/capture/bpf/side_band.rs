//! Performance events that report what processes map, begin and end: one ring in memory per CPU.
//!
//! In: nothing. Out: records as the kernel wrote them (`perf_event_open(2)`, `PERF_RECORD_MMAP2` and its like), each
//! whole. Opening needs `CAP_PERFMON`, reading nothing. Refuses to know what a record says.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use aya_obj::generated::{perf_event_attr, perf_event_mmap_page};

use super::attach::{CLOSE_ON_EXEC, event, step};
use super::own;

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_DUMMY`: never counts anything.
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
/// `PERF_SAMPLE_TIME`
const TIME: u64 = 1 << 2;
/// Longest record the kernel writes.
const RECORD_BYTES: usize = u16::MAX as usize;
const HEADER_BYTES: usize = 8;

/// The reader is called when this much waits: a program that begins makes 1 to 4 KB, and a familiar one must be known
/// to the kernel side before it is half over.
const WAKEUP_BYTES: u32 = 1024;

/// The ring of one CPU.
#[derive(Debug)]
pub struct SideBand {
    event: OwnedFd,
    page: NonNull<perf_event_mmap_page>,
    mapped: usize,
    /// A power of two.
    data_bytes: usize,
    /// A record that wraps around the ring's end, put together.
    whole: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for SideBand {}

impl SideBand {
    /// Opens the events of one CPU, with a ring of this many pages (a power of two).
    ///
    /// # Errors
    /// As `perf_event_open(2)` and `mmap(2)`; the text names the step.
    pub fn open(cpu: u32, pages: usize) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let data_bytes = pages.next_power_of_two() * page_bytes;
        let attributes = attributes(WAKEUP_BYTES);
        let event = open(&attributes, cpu).map_err(|error| step("perf_event_open", &error))?;
        let mapped = data_bytes + page_bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice; nothing else is touched.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, protection, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(step("mmap", &io::Error::last_os_error()));
        }
        let page = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { event, page, mapped, data_bytes, whole: Vec::new() })
    }

    /// Hands over every record there is, up to the ring's end as it was at the call, and gives the room back. Each has
    /// its header and the length that the header says.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let head = self.position(false).load(Ordering::Acquire);
        let mut tail = self.position(true).load(Ordering::Relaxed);
        while head.wrapping_sub(tail) >= HEADER_BYTES as u64 {
            let left = usize::try_from(head.wrapping_sub(tail)).unwrap_or(0).min(self.data_bytes);
            let mut header = [0; HEADER_BYTES];
            self.copy(tail, &mut header);
            let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if length < HEADER_BYTES || length > left || length > RECORD_BYTES {
                // The kernel does not write such; what follows cannot be found any more.
                tail = head;
                break;
            }
            let mut whole = std::mem::take(&mut self.whole);
            whole.resize(length, 0);
            self.copy(tail, &mut whole);
            take(&whole);
            self.whole = whole;
            tail = tail.wrapping_add(length as u64);
        }
        // What was read is read before the kernel may write over it.
        fence(Ordering::SeqCst);
        self.position(true).store(tail, Ordering::Release);
    }

    /// Memory of the ring, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapped
    }

    /// `data_tail`, which we write, or `data_head`, which the kernel does.
    fn position(&self, is_tail: bool) -> &AtomicU64 {
        let page = self.page.as_ptr();
        // SAFETY: both fields are aligned, live as long as the mapping, and are only accessed atomically.
        unsafe {
            let field = if is_tail { &raw mut (*page).data_tail } else { &raw mut (*page).data_head };
            AtomicU64::from_ptr(field)
        }
    }

    /// Copies bytes from a position in the ring, around its end if need be.
    fn copy(&self, position: u64, to: &mut [u8]) {
        let length = to.len().min(self.data_bytes);
        let at = usize::try_from(position & (self.data_bytes as u64 - 1)).unwrap_or(0);
        let first = length.min(self.data_bytes - at);
        let data = self.page.as_ptr().cast::<u8>().wrapping_add(self.mapped - self.data_bytes);
        // SAFETY: `at + first` and `length - first` are within the data area, which follows the first page; the kernel
        // does not write between tail and head.
        unsafe {
            std::ptr::copy_nonoverlapping(data.wrapping_add(at), to.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, to.as_mut_ptr().wrapping_add(first), length - first);
        }
    }
}

impl AsFd for SideBand {
    /// Readable when so much has been written as a program makes that begins.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for SideBand {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made when it was opened, which nothing refers to any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.mapped) };
    }
}

fn attributes(watermark: u32) -> perf_event_attr {
    let mut attributes = event();
    attributes.type_ = SOFTWARE;
    attributes.config = DUMMY;
    attributes.sample_type = TIME;
    attributes.set_sample_id_all(1);
    attributes.set_mmap(1);
    attributes.set_mmap2(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_task(1);
    attributes.set_use_clockid(1);
    attributes.clockid = libc::CLOCK_MONOTONIC;
    attributes.set_watermark(1);
    attributes.__bindgen_anon_2.wakeup_watermark = watermark;
    attributes
}

/// Of all processes, on one CPU.
fn open(attributes: &perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    let (all, no_group) = (-1, -1);
    // SAFETY: the pointer is to a live structure that holds its size.
    let result = unsafe {
        let attributes = std::ptr::from_ref(attributes);
        libc::syscall(libc::SYS_perf_event_open, attributes, all, cpu, no_group, CLOSE_ON_EXEC)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(own(result)) }
}
