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

/// How much of the kernel an object asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// What kernels from 5.17 on have.
    Modern,
    /// What kernels from 5.10 on have.
    Portable,
}

/// The object of a hook set, a relocatable BPF ELF; `None` when the set has none of this flavour.
pub fn object(set: &str, flavour: Flavour) -> Option<&'static [u8]> {
    static SOCKET: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o")));
    match (set, flavour) {
        ("socket", Flavour::Modern) => Some(&SOCKET.0),
        _ => None,
    }
}
