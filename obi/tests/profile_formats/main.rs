//! Selections of samples through both profile formats and back, judged by rules, by foreign tools and by receivers.

mod export;
mod otlp;
mod pprof;
mod selection;
mod tool;
