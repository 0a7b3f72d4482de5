//! The few calls of `bpf(2)` and `perf_event_open(2)` that the loading library does not offer.
//!
//! In: small programs, descriptors. Out: descriptors, whose end undoes everything; what the kernel knows of a program.
//! Refuses to know hook sets.

pub mod attach;
pub mod create;
pub mod info;
pub mod load;
pub mod ring;
pub mod side_band;
pub mod trial;
pub mod uprobe;

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd};

/// Attributes of a call, all unused.
fn empty() -> bpf_attr {
    // SAFETY: a union of plain integers, for which all zeros is a value; the kernel demands zeros in what is unused.
    unsafe { std::mem::zeroed() }
}

/// `bpf(2)`. Addresses in the attributes must be of memory that outlives the call.
fn call(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: the pointer and size describe one live union; the addresses in it are of buffers that outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as u32, std::ptr::from_mut(attributes), size_of::<bpf_attr>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A command that makes a descriptor.
fn make(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    call(command, attributes).map(own)
}

/// Takes a new descriptor that a system call has just returned.
fn own(result: libc::c_long) -> OwnedFd {
    let descriptor = i32::try_from(result).expect("a descriptor is a small number");
    // SAFETY: the system call returned a new descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
