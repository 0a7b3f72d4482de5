//! Stack samples to profiles: names, the spans they were taken in, selections, aggregates.
//!
//! In: [`crate::capture::stack::StackSample`]s with their places in files, finished spans. Out: [`Selection`]s of named
//! samples, from which exporters, the API and `obi profile` make OTLP, pprof and flame graphs.
//! Refuses to know formats, the kernel and how a stack was unwound.
//!
//! - [`sample`]: what a sample is here, and its frames. `name`: what these are called outside. [`sample_type`]: what was
//!   measured, the table of kinds.
//! - [`store`]: those of the last minutes, without names; whose they are; [`join`]: the spans they were taken in.
//! - [`choose`]: which of them a caller wants; [`rank`]: which requests of a route are slow.
//! - [`naming`]: chosen samples get names. [`ask`]: how callers ask for them. [`view`]: numbers about all this.
//! - [`waits`]: what waits are called.
//! - [`symbol`]: what the code at an address is called.
#![forbid(unsafe_code)]

pub mod ask;
pub mod choose;
mod continued;
pub mod join;
mod kept;
mod name;
pub mod naming;
mod origins;
pub mod rank;
pub mod sample;
pub mod sample_type;
pub mod store;
pub mod symbol;
pub mod unnamed;
pub mod view;
pub mod waits;

pub use sample::{Fidelity, Frame, Line, Link, Mapping, Origin, Runtime, Sample, Selection, Stack, Symbol};
pub use sample_type::{SampleKind, SampleType};
