//! Selections of samples through both profile formats and back, judged by rules, by foreign tools and by receivers.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking, their helpers too")]

mod broken;
mod export;
mod otlp;
mod pprof;
mod selection;
mod tool;
