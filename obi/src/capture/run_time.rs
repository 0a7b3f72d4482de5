//! Run-time statistics of a loaded program: the one `bpf(2)` call that the library does not offer.
//!
//! In: a program's descriptor. Out: nanoseconds and runs. See `BPF_OBJ_GET_INFO_BY_FD` in bpf(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};

/// What the kernel measured of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTime {
    /// Time inside the program, ns, over all CPUs.
    pub nanoseconds: u64,
    /// Number of runs.
    pub runs: u64,
}

/// Asks the kernel about one program.
///
/// # Errors
/// What `bpf(2)` says, for example `EPERM` without `CAP_BPF`.
pub fn of(program: BorrowedFd<'_>) -> io::Result<RunTime> {
    // SAFETY: both are C structures of integers for which all zeroes is a valid value.
    let (mut info, mut attributes): (bpf_prog_info, bpf_attr) = unsafe { std::mem::zeroed() };
    attributes.info.bpf_fd = program.as_raw_fd().unsigned_abs();
    attributes.info.info = (&raw mut info) as u64;
    attributes.info.info_len =
        u32::try_from(size_of::<bpf_prog_info>()).expect("a structure of some 200 bytes");
    // SAFETY: `attributes` is a valid `bpf_attr` whose info pointer and length describe `info`, which
    // outlives the call; the kernel writes at most `info_len` bytes there.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            bpf_cmd::BPF_OBJ_GET_INFO_BY_FD as libc::c_long,
            &raw mut attributes,
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(RunTime { nanoseconds: info.run_time_ns, runs: info.run_cnt })
}
