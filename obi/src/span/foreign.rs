//! What a received span says of the request that it reports, where no exchange was captured that would say it better.
//!
//! In: attributes of an SDK's span, by the semantic conventions or by the names that they had before 1.23. Out: a
//! [`Request`], or none when the span is no end of an HTTP request, a remote procedure call or a database's call.
//! Refuses to know how spans come and whether they count.

use std::borrow::Cow;
use std::sync::Arc;

use super::assemble::{scheme, status_text};
use super::grpc::Code;
use super::{AttributeValue, Database, Detail, Http, Rpc, ServerEnd, Span, SpanKind};
use crate::protocol::Side;

/// `error.type` where the sender calls it an error and says no more (semantic conventions).
pub const OTHER_ERROR: &str = "_OTHER";
/// Longer texts are no labels.
const TEXT_BYTES: usize = 240;
/// Requests that one span may stand for at most.
const WEIGHT_MAX: f64 = 1_000.0;
/// Thresholds of sampling have 56 bits (OpenTelemetry, "TraceState: Probability Sampling").
const THRESHOLD_DIGITS: usize = 14;
const THRESHOLD_END: f64 = (1_u64 << 56) as f64;
/// `db.system.name` by all names that a system has had; what is not among them counts as `other_sql`.
const SYSTEMS: [(&str, &str); 12] = [
    ("postgresql", "postgresql"),
    ("mysql", "mysql"),
    ("mariadb", "mariadb"),
    ("redis", "redis"),
    ("mongodb", "mongodb"),
    ("microsoft.sql_server", "microsoft.sql_server"),
    ("mssql", "microsoft.sql_server"),
    ("oracle.db", "oracle.db"),
    ("oracle", "oracle.db"),
    ("elasticsearch", "elasticsearch"),
    ("cassandra", "cassandra"),
    ("memcached", "memcached"),
];
const OTHER_SYSTEM: &str = "other_sql";

/// A request by the words of the program that served or made it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method as sent: which of them are known is the assembler's word.
    pub method: String,
    /// The rest. Its HTTP method is empty.
    pub detail: Detail,
    /// Who was asked.
    pub server: ServerEnd,
    /// `error.type`, by the rule that holds for captured spans; else the sender's word.
    pub error_type: &'static str,
    /// Requests that it stands for: more than one where the sender samples by OpenTelemetry's rule.
    pub weight: f64,
}

