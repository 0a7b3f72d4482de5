//! The crate as its users see it: texts, simulated time, random streams, and the rules by promtool's judgement.

mod alerts;
mod budgeting;
mod eight_rows;
mod openslo;
mod random;
mod rows;
mod rules;
