//! Programs whose stacks are known: made at random, compiled here, and what a profile of them must show.
//!
//! ```text
//! seed ─▶ tree: functions, call paths ─▶ source (C, C++, Rust, Go) ─▶ build ─▶ a program that spins along its paths
//!                                │                                              └▶ CPU time by path, by its own clock
//!                                └──────────▶ verdict ◀── samples (profile of the agent)
//! ```
//!
//! In: a seeded generator and a [`Variant`]. Out: a compiled program with its call paths, and a judgement over samples
//! of it. Refuses to know who takes the samples.
//!
//! - [`tree`]: which functions call which, and in which file they lie.
//! - [`c`], [`rust`], [`go`]: the same tree in four languages.
//! - [`build`]: compilers and their flags; [`run`]: what the program says of itself.
//! - [`server`]: one whose routes have hot functions of their own.
//! - [`python`], [`java`], [`node`]: towers of functions that never mix, with a judgement of their own: [`tower`].
//! - [`sampled`]: samples of one service, from an OTLP profile; [`verdict`]: samples against the tree.

mod build;
mod c;
mod go;
pub mod java;
pub mod node;
pub mod python;
mod run;
mod rust;
pub mod sampled;
pub mod server;
pub mod tower;
mod tree;
mod verdict;

pub use self::build::{Built, build};
pub use self::run::{Running, Truth};
pub use self::tree::Tree;
pub use self::verdict::{Verdict, judge};

/// Language of the executable; libraries beside a program in Rust are in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// C, by `cc`.
    C,
    /// C++, by `c++`.
    Cpp,
    /// Rust, by `rustc`.
    Rust,
    /// Go, by `go build`.
    Go,
}

/// One kind of program.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// Of the executable.
    pub language: Language,
    /// For its compiler, as in a shell.
    pub flags: &'static [&'static str],
    /// Spread over the executable and two shared libraries.
    pub has_libraries: bool,
    /// There are names of inlined functions: what spins in a leaf is one, and has to be shown as one.
    pub has_inlined: bool,
    /// A timer interrupts it again and again, and the handler spins, too.
    pub has_handler: bool,
    /// Threads that spin; 1: the main thread. More of them move from CPU to CPU all the time.
    pub threads: usize,
    /// CPU seconds that all threads together spin for while it counts.
    pub budget: u32,
}

impl Default for Variant {
    /// Plain C in one file.
    fn default() -> Self {
        Self {
            language: Language::C,
            flags: &["-O2", "-fomit-frame-pointer"],
            has_libraries: false,
            has_inlined: false,
            has_handler: false,
            threads: 1,
            budget: 3,
        }
    }
}
