//! Who maps what: from an address of a sample to a file and an address in it.
//!
//! In: samples' processes and addresses, the kernel's side-band of mappings, `/proc`. Out: [`resolver::MappedAddress`]s
//! in [`ExecutableFile`]s, and what the kernel side needs to walk stacks. Refuses to know names and how a stack is
//! walked.
//!
//! ```text
//! perf events ─▶ rings ─▶ process ─▶ space ─▶ resolver ─▶ places of samples, map `mappings`
//!                           │ wants    ▲ files   │ files of sampled processes
//!                           ▼          │         ▼
//!                         reader ──▶ backing   tables ─▶ map `unwind_chunk`
//! ```
//!
//! - [`survey`]: the start: the side-band is opened, every process looked at, while we still may;
//! - [`side_band`], [`rings`], [`listing`]: what the kernel says of mappings, as it happens and on demand;
//! - [`process`], [`space`]: who mapped what when; all in memory, on the thread of the samples;
//! - [`backing`], [`file`](mod@file), [`image`], [`file_cache`]: what is mapped, each file once, open while mapped;
//! - [`open`], [`reader`]: how it is opened, by a thread that may wait;
//! - [`tables`], [`kernel`]: tables of files in the kernel within a number of bytes, by a thread that may take long;
//! - [`interpreter`]: which processes have one, and what the walk knows of it;
//! - [`resolver`]: the owner of all that.

pub mod backing;
pub mod file;
pub mod file_cache;
pub mod image;
pub mod interpreter;
pub mod kernel;
pub mod listing;
pub mod open;
pub mod process;
pub mod reader;
pub mod resolver;
pub mod rings;
pub mod side_band;
pub mod space;
pub mod survey;
pub mod tables;
pub mod want;

pub use file::ExecutableFile;
pub use space::Mapping;