/// Attributes, as they come.
#[derive(Debug, Default)]
pub struct Attributes<'a> {
    method: Option<&'a str>,
    status: Option<i64>,
    route: Option<&'a str>,
    template: Option<&'a str>,
    scheme: Option<&'a str>,
    url: Option<&'a str>,
    version: Option<&'a str>,
    address: Option<&'a str>,
    former_address: Option<&'a str>,
    port: Option<i64>,
    former_port: Option<i64>,
    rpc_system: Option<&'a str>,
    rpc_service: Option<&'a str>,
    rpc_method: Option<&'a str>,
    rpc_status: Option<Code>,
    db_system: Option<&'a str>,
    db_operation: Option<&'a str>,
    db_summary: Option<&'a str>,
    db_collection: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    /// Takes one of an end of this kind. The first of two names for the same wins, as does the newer name.
    pub fn take(&mut self, kind: SpanKind, name: &str, value: AttributeValue<'a>) {
        match value {
            AttributeValue::Str(text) => self.take_text(kind, name, text),
            AttributeValue::Int(number) => self.take_number(kind, name, number),
            AttributeValue::Text(_) | AttributeValue::Bool(_) => {}
        }
    }

    fn take_text(&mut self, kind: SpanKind, name: &str, text: &'a str) {
        let place = match name {
            "http.request.method" | "http.method" => &mut self.method,
            "http.route" => &mut self.route,
            "url.template" => &mut self.template,
            "url.scheme" | "http.scheme" => &mut self.scheme,
            "url.full" | "http.url" => &mut self.url,
            "network.protocol.version" | "net.protocol.version" | "http.flavor" => &mut self.version,
            "server.address" => &mut self.address,
            "net.peer.name" if kind == SpanKind::Client => &mut self.former_address,
            "net.host.name" if kind == SpanKind::Server => &mut self.former_address,
            "rpc.system.name" | "rpc.system" => &mut self.rpc_system,
            "rpc.service" => &mut self.rpc_service,
            "rpc.method" => &mut self.rpc_method,
            "db.system.name" | "db.system" => &mut self.db_system,
            "db.operation.name" | "db.operation" => &mut self.db_operation,
            "db.query.summary" => &mut self.db_summary,
            "db.collection.name" | "db.sql.table" => &mut self.db_collection,
            "rpc.response.status_code" => {
                self.rpc_status = self.rpc_status.or(Code::of_name(text));
                return;
            }
            _ => return,
        };
        *place = place.or(Some(text));
    }

    fn take_number(&mut self, kind: SpanKind, name: &str, number: i64) {
        let place = match name {
            "http.response.status_code" | "http.status_code" => &mut self.status,
            "server.port" => &mut self.port,
            "net.peer.port" if kind == SpanKind::Client => &mut self.former_port,
            "net.host.port" if kind == SpanKind::Server => &mut self.former_port,
            "rpc.grpc.status_code" => {
                let code = u32::try_from(number).map(Code::of_number).ok();
                self.rpc_status = self.rpc_status.or(code);
                return;
            }
            _ => return,
        };
        *place = place.or(Some(number));
    }

    /// What they say together; `None` when it is no request that is counted.
    #[must_use]
    pub fn request(&self, kind: SpanKind, is_error: bool, trace_state: &str) -> Option<Request> {
        let side = match kind {
            SpanKind::Server => Side::Server,
            SpanKind::Client => Side::Client,
            SpanKind::Internal => return None,
        };
        let (detail, error) = match (self.rpc_system, self.method, self.db_system) {
            (Some(_), ..) => self.call(side),
            (None, Some(_), _) => self.http(side),
            (None, None, Some(system)) if side == Side::Client => (self.database(system), ""),
            _ => return None,
        };
        let said = if is_error { OTHER_ERROR } else { "" };
        Some(Request {
            method: self.method.unwrap_or_default().to_owned(),
            detail,
            server: self.server(),
            error_type: if error.is_empty() { said } else { error },
            weight: weight(trace_state),
        })
    }

    fn http(&self, side: Side) -> (Detail, &'static str) {
        let http = self.carrier(side);
        let first_error = if side == Side::Server { 500 } else { 400 };
        let error = http.status.filter(|status| *status >= first_error).map_or("", status_text);
        (Detail::Http(http), error)
    }

    fn carrier(&self, side: Side) -> Http {
        let place = if side == Side::Server { self.route } else { self.template };
        let is_encrypted = |scheme: &str| match scheme {
            "https" => Some(true),
            "http" => Some(false),
            _ => None,
        };
        let of_url = || Some(self.url?.split_once("://")?.0);
        Http {
            route: shared(&label(place)),
            scheme: self.scheme.or_else(of_url).and_then(is_encrypted).map_or("", scheme),
            version: version(self.version),
            status: self.status.and_then(|it| u16::try_from(it).ok()).filter(|it| (100..1000).contains(it)),
            ..Http::default()
        }
    }

    /// `rpc.method` is `package.Service/Method`; before 1.39 the service stood by itself.
    fn call(&self, side: Side) -> (Detail, &'static str) {
        let method = match (self.rpc_service, self.rpc_method) {
            (Some(service), Some(method)) if !method.contains('/') => {
                shared(&label(Some(&format!("{service}/{method}"))))
            }
            (_, method) => shared(&label(method)),
        };
        let error = self.rpc_status.filter(|code| code.is_error(side)).map_or("", Code::name);
        let rpc = Rpc { http: self.carrier(side), method, status: self.rpc_status, ..Rpc::default() };
        (Detail::Rpc(rpc), error)
    }

    fn database(&self, system: &str) -> Detail {
        let known = SYSTEMS.iter().find(|(name, _)| *name == system);
        let system = known.map_or(OTHER_SYSTEM, |(_, system)| system);
        let text = |it: Option<&str>| label(it).into_owned();
        let (operation, summary) = (text(self.db_operation), text(self.db_summary));
        let name = [summary.as_str(), operation.as_str(), system].into_iter().find(|it| !it.is_empty());
        Detail::Database(Database {
            system,
            name: shared(&label(name)),
            operation,
            summary,
            collection: text(self.db_collection),
            ..Database::default()
        })
    }

    fn server(&self) -> ServerEnd {
        let address = label(self.address.or(self.former_address)).into_owned();
        let port = self.port.or(self.former_port).and_then(|port| u16::try_from(port).ok());
        ServerEnd { address, port: port.unwrap_or_default() }
    }
}

