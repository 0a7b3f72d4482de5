//! What the kernel knows of a loaded program and of a link: run time, runs, missed runs, size.
//!
//! In: descriptors. Out: numbers, `None` where this kernel keeps none. See `BPF_OBJ_GET_INFO_BY_FD` in bpf(2).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_link_info, bpf_prog_info};

use super::{call, empty};

/// What the kernel knows of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgramInfo {
    /// Time inside the program, ns, over all CPUs; grows only while statistics are on.
    pub nanoseconds: u64,
    /// Number of runs, while statistics were on.
    pub runs: u64,
    /// Runs that the kernel skipped because a program was running on that CPU already (5.12).
    pub recursion_misses: Option<u64>,
    /// Instructions that the verifier looked at (5.16).
    pub verified_instructions: Option<u32>,
}

/// Asks the kernel about one program.
///
/// # Errors
/// What `bpf(2)` says, for example `EPERM` without `CAP_BPF`.
pub fn program(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    // SAFETY: a C structure of integers for which all zeroes is a valid value.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let known = ask(program, &mut info)?;
    let misses_end = offset_of!(bpf_prog_info, recursion_misses) + size_of_val(&info.recursion_misses);
    let verified_end = offset_of!(bpf_prog_info, verified_insns) + size_of_val(&info.verified_insns);
    Ok(ProgramInfo {
        nanoseconds: info.run_time_ns,
        runs: info.run_cnt,
        recursion_misses: (known >= misses_end).then_some(info.recursion_misses),
        verified_instructions: (known >= verified_end).then_some(info.verified_insns),
    })
}

/// Hits of a kprobe that the kernel did not deliver, because one was being handled already or no instance of a return
/// probe was left (6.7).
///
/// # Errors
/// What `bpf(2)` says.
pub fn kprobe_misses(link: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: a C structure of integers for which all zeroes is a valid value.
    let mut info: bpf_link_info = unsafe { std::mem::zeroed() };
    let known = ask(link, &mut info)?;
    // SAFETY: the link is one of a perf event, and every byte of the union is an initialised integer.
    let kprobe = unsafe { info.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe };
    // SAFETY: as above; only the address of the field is taken.
    let end = unsafe { &raw const info.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe.missed };
    let end = end.addr() - (&raw const info).addr() + size_of_val(&kprobe.missed);
    Ok((known >= end).then_some(kprobe.missed))
}

/// Fills `info`, a C structure of integers that matches the descriptor; returns how much of it the kernel knows.
fn ask<T>(descriptor: BorrowedFd<'_>, info: &mut T) -> io::Result<usize> {
    let mut attributes: bpf_attr = empty();
    attributes.info.bpf_fd = descriptor.as_raw_fd().unsigned_abs();
    attributes.info.info = std::ptr::from_mut(info) as u64;
    attributes.info.info_len = u32::try_from(size_of::<T>()).expect("a structure of some 200 bytes");
    call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
    // SAFETY: the member that was written before the call, and by the kernel.
    Ok(unsafe { attributes.info.info_len } as usize)
}
