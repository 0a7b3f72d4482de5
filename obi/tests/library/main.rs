//! The library as its users see it, against what others say of the same: peers, tools, compilers, the kernel.
//!
//! - [`header_tables`], [`http2_peer`]: HTTP/2, by an encoder and a peer of others; [`wire`]: records as the kernel's.
//! - [`mappings`], [`stack_walk`], [`symbol_names`], [`unwind_rows`]: stacks of real programs; [`sampled`]: how they
//!   are taken.
//! - [`profile_formats`]: profiles, by others' readers. [`route_learning`]: routes, by what made the traffic.
//! - [`tls_probes`]: probes in programs of several compilers.

mod header_tables;
mod http2_peer;
mod mappings;
mod profile_formats;
mod route_learning;
mod sampled;
mod stack_walk;
mod symbol_names;
mod tls_probes;
mod unwind_rows;
mod wire;