impl Request {
    /// The span as one that is counted: the place, the times and the names of `sent`, and what the request was. Its
    /// HTTP method is that of `known`.
    #[must_use]
    pub fn counted(self, sent: &Span, known: impl FnOnce(&str) -> &'static str) -> Span {
        let mut span = Span {
            trace_id: sent.trace_id,
            span_id: sent.span_id,
            parent_span_id: sent.parent_span_id,
            origin: sent.origin,
            trace_flags: sent.trace_flags,
            trace_state: sent.trace_state.clone(),
            kind: sent.kind,
            start: sent.start,
            end: sent.end,
            service: Arc::clone(&sent.service),
            instance: Arc::clone(&sent.instance),
            error_type: self.error_type,
            server: self.server,
            detail: self.detail,
            ..Span::blank()
        };
        if let Some(http) = span.detail.carrier_mut() {
            http.method = known(&self.method);
        }
        span
    }
}

/// A text that may be a label, on one line.
fn label(text: Option<&str>) -> Cow<'_, str> {
    let text = text.unwrap_or_default();
    let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "?").into(),
        false => text.into(),
    }
}

/// The same, shared; without one nothing is allocated.
fn shared(text: &str) -> Arc<str> {
    if text.is_empty() { Arc::default() } else { text.into() }
}

fn version(said: Option<&str>) -> &'static str {
    match said.unwrap_or_default() {
        "1.0" => "1.0",
        "1.1" => "1.1",
        "2" | "2.0" => "2",
        "3" | "3.0" => "3",
        _ => "",
    }
}

