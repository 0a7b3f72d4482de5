//! What makes one series of `db.client.operation.duration`: service, what was asked, whom, and with what error.
//!
//! In: a span of a call of a database. Out: its [`DatabaseKey`] and, for a new series, owned [`DatabaseLabels`].
//! Refuses to know counts and limits.

use std::sync::{Arc, LazyLock};

use super::series::{Dimensions, MAX_LABEL_BYTES, OTHER, shorten};
use super::table::LabelSet;
use crate::span::{Database, Detail, Service, Span};

/// Systems that distinguish calls when all else is folded, each with an error or not.
pub(super) const SYSTEMS: usize = 2;

/// Labels of one series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseLabels {
    /// `service.name` and `service.namespace`.
    pub service: Arc<Service>,
    /// `db.system.name`.
    pub system: &'static str,
    /// `db.operation.name`.
    pub operation: Arc<str>,
    /// `db.query.summary`.
    pub summary: Arc<str>,
    /// `db.collection.name`.
    pub collection: Arc<str>,
    /// `db.namespace`.
    pub namespace: Arc<str>,
    /// `db.response.status_code`; empty without an error.
    pub code: &'static str,
    /// `error.type`; empty when no error.
    pub error_type: &'static str,
    /// `server.address`.
    pub server_address: Arc<str>,
    /// `server.port`, 0 when unknown.
    pub server_port: u16,
    /// This series stands for all that found no room (`otel.metric.overflow`).
    pub overflow: bool,
}

/// Identity of a series, borrowed from a span or from [`DatabaseLabels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DatabaseKey<'a> {
    service: u32,
    system: &'static str,
    operation: &'a str,
    summary: &'a str,
    collection: &'a str,
    namespace: &'a str,
    code: &'static str,
    error_type: &'static str,
    server_address: &'a str,
    server_port: u16,
    overflow: bool,
}

impl DatabaseKey<'_> {
    fn to_labels(self, service: &Arc<Service>) -> DatabaseLabels {
        DatabaseLabels {
            service: Arc::clone(service),
            system: self.system,
            operation: Arc::from(self.operation),
            summary: Arc::from(self.summary),
            collection: Arc::from(self.collection),
            namespace: Arc::from(self.namespace),
            code: self.code,
            error_type: self.error_type,
            server_address: Arc::from(self.server_address),
            server_port: self.server_port,
            overflow: self.overflow,
        }
    }
}

impl LabelSet for DatabaseLabels {
    type Key<'a> = DatabaseKey<'a>;

    fn key(&self) -> DatabaseKey<'_> {
        DatabaseKey {
            service: self.service.id,
            system: self.system,
            operation: &self.operation,
            summary: &self.summary,
            collection: &self.collection,
            namespace: &self.namespace,
            code: self.code,
            error_type: self.error_type,
            server_address: &self.server_address,
            server_port: self.server_port,
            overflow: self.overflow,
        }
    }

    #[inline]
    fn is(&self, key: DatabaseKey<'_>) -> bool {
        self.key() == key
    }
}

/// Only spans of databases are counted by these labels: `Registry::record` looks at what a span is first.
fn database_of(span: &Span) -> &Database {
    static NONE: LazyLock<Database> = LazyLock::new(Database::default);
    match &span.detail {
        Detail::Database(database) => database,
        _ => &NONE,
    }
}

impl Dimensions for DatabaseLabels {
    #[inline]
    fn key_of(span: &Span) -> DatabaseKey<'_> {
        let database = database_of(span);
        DatabaseKey {
            service: span.service.id,
            system: database.system,
            operation: &database.operation,
            summary: &database.summary,
            collection: &database.collection,
            namespace: &database.namespace,
            code: database.code,
            error_type: span.error_type,
            server_address: &span.server.address,
            server_port: span.server.port,
            overflow: false,
        }
    }

    fn fits(span: &Span) -> bool {
        let key = Self::key_of(span);
        [key.operation, key.summary, key.collection, key.namespace, key.server_address]
            .iter()
            .all(|text| text.len() <= MAX_LABEL_BYTES)
    }

    fn labels_of(span: &Span) -> Self {
        Self::key_of(span).to_labels(&span.service)
    }

    /// The system and whether it is an error stay.
    fn overflow_key_of(span: &Span, service: &Service) -> DatabaseKey<'static> {
        let DatabaseKey { system, error_type, .. } = Self::key_of(span);
        DatabaseKey {
            service: service.id,
            system,
            operation: OTHER,
            summary: "",
            collection: "",
            namespace: "",
            code: "",
            error_type: if error_type.is_empty() { "" } else { OTHER },
            server_address: OTHER,
            server_port: 0,
            overflow: true,
        }
    }

    fn overflow_labels_of(span: &Span, service: &Arc<Service>) -> Self {
        Self::overflow_key_of(span, service).to_labels(service)
    }

    fn describe(span: &Span) -> String {
        let database = database_of(span);
        format!("client {} {} {}", database.system, shorten(&database.name), database.code)
    }

    fn service(&self) -> &Arc<Service> {
        &self.service
    }

    fn is_overflow(&self) -> bool {
        self.overflow
    }
}
