//! Paths to routes: few names for many paths, learned from the paths themselves.
//!
//! In: a request's path, method, service and status. Out: its route, shared, and bounded in number per service. Works
//! on any text. Refuses to know files and clocks.
//!
//! A path that the configuration names has that route ([`crate::config::route`]). For the others, what looks like an
//! identifier by its shape is one ([`super::segment`]); what varies without looking so, such as names of people, is
//! found by counting ([`tree`]): one tree of segments per service and side, in which a place that has had too many
//! different words becomes a variable. A path is known by method: `GET /users/search` says nothing of `POST`.
//!
//! # What changes, and when
//!
//! Words count as literal until their place is known to vary, so a service with `/users/{name}` first shows some
//! `/users/alice`. When the place becomes a variable, later requests get the learned route; series and spans that exist
//! keep the names they have, their counters stand still, and nothing is ever moved from one counter to another. A place
//! that is a variable never becomes literal again, also not after a restart when the state is kept ([`state`]).
//! Which places become variables depends on the set of words seen and hardly on their order; what may differ is which
//! frequent words stay literal beside the variable, and how many routes were shown on the way.
//!
//! # Requests that no route answered
//!
//! 404 and 405 teach nothing: otherwise any client could make routes by asking for what does not exist. Such a request
//! has the route that its path fits, or none, as the conventions want it.
//!
//! # Bounds
//!
//! Distinct routes per service and side ([`Routes::new`]), beyond which a new one reads [`OVERFLOW`]; nodes per service
//! and of all services together. A service that needs more nodes gets variables where it has most words.

mod routes;
pub mod state;
mod tree;

pub use crate::config::route::Patterns;
pub use routes::{Request, Routes};

/// Route of every path of a service that has its full number of routes already. Also the end of a template
/// that is cut: `/a/b/*` stands for everything below `/a/b`.
pub const OVERFLOW: &str = "/*";

/// Segments of a template; what is deeper becomes `/*`.
const MAX_SEGMENTS: usize = 12;
/// Bytes of a template, about; what is longer is cut at a segment and becomes `/*`.
const MAX_BYTES: usize = 240;

#[cfg(test)]
mod tests;
