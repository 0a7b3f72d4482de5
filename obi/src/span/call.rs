//! Methods of remote procedure calls: few names for what clients may call anything, and which of them stream.
//!
//! In: calls. Out: `rpc.method`, and whether it is known to stream. Both are learned per service and side. Refuses to
//! know statuses beyond "success" and "no such method".
//!
//! A method is what was called, as far as the server has it: what is `UNIMPLEMENTED` is `_OTHER`, so that a client
//! cannot make series by inventing methods. Where a server refuses what it does not have with another status, half of
//! the room is kept for methods that have succeeded.
//!
//! A call streams when more than one message went one way, or when it succeeded without a message that a plain call
//! must have. One such call marks its method for good. A plain call that fails may have no response, or be refused
//! before its request came: that shows nothing.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::sync::Arc;

use super::grpc::Code;
use super::method::OTHER;
use super::{Service, SpanKind};
use crate::protocol::Rpc;

/// Methods of one service and side; those beyond are `_OTHER`.
const METHODS: usize = 1_000;
/// Of them, those that have never succeeded.
const UNPROVEN: usize = METHODS / 2;
/// Methods of all services.
const ALL_METHODS: usize = 32_768;
/// A longer name is `_OTHER`.
const MAX_BYTES: usize = 240;

/// A call, as far as its method is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Who serves or calls.
    pub service: &'a Service,
    /// Which of the two.
    pub side: SpanKind,
    /// Path of the request.
    pub path: &'a str,
    /// How it ended, if that is known.
    pub status: Option<Code>,
    /// The rest.
    pub rpc: Rpc<'a>,
}

/// The methods of all services. One owner; allocates only for what is new.
#[derive(Debug)]
pub struct Calls {
    services: HashMap<(u32, SpanKind), Methods, RandomState>,
    n_methods: usize,
    other: Arc<str>,
}

#[derive(Debug, Default)]
struct Methods {
    known: HashMap<Arc<str>, Method, RandomState>,
    n_unproven: usize,
}

#[derive(Debug, Default)]
struct Method {
    has_succeeded: bool,
    streams: bool,
}

impl Default for Calls {
    fn default() -> Self {
        Self { services: HashMap::default(), n_methods: 0, other: OTHER.into() }
    }
}

impl Calls {
    /// Points `method` at `rpc.method` of a call. Whether the method is known to stream, by this call or an earlier
    /// one.
    pub fn assign(&mut self, call: Call<'_>, method: &mut Arc<str>) -> bool {
        let found = method_of(call.path)
            .filter(|_| call.status != Some(Code::UNIMPLEMENTED))
            .and_then(|name| self.learn(name, &call));
        let (name, streams) = found.unwrap_or_else(|| (Arc::clone(&self.other), streams(&call)));
        if !Arc::ptr_eq(method, &name) {
            *method = name;
        }
        streams
    }

    /// Forgets the methods of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        for side in [SpanKind::Server, SpanKind::Client] {
            let gone = self.services.remove(&(service, side));
            self.n_methods -= gone.map_or(0, |gone| gone.known.len());
        }
    }

    /// `None` when there is no room for a new one.
    fn learn(&mut self, name: &str, call: &Call<'_>) -> Option<(Arc<str>, bool)> {
        let methods = self.services.entry((call.service.id, call.side)).or_default();
        let succeeded = call.status == Some(Code::OK);
        if !methods.known.contains_key(name) {
            let has_room = methods.known.len() < METHODS && self.n_methods < ALL_METHODS;
            if !has_room || !(succeeded || methods.n_unproven < UNPROVEN) {
                return None;
            }
            methods.known.insert(name.into(), Method::default());
            methods.n_unproven += 1;
            self.n_methods += 1;
        }
        let (name, method) = methods.known.get_key_value_mut(name)?;
        if succeeded && !method.has_succeeded {
            method.has_succeeded = true;
            methods.n_unproven -= 1;
        }
        method.streams |= streams(call);
        Some((Arc::clone(name), method.streams))
    }
}

/// Whether the call itself shows that its method streams.
fn streams(call: &Call<'_>) -> bool {
    let counts = [call.rpc.request_messages, call.rpc.response_messages];
    let has_many = counts.iter().any(|count| count.is_some_and(|count| count > 1));
    let succeeded_without = call.status == Some(Code::OK) && counts.contains(&Some(0));
    has_many || succeeded_without
}

/// `package.Service/Method` of `/package.Service/Method`; `None` where a path has not this form.
#[must_use]
pub fn method_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix('/')?;
    let (service, method) = name.rsplit_once('/')?;
    let is_sound = !service.is_empty()
        && !method.is_empty()
        && name.len() <= MAX_BYTES
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then_some(name)
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
