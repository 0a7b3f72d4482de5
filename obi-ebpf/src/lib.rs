//! The wire contract between the kernel programs and the agent.
//!
//! In: `src/bpf/event.h`, the only definition of every type that crosses the boundary, from which
//! `build.rs` generates this module's types (sizes and offsets are asserted at compile time), and the
//! compiled kernel objects. Out: those types and the embedded objects. Knows nothing of HTTP.

#[allow(
    missing_docs,
    non_camel_case_types,
    clippy::undocumented_unsafe_blocks,
    clippy::allow_attributes_without_reason,
    reason = "generated from event.h, which carries the documentation"
)]
mod generated {
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    include!(concat!(env!("OUT_DIR"), "/event.rs"));
}

pub use generated::*;

/// A kernel object, aligned as the ELF parser requires.
#[repr(C, align(32))]
#[derive(Debug)]
struct Aligned<T: ?Sized>(T);

/// The `socket` hook set: capture at `sock_send_length`, `sock_recv_length`, `inet_sock_set_state` and
/// the process-life tracepoints, as a relocatable BPF ELF object.
pub fn socket_object() -> &'static [u8] {
    static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o")));
    &OBJECT.0
}
