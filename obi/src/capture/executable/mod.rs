//! Executables and libraries as files: sections, small reads, Go's own tables.
//!
//! In: an ELF file, which anybody may have made. Out: where its sections and segments are ([`elf`]), bytes of it
//! through a few pages of memory ([`pages`]), names and places of functions that no `strip` takes away ([`go`]).
//! Refuses to know what they are wanted for: names of code in profiles, and places for probes.

pub mod elf;
pub mod go;
pub mod pages;
