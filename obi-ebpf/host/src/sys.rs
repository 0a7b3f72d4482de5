//! The island of foreign functions: safe wrappers of the entry points of `kernel.c`.
//!
//! In: segments and faults. Out: journal, counters, state. The C side keeps its state in static memory, so a
//! [`Kernel`] holds a lock for as long as it lives.

use obi_ebpf::CLOSE_ABANDONED;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How often out of 256 times something fails.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Reserving a record.
    pub ring: u32,
    /// Reading user memory.
    pub user: u32,
    /// Storing a note about a pending request.
    pub note: u32,
    /// Allocating spare memory.
    pub spare: u32,
    /// Going on with a walk: it is cut off.
    pub steps: u32,
}

#[repr(C)]
struct Part {
    base: u64,
    length: u64,
}

#[repr(C)]
struct RawSegment {
    parts: *const Part,
    time: u64,
    n_parts: u32,
    length: u32,
    opaque: u32,
    gap: u32,
    sending: u32,
    scattered: u32,
}

/// What the scan of one piece as the first of a head came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// Value of Content-Length, 0 without one.
    pub content_length: u64,
    /// `enum scan_result`.
    pub result: u32,
    /// Bytes scanned.
    pub used: u32,
    /// `enum cursor_flag`.
    pub flags: u32,
    /// `enum cursor_mode` behind the head.
    pub mode: u32,
    /// Of a response, 0 otherwise.
    pub status: u32,
}

/// What some bytes of chunk framing came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes to the end of the chunk's CRLF.
    pub remaining: u64,
    /// `enum chunk_result`.
    pub result: u32,
    /// Bytes used.
    pub used: u32,
    /// `enum cursor_mode`.
    pub mode: u32,
}

/// Counts and modes inside a connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// Request heads completed.
    pub n_requests: u32,
    /// Responses completed.
    pub n_responses: u32,
    /// Notes outstanding.
    pub n_noted: u32,
    /// `enum side`.
    pub side: u32,
    /// `enum cursor_mode`.
    pub receive_mode: u32,
    /// `enum cursor_mode`.
    pub send_mode: u32,
}

/// `struct prefix`: where a header of fixed size holds the length of its payload.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the header.
    pub header_bytes: u8,
    /// Where the length's first byte stands in it.
    pub at: u8,
    /// Bytes of the length.
    pub width: u8,
    /// 1: its first byte is the lowest.
    pub little_endian: u8,
    /// Bytes of the header that it counts.
    pub counted: u8,
}

unsafe extern "C" {
    fn host_boot(seed: u64, limit: u32, faults: *const Faults);
    fn host_faults(faults: *const Faults);
    fn host_connect(number: u64, receive_mode: u32, send_mode: u32) -> *mut c_void;
    fn host_free(connection: *mut c_void);
    fn host_segment(connection: *mut c_void, segment: *const RawSegment);
    fn host_end(connection: *mut c_void, time: u64, reason: u32, unseen_requests: u32);
    fn host_journal(index: u32, bytes: *mut *const u8, number: *mut u64, turns: *mut u32) -> u32;
    fn host_journal_length() -> u32;
    fn host_tally(kind: u32, reason: u32) -> u64;
    fn host_notes() -> u32;
    fn host_contents() -> u32;
    fn host_current() -> u64;
    fn host_state(connection: *const c_void, state: *mut State);
    fn host_first_newline(word: u64, flags: *mut u64) -> u32;
    fn host_scan(bytes: *const u8, length: u32, head: *mut Head);
    fn host_chunk(bytes: *const u8, length: u32, chunk: *mut Chunk);
    fn host_prefixed_payload(row: *const Prefix, header: *const u8) -> u32;
    fn host_prefix(number: u32) -> *const Prefix;
}

/// The bytes of one system call.
#[derive(Debug, Clone, Copy)]
pub enum Segment<'a> {
    /// One buffer.
    Buffer(&'a [u8]),
    /// An array of buffers, any of them possibly empty.
    Vector(&'a [&'a [u8]]),
    /// So many bytes from a buffer that could not be found (`false`) or that never were in user memory
    /// (`true`).
    Opaque(u32, bool),
}

