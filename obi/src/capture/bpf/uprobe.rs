//! Attaching a program to places in a file that processes map: `uprobe.multi` (6.6), and performance events before.
//!
//! In: a program, a file, offsets in it. Out: descriptors, whose end detaches. See `BPF_LINK_CREATE` in bpf(2) and
//! perf_event_open(2).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use aya_obj::generated::{BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type, bpf_cmd};

use super::attach::{Attachment, event, number_in, open, step};
use super::create::{self, Kind};
use super::{empty, make};

/// Where the kernel shows its source of uprobe events.
pub const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe";

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSite {
    /// Offset of the instruction in the file.
    pub offset: u64,
    /// What the program gets to know of it (`bpf_get_attach_cookie`).
    pub cookie: u64,
}

/// Which hits count.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The file; only what it names is used, so it may be open for anything.
    pub file: BorrowedFd<'a>,
    /// When the function that begins at the place returns, not when it begins.
    pub at_return: bool,
    /// Only in this process; its number in our pid namespace.
    pub process: Option<u32>,
}

/// Attaches to all places by one link. The program must have been loaded for it.
///
/// # Errors
/// As `bpf(2)` says: `EINVAL` before 6.6.
pub fn multi(program: BorrowedFd<'_>, target: Target<'_>, places: &[ProbeSite]) -> io::Result<Attachment> {
    let path = path(target.file)?;
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> = places.iter().map(|place| place.cookie).collect();
    let mut attributes = empty();
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().unsigned_abs();
    attributes.link_create.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let uprobe = unsafe { &mut attributes.link_create.__bindgen_anon_3.uprobe_multi };
    uprobe.path = path.as_ptr() as u64;
    uprobe.offsets = offsets.as_ptr() as u64;
    uprobe.cookies = cookies.as_ptr() as u64;
    uprobe.cnt = u32::try_from(places.len()).map_err(io::Error::other)?;
    uprobe.flags = if target.at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
    uprobe.pid = target.process.unwrap_or(0);
    let link = make(bpf_cmd::BPF_LINK_CREATE, &mut attributes);
    drop((path, offsets, cookies));
    link.map(Attachment::Link)
}

/// Whether the kernel has [`multi`]. Attaches nothing: asked for a place in a directory, a kernel that knows the call
/// says so, one that does not calls it invalid.
#[must_use]
pub fn is_multi_supported() -> bool {
    let attached = || {
        let program = create::program(Kind::UprobeMulti)?;
        let directory = std::fs::File::open("/")?;
        let target = Target { file: directory.as_fd(), at_return: false, process: None };
        multi(program.as_fd(), target, &[ProbeSite { offset: 0, cookie: 0 }])
    };
    attached().is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
}

/// Attaches to one place by a performance event.
///
/// # Errors
/// When the kernel shows no source of uprobe events, or refuses. The text names the step.
pub fn single(program: BorrowedFd<'_>, target: Target<'_>, place: ProbeSite) -> io::Result<Attachment> {
    let path = path(target.file)?;
    let mut attributes = event();
    attributes.type_ = number_in(UPROBE_SOURCE, "type", "")?;
    if target.at_return {
        attributes.config = 1 << number_in::<u32>(UPROBE_SOURCE, "format/retprobe", "config:")?;
    }
    attributes.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attributes.__bindgen_anon_4.probe_offset = place.offset;
    let event = open(&attributes, target.process).map_err(|error| step("perf_event_open", &error))?;
    drop(path);
    super::attach::attach(program, event, place.cookie)
}

/// A name for an open file that no rename, mount or namespace changes.
fn path(file: BorrowedFd<'_>) -> io::Result<CString> {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io::Error::other)
}

/// The byte at `offset` as a process that maps the file would find it: the kernel puts its breakpoints into mappings,
/// not into the file.
///
/// # Errors
/// When the file cannot be mapped.
pub fn mapped_byte(file: BorrowedFd<'_>, offset: u64) -> io::Result<u8> {
    let page = rustix::param::page_size();
    let within = usize::try_from(offset).map_err(io::Error::other)? % page;
    // A mapping of a file that is cut meanwhile must not be touched beyond its end.
    let length = rustix::fs::fstat(file)?.st_size.cast_unsigned();
    if offset >= length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let start = offset - within as u64;
    let copy = PrivatePage::map(file, start, page)?;
    copy.byte(within)
}

/// One page of a file, mapped privately.
struct PrivatePage {
    address: *mut libc::c_void,
    length: usize,
}

impl PrivatePage {
    fn map(file: BorrowedFd<'_>, start: u64, length: usize) -> io::Result<Self> {
        let start = i64::try_from(start).map_err(io::Error::other)?;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else is touched.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), start) };
        if address == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { address, length })
        }
    }

    /// Read by the kernel, for whom a page that has gone is an error and no signal.
    fn byte(&self, within: usize) -> io::Result<u8> {
        let mut byte = [0];
        let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let address = self.address.addr().checked_add(within).ok_or(io::ErrorKind::InvalidInput)?;
        let remote = libc::iovec { iov_base: self.address.with_addr(address), iov_len: 1 };
        let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        // SAFETY: both vectors are live for the call; the kernel checks the remote address itself.
        let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
        match read {
            1 => Ok(byte[0]),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for PrivatePage {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made above, which nothing refers to any more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}
