//! Two calls of `bpf(2)`: create a ring buffer, load a small tracepoint program. Both vanish with their descriptor.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_func_id, bpf_map_type, bpf_prog_type};

/// Creates a ring buffer of this many bytes.
///
/// # Errors
/// As `bpf(2)` says.
pub(super) fn create_ring(bytes: u32) -> io::Result<OwnedFd> {
    let mut attributes = empty();
    attributes.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    attributes.__bindgen_anon_1.max_entries = bytes;
    call(bpf_cmd::BPF_MAP_CREATE, &mut attributes)
}

/// Loads a program for the tracepoint with this signature type. It reads kernel and user memory, as ours do: a kernel
/// that is locked down refuses these helpers and nothing else.
///
/// # Errors
/// As `bpf(2)` says.
pub(super) fn load_tracepoint(signature: u32) -> io::Result<OwnedFd> {
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
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
    load.expected_attach_type = bpf_attach_type::BPF_TRACE_RAW_TP as u32;
    load.attach_btf_id = signature;
    load.insns = program.as_ptr() as u64;
    load.insn_cnt = u32::try_from(program.len()).expect("a dozen instructions");
    load.license = c"GPL".as_ptr() as u64;
    let result = call(bpf_cmd::BPF_PROG_LOAD, &mut attributes);
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

fn empty() -> bpf_attr {
    // SAFETY: a union of plain integers, for which all zeros is a value; the kernel demands zeros in what is unused.
    unsafe { std::mem::zeroed() }
}

fn call(command: bpf_cmd, attributes: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the pointer and size describe one live union; the addresses in it are of buffers that outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as u32, std::ptr::from_mut(attributes), size_of::<bpf_attr>())
    };
    let descriptor = i32::try_from(result).ok().filter(|descriptor| *descriptor >= 0);
    // SAFETY: both commands return a new descriptor that nothing else owns.
    descriptor
        .map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
        .ok_or_else(io::Error::last_os_error)
}
