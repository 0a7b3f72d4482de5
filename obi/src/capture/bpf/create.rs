//! A ring buffer and the smallest programs of each kind, to find out what the kernel takes.
//!
//! In: sizes, types. Out: descriptors; what they stand for vanishes with them.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_func_id, bpf_map_type, bpf_prog_type};

use super::{call, empty, make};

/// Kinds of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// At the tracepoint with this signature type.
    BtfTracepoint(u32),
    /// At the entry of the function with this type.
    FunctionEntry(u32),
    /// At the exit of the function with this type.
    FunctionExit(u32),
    /// At a breakpoint.
    Kprobe,
    /// At many places of a file that processes map.
    UprobeMulti,
    /// At a tracepoint.
    Tracepoint,
}

/// Creates a ring buffer of this many bytes.
///
/// # Errors
/// As `bpf(2)` says.
pub fn ring(bytes: u32) -> io::Result<OwnedFd> {
    let mut attributes = empty();
    attributes.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    attributes.__bindgen_anon_1.max_entries = bytes;
    make(bpf_cmd::BPF_MAP_CREATE, &mut attributes)
}

/// Stores `value` with a socket, in a map of kind socket storage. It goes with the socket.
///
/// # Errors
/// As `bpf(2)` says; `ENOMEM` where the kernel cannot allocate in the places programs run.
pub fn store(map: BorrowedFd<'_>, socket: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let key = socket.as_raw_fd();
    let mut attributes = empty();
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let element = unsafe { &mut attributes.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd().unsigned_abs();
    element.key = (&raw const key) as u64;
    element.__bindgen_anon_1.value = value.as_ptr() as u64;
    call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attributes).map(drop)
}

/// Puts a program into a map of programs, for tail calls.
///
/// # Errors
/// As `bpf(2)` says; `EINVAL` for a program of another kind than those that use the map.
pub fn set_program(map: BorrowedFd<'_>, index: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let value = program.as_raw_fd();
    let mut attributes = empty();
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let element = unsafe { &mut attributes.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd().unsigned_abs();
    element.key = (&raw const index) as u64;
    element.__bindgen_anon_1.value = (&raw const value) as u64;
    call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attributes).map(drop)
}

/// Loads a program of this kind. It reads kernel and user memory, as ours do: a kernel that is locked down refuses
/// these helpers and nothing else.
///
/// # Errors
/// As `bpf(2)` says.
pub fn program(kind: Kind) -> io::Result<OwnedFd> {
    let program = [
        read_memory(bpf_func_id::BPF_FUNC_probe_read_kernel as u32),
        read_memory(bpf_func_id::BPF_FUNC_probe_read_user as u32),
    ]
    .concat()
    .into_iter()
    .chain([instruction(MOVE, 0, 0, 0), instruction(EXIT, 0, 0, 0)])
    .collect::<Vec<u64>>();
    let mut attributes = empty();
    // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
    let load = unsafe { &mut attributes.__bindgen_anon_3 };
    let tracing = |attach_type: bpf_attach_type, types: u32| {
        (bpf_prog_type::BPF_PROG_TYPE_TRACING, attach_type as u32, types)
    };
    let (prog_type, attach_type, types) = match kind {
        Kind::BtfTracepoint(types) => tracing(bpf_attach_type::BPF_TRACE_RAW_TP, types),
        Kind::FunctionEntry(types) => tracing(bpf_attach_type::BPF_TRACE_FENTRY, types),
        Kind::FunctionExit(types) => tracing(bpf_attach_type::BPF_TRACE_FEXIT, types),
        Kind::Kprobe => (bpf_prog_type::BPF_PROG_TYPE_KPROBE, 0, 0),
        Kind::UprobeMulti => {
            (bpf_prog_type::BPF_PROG_TYPE_KPROBE, bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32, 0)
        }
        Kind::Tracepoint => (bpf_prog_type::BPF_PROG_TYPE_TRACEPOINT, 0, 0),
    };
    load.prog_type = prog_type as u32;
    load.expected_attach_type = attach_type;
    load.attach_btf_id = types;
    load.insns = program.as_ptr() as u64;
    load.insn_cnt = u32::try_from(program.len()).expect("a dozen instructions");
    load.license = c"GPL".as_ptr() as u64;
    let result = make(bpf_cmd::BPF_PROG_LOAD, &mut attributes);
    drop(program);
    result
}

// Operation codes of the BPF instruction set (RFC 9669), 64 bits wide.
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// `helper(stack - 8, 8, NULL)`
fn read_memory(helper: u32) -> Vec<u64> {
    vec![
        instruction(MOVE_REGISTER, 1, 10, 0),
        instruction(ADD, 1, 0, -8),
        instruction(MOVE, 2, 0, 8),
        instruction(MOVE, 3, 0, 0),
        instruction(CALL, 0, 0, helper.cast_signed()),
    ]
}

/// One instruction as the kernel reads it: code, registers, offset (none here), immediate.
fn instruction(code: u8, destination: u8, source: u8, immediate: i32) -> u64 {
    // The registers are bit fields, so their order follows the machine's.
    let registers =
        if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
    let [a, b, c, d] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, registers, 0, 0, a, b, c, d])
}
