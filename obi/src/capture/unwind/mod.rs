//! How to leave each function of a file, for the kernel side: it walks the stacks of programs without frame pointers.
//!
//! In: an ELF file. Out: [`Table`]s for the kernel's map `unwind_chunk`. Refuses to know who maps the file.

pub mod table;

pub use table::{Row, Table};