/// One happening in the order in which the agent could learn of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A record in the ring, 8-byte aligned when read from here with [`Entry::words`].
    Record(Vec<u64>),
    /// A number in the queue of exchanges to forget.
    Forgotten(u64),
    /// The same for a connection to a database whose end found no room: the ordinal says how many turns were asked for.
    Turns(u64),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    raw: NonNull<c_void>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: `raw` came from host_connect and is freed only here.
        unsafe { host_free(self.raw.as_ptr()) }
    }
}

/// The kernel with its maps. Only one exists at a time in a process.
#[derive(Debug)]
pub struct Kernel {
    connections: u64,
    _lock: MutexGuard<'static, ()>,
}

impl Kernel {
    /// An empty kernel that copies `head_limit` bytes of each head; `seed` decides which faults happen.
    #[must_use]
    pub fn boot(seed: u64, head_limit: u32, faults: Faults) -> Self {
        let lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock is held, so no other thread touches the C side's static memory.
        unsafe { host_boot(seed, head_limit, &raw const faults) };
        Self { connections: 0, _lock: lock }
    }

    /// From now on these faults happen.
    pub fn set_faults(&mut self, faults: Faults) {
        // SAFETY: `&mut self` holds the lock; the C side copies the value.
        unsafe { host_faults(&raw const faults) }
    }

    /// A new connection; with `joined`, one that carried bytes before.
    pub fn connect(&mut self, joined: bool) -> Connection {
        const MODE_RESYNC: u32 = 8;
        self.connections += 1;
        let mode = if joined { MODE_RESYNC } else { 0 };
        // SAFETY: host_connect allocates and never returns NULL (it aborts).
        let raw = unsafe { host_connect(self.connections, mode, mode) };
        Connection { raw: NonNull::new(raw).expect("host_connect aborts rather than return NULL") }
    }

    /// `gap` unseen bytes, then the segment, `sending` or receiving at `time` (ns).
    pub fn segment(&mut self, on: &mut Connection, sending: bool, gap: u32, segment: Segment<'_>, time: u64) {
        let one;
        let (buffers, opaque, scattered) = match segment {
            Segment::Buffer(buffer) => {
                one = [buffer];
                (&one[..], 0, false)
            }
            Segment::Vector(buffers) => (buffers, 0, true),
            Segment::Opaque(_, kernel_pages) => (&[][..], if kernel_pages { 2 } else { 1 }, false),
        };
        let parts: Vec<Part> =
            buffers.iter().map(|b| Part { base: b.as_ptr() as u64, length: b.len() as u64 }).collect();
        let length = match segment {
            Segment::Opaque(length, _) => length,
            _ => {
                u32::try_from(buffers.iter().map(|b| b.len()).sum::<usize>()).expect("a segment below 4 GiB")
            }
        };
        let raw = RawSegment {
            parts: parts.as_ptr(),
            time,
            n_parts: u32::try_from(parts.len()).expect("few parts"),
            length,
            opaque,
            gap,
            sending: u32::from(sending),
            scattered: u32::from(scattered),
        };
        // SAFETY: the connection is alive and borrowed alone; parts and buffers outlive the call, which keeps
        // no pointer to them; `&mut self` holds the lock.
        unsafe { host_segment(on.raw.as_ptr(), &raw const raw) }
    }

    /// The connection ends for `reason` (`enum close_reason`).
    pub fn end(&mut self, connection: &mut Connection, reason: u32, time: u64) {
        // SAFETY: the connection is alive and borrowed alone; `&mut self` holds the lock.
        unsafe { host_end(connection.raw.as_ptr(), time, reason, 0) }
    }

    /// The connection ends, and bytes have passed unseen, so many of them where requests go.
    pub fn end_unseen(&mut self, connection: &mut Connection, requests: u32, time: u64) {
        // SAFETY: as in `end`.
        unsafe { host_end(connection.raw.as_ptr(), time, CLOSE_ABANDONED, requests) }
    }

    /// Everything written since the start, from the `from`-th entry on.
    #[must_use]
    pub fn journal(&self, from: usize) -> Vec<Entry> {
        // SAFETY: `&self` holds the lock.
        let length = unsafe { host_journal_length() };
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        (from..length).map(|index| self.entry(index)).collect()
    }

