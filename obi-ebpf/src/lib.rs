//! The wire contract between the kernel programs and the agent.
//!
//! In: `src/bpf/event.h`, the only definition of every type that crosses the boundary, from which
//! `build.rs` generates this module's types (sizes and offsets are asserted at compile time), and the
//! compiled kernel objects. Out: those types and the embedded objects. Knows nothing of HTTP.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

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

/// Which kernels an object is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// Loops and functions as the verifier knows them since 5.17.
    Modern,
    /// What every supported kernel takes, 5.10 on: functions are verified at each call, long walks go
    /// on by tail call (program `walk`, to be put into the map `walks`).
    Portable,
}

/// A compiled kernel object. It stands compressed in the agent, which loads one or two of twelve.
#[derive(Debug)]
pub struct KernelObject {
    /// The hook set (`socket`, `fentry`, `kprobe`, `syscall`), or a sampler of stacks that any of them may have beside
    /// it (`profile`; with that one `faults` and `waits`).
    pub set: &'static str,
    /// Which kernels it is for.
    pub flavour: Flavour,
    /// As zlib's stream (RFC 1950).
    compressed: &'static [u8],
}

impl KernelObject {
    /// The relocatable BPF ELF file.
    ///
    /// # Panics
    /// Never: `build.rs` has written what is read.
    #[must_use]
    pub fn elf(&self) -> Vec<u8> {
        let mut elf = Vec::new();
        let read = ZlibDecoder::new(self.compressed).read_to_end(&mut elf);
        read.expect("build.rs has compressed it, and its checksum is checked");
        elf
    }
}

macro_rules! objects {
    ($($set:literal $flavour:ident $file:literal),* $(,)?) => {
        /// Every embedded object.
        pub static OBJECTS: &[KernelObject] = &[$(KernelObject {
            set: $set,
            flavour: Flavour::$flavour,
            compressed: include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".zlib")),
        }),*];
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

/// The object of a set, as a relocatable BPF ELF file. `None` when the set does not come in that flavour.
#[must_use]
pub fn object(set: &str, flavour: Flavour) -> Option<Vec<u8>> {
    OBJECTS.iter().find(|object| object.set == set && object.flavour == flavour).map(KernelObject::elf)
}
