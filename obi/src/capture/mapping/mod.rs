//! Who maps what: from an address of a sample to a file and an address in it.
//!
//! In: samples' processes and addresses, the kernel's side-band of mappings, `/proc`. Out: [`ExecutableFile`]s.
//! Refuses to know names and how a stack is walked.
//!
//! - [`file`]: a file with code, kept open so that it can be named when its name or its process has gone.
//! - [`image`]: what an ELF file says of itself: segments, build ids.

pub mod backing;
pub mod file;
pub mod image;
pub mod kernel;
pub mod listing;
pub mod open;
pub mod process;
pub mod reader;
pub mod resolver;
pub mod rings;
pub mod shelf;
pub mod side_band;
pub mod space;
pub mod survey;
pub mod tables;

pub use file::ExecutableFile;