    fn entry(&self, index: u32) -> Entry {
        let (mut bytes, mut number, mut turns) = (std::ptr::null(), 0, 0);
        // SAFETY: `index` is below the journal's length; the pointers are to live locals.
        let size = unsafe { host_journal(index, &raw mut bytes, &raw mut number, &raw mut turns) } as usize;
        if size == 0 {
            return if turns == 0 { Entry::Forgotten(number) } else { Entry::Turns(number) };
        }
        // SAFETY: the journal owns `size` bytes at `bytes` until the next boot, which needs the lock we hold.
        let record = unsafe { std::slice::from_raw_parts(bytes, size) };
        let words =
            record.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        Entry::Record(words.collect())
    }

    /// The sum of the tallies of a kind and reason.
    #[must_use]
    pub fn tally(&self, kind: u32, reason: u32) -> u64 {
        // SAFETY: `&self` holds the lock; the C side bounds nothing, so we do.
        if kind < 4 && reason < 16 { unsafe { host_tally(kind, reason) } } else { 0 }
    }

    /// Exchanges tallied as lost, whatever the reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        (0..16).map(|reason| self.tally(obi_ebpf::TALLY_LOST, reason)).sum()
    }

    /// Connections tallied as uncovered, whatever the reason.
    #[must_use]
    pub fn uncovered(&self) -> u64 {
        (0..16).map(|reason| self.tally(obi_ebpf::TALLY_UNCOVERED, reason)).sum()
    }

    /// Notes about pending requests that are stored now.
    #[must_use]
    pub fn notes(&self) -> u32 {
        // SAFETY: `&self` holds the lock.
        unsafe { host_notes() }
    }

    /// Streams of HTTP/2 whose content is kept outside their connection now.
    #[must_use]
    pub fn contents(&self) -> u32 {
        // SAFETY: `&self` holds the lock.
        unsafe { host_contents() }
    }

    /// The exchange that the thread is said to serve now; 0: none.
    #[must_use]
    pub fn current(&self) -> u64 {
        // SAFETY: `&self` holds the lock.
        unsafe { host_current() }
    }

    /// What stands in the connection.
    #[must_use]
    pub fn state(&self, connection: &Connection) -> State {
        let mut state = State::default();
        // SAFETY: the connection is alive; `state` is a live local.
        unsafe { host_state(connection.raw.as_ptr(), &raw mut state) };
        state
    }
}

/// Byte flags (0x80) of the newlines in a word, and the bytes up to and including the first (0: none).
#[must_use]
pub fn first_newline(word: u64) -> (u64, u32) {
    let mut flags = 0;
    // SAFETY: a pure function; `flags` is a live local.
    let first = unsafe { host_first_newline(word, &raw mut flags) };
    (flags, first)
}

/// Scans `bytes` (at most 1832 of them) as the first piece of a head.
#[must_use]
pub fn scan_head(bytes: &[u8]) -> Head {
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut head = Head::default();
    let length = u32::try_from(bytes.len()).expect("a piece");
    // SAFETY: `bytes` has `length` bytes, `head` is a live local, the lock is held.
    unsafe { host_scan(bytes.as_ptr(), length, &raw mut head) };
    head
}

/// Feeds `bytes` as chunk framing until a chunk begins or the message ends.
#[must_use]
pub fn scan_chunk(bytes: &[u8]) -> Chunk {
    let mut chunk = Chunk::default();
    let length = u32::try_from(bytes.len()).expect("a few bytes");
    // SAFETY: a pure function over `length` bytes at `bytes`; `chunk` is a live local.
    unsafe { host_chunk(bytes.as_ptr(), length, &raw mut chunk) };
    chunk
}

impl Prefix {
    /// Those of the protocols that are followed.
    #[must_use]
    pub fn all() -> Vec<Self> {
        // SAFETY: a pure function; what it returns is NULL or a constant of the program.
        (0..).map_while(|number| unsafe { host_prefix(number).as_ref() }.copied()).collect()
    }

    /// Bytes of payload behind `header`.
    ///
    /// # Panics
    /// When the length does not lie within `header`, or has more than four bytes.
    #[must_use]
    pub fn payload(&self, header: &[u8]) -> u32 {
        assert!(usize::from(self.at + self.width) <= header.len() && self.width <= 4, "{self:?}");
        // SAFETY: a pure function that reads `width` bytes from `at` on, which `header` has.
        unsafe { host_prefixed_payload(&raw const *self, header.as_ptr()) }
    }
}
