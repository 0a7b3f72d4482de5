//! Stack samples to profiles: names, the spans they were taken in, selections, aggregates.
//!
//! In: [`crate::capture::stack::StackSample`]s with their places in files, finished spans. Out: [`Selection`]s of named
//! samples, from which exporters, the API and `obi profile` make OTLP, pprof and flame graphs.
//! Refuses to know formats, the kernel and how a stack was unwound.
//!
//! - [`sample`]: what a sample is here, and its frames; `name`: what these are called outside;
//! - [`symbol`]: what the code at an address is called.
#![forbid(unsafe_code)]

mod name;
pub mod sample;
pub mod symbol;

pub use sample::{Fidelity, Frame, Line, Link, Mapping, Origin, Runtime, Sample, Selection, Stack, Symbol};
