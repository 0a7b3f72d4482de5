//! Programs to places in the kernel, through raw tracepoints and perf events.
//!
//! In: a program's descriptor and a place. Out: an [`Attachment`], whose end detaches. Nothing is written to tracefs,
//! so nothing can be left behind there.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, perf_event_attr};

use super::{empty, make, own};

/// A program in its place.
#[derive(Debug)]
pub enum Attachment {
    /// A link of the kernel's (5.15 for perf events).
    Link(OwnedFd),
    /// A perf event that holds the program.
    Event(OwnedFd),
}

impl Attachment {
    /// The link, if it is one.
    #[must_use]
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Link(link) => Some(link.as_fd()),
            Self::Event(_) => None,
        }
    }
}

/// Where the kernel shows its source of kprobe events.
pub const KPROBE_SOURCE: &str = "/sys/bus/event_source/devices/kprobe";
/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_CPU_CLOCK`
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_PAGE_FAULTS`
const PAGE_FAULTS: u64 = 2;
/// `PERF_TYPE_TRACEPOINT`
const TRACEPOINT: u32 = 2;
pub(super) const CLOSE_ON_EXEC: libc::c_ulong = 8;
/// `PERF_EVENT_IOC_SET_BPF`, `PERF_EVENT_IOC_ENABLE`
const SET_PROGRAM: libc::Ioctl = 0x4004_2408;
const ENABLE: libc::Ioctl = 0x2400;

/// Attaches a program of the kinds `BtfTracepoint`, `FunctionEntry`, `FunctionExit` to what it was loaded for.
///
/// # Errors
/// As `bpf(2)` says.
pub fn tracing(program: BorrowedFd<'_>) -> io::Result<Attachment> {
    let mut attributes = empty();
    attributes.raw_tracepoint.prog_fd = program.as_raw_fd().unsigned_abs();
    make(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attributes).map(Attachment::Link)
}

/// Attaches a program of kind `Kprobe` to the entry or the return of a kernel function.
///
/// # Errors
/// When the kernel shows no source of kprobe events, has no such function, or refuses. The text names the step.
pub fn kprobe(program: BorrowedFd<'_>, function: &str, at_return: bool) -> io::Result<Attachment> {
    let name = CString::new(function).map_err(io::Error::other)?;
    let mut attributes = event();
    attributes.type_ = number_in(KPROBE_SOURCE, "type", "")?;
    if at_return {
        attributes.config = 1 << number_in::<u32>(KPROBE_SOURCE, "format/retprobe", "config:")?;
    }
    attributes.__bindgen_anon_3.kprobe_func = name.as_ptr() as u64;
    let event = open(&attributes, None).map_err(|error| step("perf_event_open", &error))?;
    drop(name);
    attach(program, event, 0)
}

/// Attaches a program of kind `Tracepoint` to the tracepoint with this number.
///
/// # Errors
/// When the kernel refuses. The text names the step.
pub fn tracepoint(program: BorrowedFd<'_>, number: u64) -> io::Result<Attachment> {
    let mut attributes = event();
    attributes.type_ = TRACEPOINT;
    attributes.config = number;
    attach(program, open(&attributes, None).map_err(|error| step("perf_event_open", &error))?, 0)
}

/// Attaches a program of kind `PerfEvent` to the clock of one CPU: it runs so many times a second while that CPU does
/// something. Ends when the CPU goes offline.
///
/// # Errors
/// When there is no such CPU, or the kernel refuses. The text names the step.
pub fn clock(program: BorrowedFd<'_>, cpu: u32, hertz: u32) -> io::Result<Attachment> {
    let mut attributes = event();
    attributes.type_ = SOFTWARE;
    attributes.config = CPU_CLOCK;
    attributes.__bindgen_anon_1.sample_freq = hertz.into();
    attributes.set_freq(1);
    attributes.set_exclude_idle(1);
    let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
    attach(program, open_at(&attributes, -1, cpu).map_err(|error| step("perf_event_open", &error))?, 0)
}

/// Attaches a program of kind `PerfEvent` to the page faults of one CPU: it runs at every `period`-th. Ends
/// when the CPU goes offline.
///
/// # Errors
/// When there is no such CPU, or the kernel refuses. The text names the step.
pub fn page_faults(program: BorrowedFd<'_>, cpu: u32, period: u32) -> io::Result<Attachment> {
    let mut attributes = event();
    attributes.type_ = SOFTWARE;
    attributes.config = PAGE_FAULTS;
    attributes.__bindgen_anon_1.sample_period = period.into();
    let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
    attach(program, open_at(&attributes, -1, cpu).map_err(|error| step("perf_event_open", &error))?, 0)
}

pub(super) fn event() -> perf_event_attr {
    // SAFETY: a C structure of integers for which all zeroes is a valid value.
    let mut attributes: perf_event_attr = unsafe { std::mem::zeroed() };
    attributes.size = u32::try_from(size_of::<perf_event_attr>()).expect("a structure of some 130 bytes");
    attributes
}

/// An event of one process or all; programs on it run on every CPU, whichever it is opened for.
pub(super) fn open(attributes: &perf_event_attr, process: Option<u32>) -> io::Result<OwnedFd> {
    let process = process.map_or(-1, |process| i32::try_from(process).unwrap_or(i32::MAX));
    open_at(attributes, process, if process < 0 { 0 } else { -1 })
}

fn open_at(attributes: &perf_event_attr, process: i32, cpu: i32) -> io::Result<OwnedFd> {
    let no_group = -1;
    // SAFETY: the pointer is to a live structure that holds its size; the name in it outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            process,
            cpu,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(own(result)) }
}

/// By a link, which counts what it missed; before 5.15 the event itself takes the program.
pub(super) fn attach(program: BorrowedFd<'_>, event: OwnedFd, cookie: u64) -> io::Result<Attachment> {
    let mut attributes = empty();
    attributes.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().unsigned_abs();
    attributes.link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().unsigned_abs();
    attributes.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    attributes.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    match make(bpf_cmd::BPF_LINK_CREATE, &mut attributes) {
        Ok(link) => Ok(Attachment::Link(link)),
        // Such a kernel has no cookies either.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && cookie == 0 => {
            control(&event, SET_PROGRAM, program.as_raw_fd()).map_err(|error| step("set program", &error))?;
            control(&event, ENABLE, 0).map_err(|error| step("enable", &error))?;
            Ok(Attachment::Event(event))
        }
        Err(error) => Err(step("link", &error)),
    }
}

fn control(event: &OwnedFd, request: libc::Ioctl, argument: i32) -> io::Result<()> {
    // SAFETY: both requests take a number, no pointer.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A number that a source of events shows in one of its files.
pub(super) fn number_in<T: std::str::FromStr>(source: &str, file: &str, before: &str) -> io::Result<T> {
    let path = format!("{source}/{file}");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("failed to read `{path}`: {error}")))?;
    let number = text.trim().strip_prefix(before).and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("`{path}` holds `{}`, not a number", text.trim())))
}

/// Which of several calls failed; keeps the kind.
pub(super) fn step(call: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{call}: {error}"))
}
