//! An event as indicators see it.
//!
//! In: borrowed text and numbers. Out: the same, by name. Refuses to own or keep anything.

/// Side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The service answered a request.
    Server,
    /// The service made a request.
    Client,
    /// Anything else; no selector asks for it.
    Other,
}

/// How an exchange ended, as its protocol says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status<'a> {
    /// It ended without one.
    #[default]
    None,
    /// It had one that is not known. Where the verdict depends on it, the event does not count.
    Unknown,
    /// HTTP.
    Code(u16),
    /// RPC.
    Rpc {
        /// For example `UNAVAILABLE`.
        name: &'a str,
        /// For example 14. Only a selector that is exactly this number means it: in globs, `2*` means HTTP.
        number: u16,
    },
}

/// Look-up of attributes by name.
pub trait Attributes {
    /// Value of the attribute as text; `None` when the event has none of this name.
    fn get(&self, name: &str) -> Option<&str>;
}

/// No attributes.
impl Attributes for () {
    fn get(&self, _: &str) -> Option<&str> {
        None
    }
}

/// A list of names and values.
impl Attributes for &[(&str, &str)] {
    fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// One event; empty text where something is unknown.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Name of the service.
    pub service: &'a str,
    /// Side of the exchange.
    pub kind: Kind,
    /// Route template.
    pub route: &'a str,
    /// Request method.
    pub method: &'a str,
    /// How it ended.
    pub status: Status<'a>,
    /// The other side.
    pub peer: &'a str,
    /// Nanoseconds from the arrival of the request to the last byte of the response.
    pub duration_ns: u64,
    /// Nanoseconds of it that the request waited to be read.
    pub queue_wait_ns: u64,
    /// Whether the semantic conventions call it an error.
    pub error: bool,
    /// Whether it streams.
    pub streaming: bool,
    /// Everything else.
    pub attributes: &'a dyn Attributes,
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Subject")
            .field("service", &self.service)
            .field("kind", &self.kind)
            .field("route", &self.route)
            .field("method", &self.method)
            .field("status", &self.status)
            .field("peer", &self.peer)
            .field("duration_ns", &self.duration_ns)
            .field("queue_wait_ns", &self.queue_wait_ns)
            .field("error", &self.error)
            .field("streaming", &self.streaming)
            .finish_non_exhaustive()
    }
}
