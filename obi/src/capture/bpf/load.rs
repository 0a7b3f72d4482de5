//! Loading a program as the loading library does not: with an attach type of our choice.
//!
//! In: a relocated program of the library's parser. Out: its descriptor, or what the kernel said. See `BPF_PROG_LOAD`
//! and `BPF_BTF_LOAD` in bpf(2).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use aya_obj::Function;
use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_prog_type};

use super::{empty, make};

/// A program to be loaded.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Its name, cut by the kernel after 15 bytes.
    pub name: &'a str,
    /// Its instructions, relocated, and what they were compiled from.
    pub function: &'a Function,
    /// Its licence.
    pub license: &'a CStr,
    /// The object's type information, where the kernel takes any.
    pub types: Option<BorrowedFd<'a>>,
}

/// Why the kernel refused a program.
#[derive(Debug)]
pub struct Refusal {
    /// What it said.
    pub error: io::Error,
    /// What the verifier said, pages of it.
    pub log: String,
}

const LOG_BYTES: usize = 1024 * 1024;

/// Loads a program for places in files (`uprobe`): by one link for many, or (`multi` false) by a performance event for
/// each.
///
/// # Errors
/// When the kernel refuses it.
pub fn uprobe(code: Code<'_>, multi: bool) -> Result<OwnedFd, Refusal> {
    let attach_type = if multi { bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32 } else { 0 };
    explained(code, Kind { program: bpf_prog_type::BPF_PROG_TYPE_KPROBE, attach_type, attach_to: 0 })
}

/// Loads a program for performance events.
///
/// # Errors
/// When the kernel refuses it.
pub fn perf_event(code: Code<'_>) -> Result<OwnedFd, Refusal> {
    explained(code, Kind { program: bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT, attach_type: 0, attach_to: 0 })
}

/// Loads a program for the entry of a kernel function.
///
/// # Errors
/// When the kernel refuses it.
pub fn kprobe(code: Code<'_>) -> Result<OwnedFd, Refusal> {
    explained(code, Kind { program: bpf_prog_type::BPF_PROG_TYPE_KPROBE, attach_type: 0, attach_to: 0 })
}

/// Loads a program for a tracepoint with type information: `of` is the number of its type in the kernel's.
///
/// # Errors
/// When the kernel refuses it.
pub fn typed_tracepoint(code: Code<'_>, of: u32) -> Result<OwnedFd, Refusal> {
    let attach_type = bpf_attach_type::BPF_TRACE_RAW_TP as u32;
    explained(code, Kind { program: bpf_prog_type::BPF_PROG_TYPE_TRACING, attach_type, attach_to: of })
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    program: bpf_prog_type,
    attach_type: u32,
    /// The kernel's type of what it is for; 0: none.
    attach_to: u32,
}

/// A second time when refused, to learn why.
fn explained(code: Code<'_>, kind: Kind) -> Result<OwnedFd, Refusal> {
    load(code, kind, &mut []).or_else(|_| {
        let mut log = vec![0; LOG_BYTES];
        load(code, kind, &mut log).map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            Refusal { error, log: String::from_utf8_lossy(&log[..end]).into_owned() }
        })
    })
}

fn load(code: Code<'_>, kind: Kind, log: &mut [u8]) -> io::Result<OwnedFd> {
    let Code { name, function, license, types } = code;
    let (functions, lines) = (function.func_info.func_info_bytes(), function.line_info.line_info_bytes());
    let size = |count: usize| u32::try_from(count).map_err(io::Error::other);
    let mut attributes = empty();
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let load = unsafe { &mut attributes.__bindgen_anon_3 };
    load.prog_type = kind.program as u32;
    load.expected_attach_type = kind.attach_type;
    load.attach_btf_id = kind.attach_to;
    let most = load.prog_name.len() - 1;
    for (to, from) in load.prog_name[..most].iter_mut().zip(name.bytes()) {
        // Signed on x86-64, unsigned on arm64.
        *to = libc::c_char::from_ne_bytes([from]);
    }
    load.insns = function.instructions.as_ptr() as u64;
    load.insn_cnt = size(function.instructions.len())?;
    load.license = license.as_ptr() as u64;
    if let Some(types) = types {
        load.prog_btf_fd = types.as_raw_fd().unsigned_abs();
        load.func_info = functions.as_ptr() as u64;
        load.func_info_cnt = size(function.func_info.len())?;
        load.func_info_rec_size = size(function.func_info_rec_size)?;
        load.line_info = lines.as_ptr() as u64;
        load.line_info_cnt = size(function.line_info.len())?;
        load.line_info_rec_size = size(function.line_info_rec_size)?;
    }
    if !log.is_empty() {
        load.log_level = 1;
        load.log_buf = log.as_mut_ptr() as u64;
        load.log_size = size(log.len())?;
    }
    let result = make(bpf_cmd::BPF_PROG_LOAD, &mut attributes);
    drop((functions, lines));
    result
}

/// Loads an object's type information.
///
/// # Errors
/// As `bpf(2)` says.
pub fn types(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = empty();
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let load = unsafe { &mut attributes.__bindgen_anon_7 };
    load.btf = bytes.as_ptr() as u64;
    load.btf_size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    make(bpf_cmd::BPF_BTF_LOAD, &mut attributes)
}
