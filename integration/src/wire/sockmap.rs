//! Sockets in a socket map: the kernel replaces their functions for sending and receiving, as service meshes have it
//! do.
//!
//! In: connected TCP sockets. Out: the same, whose bytes pass a program that lets all of them through.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_map_type, bpf_prog_type};

use super::Stream;
use crate::kernel::system_call::{self, NewMap, NewProgram};

/// Connections in its life.
const MAX_SOCKETS: u32 = 4096;
const LICENSE: &CStr = c"GPL";

/// A map of sockets with its program.
#[derive(Debug)]
pub struct Sockmap {
    map: OwnedFd,
    _program: OwnedFd,
    next: AtomicU32,
}

impl Sockmap {
    /// Makes one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Self> {
        let map = system_call::create_map(&NewMap {
            map_type: bpf_map_type::BPF_MAP_TYPE_SOCKMAP as u32,
            key_size: 4,
            value_size: 4,
            max_entries: MAX_SOCKETS,
            ..NewMap::default()
        })?;
        // `return SK_PASS`.
        let instructions = [instruction(0xb7, 1), instruction(0x95, 0)];
        let program = NewProgram {
            program_type: bpf_prog_type::BPF_PROG_TYPE_SK_MSG as u32,
            attach_type: bpf_attach_type::BPF_SK_MSG_VERDICT as u32,
            attach_to: 0,
            instructions: &instructions,
            license: LICENSE,
            types: None,
            functions: &[],
            function_size: 0,
            lines: &[],
            line_size: 0,
        };
        let program = system_call::load_program(&program, 0, &mut [])?;
        system_call::attach(program.as_fd(), map.as_fd(), bpf_attach_type::BPF_SK_MSG_VERDICT as u32)?;
        Ok(Self { map, _program: program, next: AtomicU32::new(0) })
    }

    /// Puts a connection into it, where it stays until it is closed.
    ///
    /// # Errors
    /// What the kernel says; a unix socket does not fit everywhere.
    pub fn insert(&self, stream: &Stream) -> io::Result<()> {
        let key = self.next.fetch_add(1, Ordering::Relaxed) % MAX_SOCKETS;
        let socket = stream.as_fd().as_raw_fd().to_ne_bytes();
        system_call::update(self.map.as_fd(), &key.to_ne_bytes(), &socket)
    }
}

fn instruction(code: u8, immediate: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: immediate,
    }
}
