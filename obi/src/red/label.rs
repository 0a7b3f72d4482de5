//! What distinguishes series: each label named once, for every format.
//!
//! In: labels as they are kept. Out: names by the semantic conventions and by Prometheus's rules, and values. Refuses
//! to know formats. The labels of the service itself are not among them: where they stand depends on the format.

use super::{
    ActiveLabels, CallLabels, CpuTime, DatabaseLabels, Labels, Source, SpanLabels, SpentTime, StatusLabel,
};
use crate::counter::Counter;
use crate::protocol::WAIT_REASON_NAMES;
use crate::span::spent::BY_CALLS;
use crate::span::{SpanKind, Status};

/// The name of a label.
#[derive(Debug, PartialEq, Eq)]
pub struct Label {
    /// As an attribute: `http.route`.
    pub attribute: &'static str,
    /// As a label of Prometheus: `http_route`.
    pub prometheus: &'static str,
}

/// A label's value. An empty text stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelValue<'a> {
    /// A text.
    Text(&'a str),
    /// A port; 0 stands for none.
    Port(u16),
    /// A status, or its class.
    Status(StatusLabel),
    /// Only there when it holds.
    True,
}

/// The text with every dot as an underscore: OpenTelemetry's rule for names in Prometheus.
pub(super) const fn underscored<const N: usize>(name: &str) -> [u8; N] {
    let (from, mut to, mut at) = (name.as_bytes(), [0; N], 0);
    while at < N {
        to[at] = if from[at] == b'.' { b'_' } else { from[at] };
        at += 1;
    }
    to
}

/// A name with dots in Prometheus's form, made when this is compiled.
macro_rules! prometheus_name {
    ($name:expr) => {{
        const NAME: &str = $name;
        const BYTES: [u8; NAME.len()] = $crate::red::label::underscored(NAME);
        match std::str::from_utf8(&BYTES) {
            Ok(name) => name,
            Err(_) => panic!("an underscore is a character"),
        }
    }};
}
pub(super) use prometheus_name;

macro_rules! labels {
    ($($(#[$doc:meta])* $constant:ident = $attribute:literal;)*) => {$(
        $(#[$doc])*
        pub static $constant: Label =
            Label { attribute: $attribute, prometheus: prometheus_name!($attribute) };
    )*};
}

labels! {
    /// Request method.
    METHOD = "http.request.method";
    /// Templated path.
    ROUTE = "http.route";
    /// Status of the response.
    STATUS = "http.response.status_code";
    /// What kind of error, if any.
    ERROR_TYPE = "error.type";
    /// `http` or `https`.
    SCHEME = "url.scheme";
    /// Version of HTTP.
    VERSION = "network.protocol.version";
    /// Whom a client asked.
    SERVER_ADDRESS = "server.address";
    /// At which port.
    SERVER_PORT = "server.port";
    /// `grpc`.
    RPC_SYSTEM = "rpc.system.name";
    /// Method called.
    RPC_METHOD = "rpc.method";
    /// Status of the call.
    RPC_STATUS = "rpc.response.status_code";
    /// Kind of database.
    DB_SYSTEM = "db.system.name";
    /// What it was asked to do.
    DB_OPERATION = "db.operation.name";
    /// Operations and targets of a statement.
    DB_SUMMARY = "db.query.summary";
    /// Table or the like.
    DB_COLLECTION = "db.collection.name";
    /// Database of that name.
    DB_NAMESPACE = "db.namespace";
    /// Code of the error, if any.
    DB_STATUS = "db.response.status_code";
    /// Name of the span.
    SPAN_NAME = "span.name";
    /// Kind of the span.
    SPAN_KIND = "span.kind";
    /// Status of the span.
    SPAN_STATUS = "status.code";
    /// Name of the node that calls.
    EDGE_CLIENT = "client";
    /// Its namespace.
    EDGE_CLIENT_NAMESPACE = "client.service.namespace";
    /// Name of the node that is called.
    EDGE_SERVER = "server";
    /// Its namespace.
    EDGE_SERVER_NAMESPACE = "server.service.namespace";
    /// What kind of edge it is.
    CONNECTION_TYPE = "connection.type";
    /// How CPU time is known: `booked` or `sampled`.
    CPU_SOURCE = "obi.cpu.source";
    /// What a thread waits for.
    WAIT_REASON = "reason";
    /// The series stands for all that found no room.
    OVERFLOW = "otel.metric.overflow";
}

/// Takes one label.
pub type Visit<'v> = dyn FnMut(&'static Label, LabelValue<'_>) + 'v;

fn overflow(holds: bool, visit: &mut Visit<'_>) {
    if holds {
        visit(&OVERFLOW, LabelValue::True);
    }
}

fn server(address: &str, port: u16, visit: &mut Visit<'_>) {
    visit(&SERVER_ADDRESS, LabelValue::Text(address));
    visit(&SERVER_PORT, LabelValue::Port(port));
}

impl Labels {
    /// Every label that the kind has.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&METHOD, LabelValue::Text(self.method));
        match self.kind {
            SpanKind::Server => visit(&ROUTE, LabelValue::Text(&self.route)),
            SpanKind::Client | SpanKind::Internal => server(&self.server_address, self.server_port, visit),
        }
        visit(&STATUS, LabelValue::Status(self.status));
        visit(&ERROR_TYPE, LabelValue::Text(self.error_type));
        visit(&SCHEME, LabelValue::Text(self.scheme));
        visit(&VERSION, LabelValue::Text(self.version));
        overflow(self.overflow, visit);
    }
}

impl CallLabels {
    /// Every label.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&RPC_SYSTEM, LabelValue::Text(self.system));
        visit(&RPC_METHOD, LabelValue::Text(&self.method));
        visit(&RPC_STATUS, LabelValue::Text(self.status));
        visit(&ERROR_TYPE, LabelValue::Text(self.error_type));
        overflow(self.overflow, visit);
    }
}