/// Requests that a span with this `tracestate` stands for: `ot=th:T` says that all but `2^56 - T` of `2^56` were left
/// out, where missing digits are zeros.
fn weight(trace_state: &str) -> f64 {
    let mut entries = trace_state.split(',').map(str::trim);
    let entry = entries.find_map(|entry| entry.strip_prefix("ot="));
    let digits = entry.and_then(|entry| entry.split(';').find_map(|part| part.strip_prefix("th:")));
    let digits = digits.unwrap_or_default();
    if digits.is_empty() || digits.len() > THRESHOLD_DIGITS {
        return 1.0;
    }
    let shift = 4 * (THRESHOLD_DIGITS - digits.len());
    match u64::from_str_radix(digits, 16) {
        Ok(threshold) => (THRESHOLD_END / (THRESHOLD_END - (threshold << shift) as f64)).min(WEIGHT_MAX),
        Err(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Pairs<'a> = &'a [(&'a str, AttributeValue<'a>)];

    fn request(kind: SpanKind, pairs: Pairs<'_>, is_error: bool) -> Option<Request> {
        let mut attributes = Attributes::default();
        for (name, value) in pairs {
            attributes.take(kind, name, *value);
        }
        attributes.request(kind, is_error, "")
    }

    /// `method verb place answer scheme version address:port error`
    fn written(request: &Request) -> String {
        let operation = request.detail.operation();
        let carrier = request.detail.carrier().cloned().unwrap_or_default();
        let answer = match &request.detail {
            Detail::Http(http) => http.status.map_or_else(String::new, |status| status.to_string()),
            Detail::Rpc(rpc) => rpc.status.map_or("", Code::name).to_owned(),
            _ => String::new(),
        };
        let ServerEnd { address, port } = &request.server;
        let (method, error) = (&request.method, request.error_type);
        format!(
            "{method}|{}|{}|{answer}|{}|{}|{address}:{port}|{error}",
            operation.verb, operation.place, carrier.scheme, carrier.version
        )
    }

    use AttributeValue::{Int, Str};
    use SpanKind::{Client, Internal, Server};

    #[test]
    fn names_of_the_conventions_and_former_ones() {
        let check = |kind, pairs: Pairs<'_>, is_error, expected: Option<&str>| {
            let found = request(kind, pairs, is_error);
            assert_eq!(found.as_ref().map(written).as_deref(), expected, "{pairs:?}");
        };
        let now: Pairs<'_> = &[
            ("http.request.method", Str("GET")),
            ("http.route", Str("/a/{b}")),
            ("http.response.status_code", Int(503)),
            ("url.scheme", Str("https")),
            ("network.protocol.version", Str("2")),
            ("server.address", Str("shop")),
            ("server.port", Int(443)),
        ];
        check(Server, now, true, Some("GET||/a/{b}|503|https|2|shop:443|503"));
        let before: Pairs<'_> = &[
            ("http.method", Str("POST")),
            ("http.status_code", Int(404)),
            ("http.url", Str("http://far:8080/x")),
            ("http.flavor", Str("1.1")),
            ("net.peer.name", Str("far")),
            ("net.host.name", Str("near")),
            ("net.peer.port", Int(8080)),
        ];
        check(Client, before, false, Some("POST|||404|http|1.1|far:8080|404"));
        // An error of the client's making, and one that only the application knows of.
        check(
            Server,
            &[("http.method", Str("GET")), ("http.status_code", Int(404))],
            false,
            Some("GET|||404|||:0|"),
        );
        check(Server, &[("http.method", Str("GET"))], true, Some("GET||||||:0|_OTHER"));
        let call: Pairs<'_> = &[
            ("rpc.system", Str("grpc")),
            ("rpc.service", Str("shop.Cart")),
            ("rpc.method", Str("Add")),
            ("rpc.grpc.status_code", Int(5)),
        ];
        check(Server, call, false, Some("|grpc|shop.Cart/Add|NOT_FOUND|||:0|"));
        check(Client, call, false, Some("|grpc|shop.Cart/Add|NOT_FOUND|||:0|NOT_FOUND"));
        let call: Pairs<'_> = &[
            ("rpc.system.name", Str("grpc")),
            ("rpc.method", Str("shop.Cart/Add")),
            ("rpc.response.status_code", Str("INTERNAL")),
        ];
        check(Server, call, false, Some("|grpc|shop.Cart/Add|INTERNAL|||:0|INTERNAL"));
        let query: Pairs<'_> = &[("db.system", Str("mssql")), ("db.operation", Str("SELECT"))];
        check(Client, query, false, Some("|microsoft.sql_server|SELECT||||:0|"));
        check(Client, &[("db.system", Str("new"))], true, Some("|other_sql|other_sql||||:0|_OTHER"));
        // No requests: work inside, a message, a database's own end.
        check(Internal, now, false, None);
        check(Client, &[("messaging.system", Str("kafka"))], false, None);
        check(Server, query, false, None);
    }

    #[test]
    fn weights() {
        let check = |state: &str, expected: f64| assert!((weight(state) - expected).abs() < 1e-9, "{state}");
        check("", 1.0);
        check("ot=th:0", 1.0);
        check("ot=th:8", 2.0);
        check("vendor=x, ot=rv:abc;th:c", 4.0);
        check("ot=th:e666", 65_536.0 / (65_536.0 - 58_982.0));
        check("ot=th:fffffffffffff", 1_000.0);
        check("ot=th:ffffffffffffff", 1_000.0);
        // None that is valid: the span counts as one.
        for state in ["ot=th:", "ot=th:xyz", "ot=th:8000000000000000", "ot=rv:1", "other=th:8"] {
            check(state, 1.0);
        }
    }

    proptest! {
        #[test]
        fn any_state_is_a_weight(state in ".{0,40}", digits in "[0-9a-f]{0,16}") {
            for state in [state, format!("ot=th:{digits}")] {
                prop_assert!((1.0..=WEIGHT_MAX).contains(&weight(&state)));
            }
        }

        #[test]
        fn texts_are_labels(text in "\\PC{0,400}\\n?") {
            let label = label(Some(&text));
            prop_assert!(label.len() <= TEXT_BYTES && !label.contains('\n'));
        }
    }
}
