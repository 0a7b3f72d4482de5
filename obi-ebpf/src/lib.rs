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

/// Which kernels an object is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// Loops and functions as the verifier knows them since 5.17.
    Modern,
    /// What every supported kernel takes, 5.10 on: functions are verified at each call, long walks go
    /// on by tail call (program `walk`, to be put into the map `walks`).
    Portable,
}

macro_rules! objects {
    ($($set:literal $flavour:ident $file:literal),* $(,)?) => {
        /// Every embedded object: hook set, flavour, and the relocatable BPF ELF bytes.
        pub static OBJECTS: &[(&str, Flavour, &[u8])] = &[$(($set, Flavour::$flavour, {
            static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $file)));
            &OBJECT.0
        })),*];
    };
}

objects! {
    "socket" Modern "socket.bpf.o",
    "fentry" Modern "fentry.bpf.o",
    "kprobe" Modern "kprobe.bpf.o",
    "syscall" Modern "syscall.bpf.o",
    "fentry" Portable "fentry.portable.bpf.o",
    "kprobe" Portable "kprobe.portable.bpf.o",
    "syscall" Portable "syscall.portable.bpf.o",
    "profile" Modern "profile.bpf.o",
    "profile" Portable "profile.portable.bpf.o",
    "faults" Modern "faults.bpf.o",
    "faults" Portable "faults.portable.bpf.o",
    "waits" Modern "waits.bpf.o",
}

/// The object of a hook set (`socket`, `fentry`, `kprobe`, `syscall`), or of a sampler of stacks that any of them may
/// have beside it (`profile`; with that one `faults` and `waits`), as a relocatable BPF ELF file. `None` when the set
/// does not come in that flavour.
#[must_use]
pub fn object(set: &str, flavour: Flavour) -> Option<&'static [u8]> {
    OBJECTS.iter().find(|(name, of, _)| *name == set && *of == flavour).map(|(_, _, bytes)| *bytes)
}
