//! The commands of `bpf(2)` that loading needs, with the verifier's log, and those that a map of sockets needs.
//!
//! In: what the kernel is to hold. Out: file descriptors; closing them frees everything. Refuses to know objects.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn};

/// A map to make.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewMap {
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Elements, or bytes of a ring buffer.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// Descriptor of the type information, and the types of key and value in it; zeros for none.
    pub types: (u32, u32, u32),
}

/// A program to load.
#[derive(Debug, Clone, Copy)]
pub struct NewProgram<'a> {
    /// `enum bpf_prog_type`.
    pub program_type: u32,
    /// `enum bpf_attach_type`.
    pub attach_type: u32,
    /// The kernel's type that it attaches to, or 0.
    pub attach_to: u32,
    /// Its code.
    pub instructions: &'a [bpf_insn],
    /// Its licence.
    pub license: &'a CStr,
    /// Its object's type information.
    pub types: Option<BorrowedFd<'a>>,
    /// `bpf_func_info` records.
    pub functions: &'a [u8],
    /// Bytes of one of them.
    pub function_size: u32,
    /// `bpf_line_info` records, for a readable log.
    pub lines: &'a [u8],
    /// Bytes of one of them.
    pub line_size: u32,
}

fn call(command: bpf_cmd, attributes: &bpf_attr) -> io::Result<i32> {
    // SAFETY: the attributes are a whole `union bpf_attr` of this command's member; the callers keep what its
    // addresses point to alive until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, attributes, size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(result).unwrap_or(0)) }
}

fn open(command: bpf_cmd, attributes: &bpf_attr) -> io::Result<OwnedFd> {
    let descriptor = call(command, attributes)?;
    // SAFETY: these commands return a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn zeroed() -> bpf_attr {
    // SAFETY: every member of the union is made of integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

/// Makes a map.
///
/// # Errors
/// What the kernel says.
pub fn create_map(map: &NewMap) -> io::Result<OwnedFd> {
    let mut attributes = zeroed();
    // SAFETY: all bytes are initialised, and the member has no invalid values.
    let member = unsafe { &mut attributes.__bindgen_anon_1 };
    member.map_type = map.map_type;
    member.key_size = map.key_size;
    member.value_size = map.value_size;
    member.max_entries = map.max_entries;
    member.map_flags = map.flags;
    (member.btf_fd, member.btf_key_type_id, member.btf_value_type_id) = map.types;
    open(bpf_cmd::BPF_MAP_CREATE, &attributes)
}

/// Sets the only element of a map of constants and closes it to changes, so that the verifier knows the values.
///
/// # Errors
/// What the kernel says.
pub fn freeze(map: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    update(map, &0_u32.to_ne_bytes(), value)?;
    let mut attributes = zeroed();
    attributes.__bindgen_anon_2.map_fd = map.as_raw_fd().cast_unsigned();
    call(bpf_cmd::BPF_MAP_FREEZE, &attributes).map(drop)
}

/// Sets an element of a map; key and value must be of its sizes.
///
/// # Errors
/// What the kernel says.
pub fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attributes = zeroed();
    // SAFETY: as in `create_map`.
    let member = unsafe { &mut attributes.__bindgen_anon_2 };
    member.map_fd = map.as_raw_fd().cast_unsigned();
    member.key = address(key);
    member.__bindgen_anon_1.value = address(value);
    call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Attaches a program to a map of sockets.
///
/// # Errors
/// What the kernel says.
pub fn attach(program: BorrowedFd<'_>, map: BorrowedFd<'_>, attach_type: u32) -> io::Result<()> {
    let mut attributes = zeroed();
    // SAFETY: as in `create_map`.
    let member = unsafe { &mut attributes.__bindgen_anon_5 };
    member.__bindgen_anon_1.target_fd = map.as_raw_fd().cast_unsigned();
    member.attach_bpf_fd = program.as_raw_fd().cast_unsigned();
    member.attach_type = attach_type;
    call(bpf_cmd::BPF_PROG_ATTACH, &attributes).map(drop)
}

/// Loads an object's type information.
///
/// # Errors
/// What the kernel says.
pub fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = zeroed();
    // SAFETY: as in `create_map`.
    let member = unsafe { &mut attributes.__bindgen_anon_7 };
    member.btf = address(types);
    member.btf_size = u32::try_from(types.len()).map_err(io::Error::other)?;
    open(bpf_cmd::BPF_BTF_LOAD, &attributes)
}

/// Loads a program, with the verifier's log of this level (bit 0: every step, bit 2: totals) in `log`.
///
/// # Errors
/// What the kernel says; the log says more.
pub fn load_program(program: &NewProgram<'_>, log_level: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = zeroed();
    let count = |length: usize| u32::try_from(length).map_err(io::Error::other);
    // SAFETY: as in `create_map`.
    let member = unsafe { &mut attributes.__bindgen_anon_3 };
    member.prog_type = program.program_type;
    member.expected_attach_type = program.attach_type;
    member.attach_btf_id = program.attach_to;
    member.insns = address(program.instructions);
    member.insn_cnt = count(program.instructions.len())?;
    member.license = program.license.as_ptr() as u64;
    member.prog_btf_fd = program.types.map_or(0, |types| types.as_raw_fd().cast_unsigned());
    if program.function_size > 0 {
        member.func_info = address(program.functions);
        member.func_info_rec_size = program.function_size;
        member.func_info_cnt = count(program.functions.len())? / program.function_size;
    }
    if program.line_size > 0 {
        member.line_info = address(program.lines);
        member.line_info_rec_size = program.line_size;
        member.line_info_cnt = count(program.lines.len())? / program.line_size;
    }
    // A level without room for a log is refused, and so is room without a level.
    if log_level > 0 {
        member.log_level = log_level;
        member.log_buf = log.as_mut_ptr() as u64;
        member.log_size = count(log.len())?;
    }
    open(bpf_cmd::BPF_PROG_LOAD, &attributes)
}
