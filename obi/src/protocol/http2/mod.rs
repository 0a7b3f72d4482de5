//! placeholder
pub mod hpack;