impl DatabaseLabels {
    /// Every label.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&DB_SYSTEM, LabelValue::Text(self.system));
        visit(&DB_OPERATION, LabelValue::Text(&self.operation));
        visit(&DB_SUMMARY, LabelValue::Text(&self.summary));
        visit(&DB_COLLECTION, LabelValue::Text(&self.collection));
        visit(&DB_NAMESPACE, LabelValue::Text(&self.namespace));
        visit(&DB_STATUS, LabelValue::Text(self.code));
        visit(&ERROR_TYPE, LabelValue::Text(self.error_type));
        server(&self.server_address, self.server_port, visit);
        overflow(self.overflow, visit);
    }
}

impl SpanLabels {
    /// Every label.
    pub fn each(&self, visit: &mut Visit<'_>) {
        let kind = match self.kind {
            SpanKind::Server => "SPAN_KIND_SERVER",
            SpanKind::Client | SpanKind::Internal => "SPAN_KIND_CLIENT",
        };
        let status = match self.status {
            Status::Unset => "STATUS_CODE_UNSET",
            Status::Error => "STATUS_CODE_ERROR",
        };
        visit(&SPAN_NAME, LabelValue::Text(&self.name));
        visit(&SPAN_KIND, LabelValue::Text(kind));
        visit(&SPAN_STATUS, LabelValue::Text(status));
        overflow(self.overflow, visit);
    }
}

impl ActiveLabels {
    /// Every label that the kind has.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&METHOD, LabelValue::Text(self.method));
        if self.kind == SpanKind::Client {
            server(&self.server_address, self.server_port, visit);
        }
        visit(&SCHEME, LabelValue::Text(self.scheme));
    }
}

impl CpuTime {
    /// Its label.
    pub fn each(&self, visit: &mut Visit<'_>) {
        visit(&ROUTE, LabelValue::Text(&self.route));
    }
}

impl SpentTime {
    /// The parts that a family shows, each with the label that it has beside the route.
    pub fn parts(
        &self,
        source: Source,
    ) -> impl Iterator<Item = (Option<(&'static Label, &'static str)>, Counter)> + '_ {
        let one = match source {
            Source::CpuTime => Some((Some((&CPU_SOURCE, BOOKED)), self.cpu)).filter(|_| self.n_known > 0),
            Source::Runqueue => Some((None, self.runqueue)).filter(|_| self.n_known > 0),
            Source::Elsewhere => Some((None, self.elsewhere)),
            _ => None,
        };
        let by_thread = WAIT_REASON_NAMES.into_iter().zip(self.blocked);
        let by_reason = by_thread.chain([(BY_CALLS, self.downstream)]);
        let by_reason = by_reason.filter(move |(_, part)| source == Source::Blocked && part.value > 0);
        one.into_iter().chain(by_reason.map(|(reason, part)| (Some((&WAIT_REASON, reason)), part)))
    }

    /// Its labels, the part's own among them.
    pub fn each(&self, own: Option<(&'static Label, &'static str)>, visit: &mut Visit<'_>) {
        visit(&ROUTE, LabelValue::Text(&self.route));
        if let Some((label, value)) = own {
            visit(label, LabelValue::Text(value));
        }
    }
}

/// `obi.cpu.source` of time that the kernel has booked.
const BOOKED: &str = "booked";
/// And of time that was sampled.
pub const SAMPLED: &str = "sampled";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_each_other() {
        let check = |label: &Label, attribute: &str, prometheus: &str| {
            assert_eq!((label.attribute, label.prometheus), (attribute, prometheus));
        };
        check(&STATUS, "http.response.status_code", "http_response_status_code");
        check(&OVERFLOW, "otel.metric.overflow", "otel_metric_overflow");
    }
}
