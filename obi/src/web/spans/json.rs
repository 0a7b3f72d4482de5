//! Spans as JSON. Nanosecond times are numbers; exchange numbers may exceed 2^53 and are strings.

use std::fmt::Display;

use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};

use crate::export::summary::profile_path;
use crate::red::seconds;
use crate::span::{AttributeValue, Service, Span, Status};
use crate::span_store::{Page, Stored};

/// `{"spans": […], "next": …, "evicted": …, "stored": …}`.
pub(super) struct PageJson<'a> {
    pub(super) page: &'a Page,
    /// Each span says where its profile is.
    pub(super) has_profiles: bool,
}

impl Serialize for PageJson<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        struct Spans<'a>(&'a [Stored], bool);
        impl Serialize for Spans<'_> {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                let has_profiles = self.1;
                out.collect_seq(self.0.iter().map(|stored| SpanJson { stored, has_profiles, place: None }))
            }
        }
        let Self { page, has_profiles } = *self;
        let mut out = out.serialize_map(Some(4))?;
        out.serialize_entry("spans", &Spans(&page.spans, has_profiles))?;
        out.serialize_entry("next", &page.next)?;
        out.serialize_entry("evicted", &page.evicted)?;
        out.serialize_entry("stored", &page.stored)?;
        out.end()
    }
}

/// One span.
pub(in crate::web) struct SpanJson<'a> {
    pub(in crate::web) stored: &'a Stored,
    /// It says where its profile is.
    pub(in crate::web) has_profiles: bool,
    /// In a tree: how deep it is, and whether its parent is not held.
    pub(in crate::web) place: Option<(usize, bool)>,
}

impl Serialize for SpanJson<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Stored { sequence, span } = self.stored;
        let mut out = out.serialize_map(None)?;
        out.serialize_entry("sequence", sequence)?;
        if let Some((depth, is_cut)) = self.place {
            out.serialize_entry("depth", &depth)?;
            out.serialize_entry("is_cut", &is_cut)?;
        }
        out.serialize_entry("trace_id", &hex(&span.trace_id))?;
        out.serialize_entry("span_id", &hex(&span.span_id))?;
        out.serialize_entry("parent_span_id", &span.parent_span_id.map(|id| hex(&id)))?;
        out.serialize_entry("trace_state", &span.trace_state)?;
        out.serialize_entry("name", &Text(span.name()))?;
        let kind = span.kind.name();
        out.serialize_entry("kind", kind)?;
        out.serialize_entry("start_unix_nano", &span.start)?;
        out.serialize_entry("end_unix_nano", &span.end)?;
        out.serialize_entry("duration_seconds", &seconds(span.end.saturating_sub(span.start)))?;
        out.serialize_entry("queue_wait_seconds", &seconds(span.queue_wait))?;
        let status = match span.status() {
            Status::Unset => "unset",
            Status::Error => "error",
        };
        out.serialize_entry("status", status)?;
        if !span.status_message().is_empty() {
            out.serialize_entry("status_message", span.status_message())?;
        }
        out.serialize_entry("service", &ServiceJson(&span.service))?;
        out.serialize_entry("pid", &span.pid)?;
        out.serialize_entry("exchange", &Text(span.exchange))?;
        if self.has_profiles {
            out.serialize_entry("profile", &profile_path(&span.span_id))?;
        }
        out.serialize_entry("resource", &Resource(span))?;
        out.serialize_entry("attributes", &Attributes(span))?;
        out.end()
    }
}

struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&self.0)
    }
}

/// As hexadecimal digits.
pub(in crate::web) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// Its name and namespace.
pub(in crate::web) struct ServiceJson<'a>(pub(in crate::web) &'a Service);

impl Serialize for ServiceJson<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map([("name", &self.0.name), ("namespace", &self.0.namespace)])
    }
}

struct Resource<'a>(&'a Span);

impl Serialize for Resource<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(self.0.resource().map(|(name, value)| (name, Value(value))))
    }
}

struct Value<'a>(AttributeValue<'a>);

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            AttributeValue::Str(text) => out.serialize_str(text),
            AttributeValue::Text(text) => out.collect_str(&text),
            AttributeValue::Int(number) => out.serialize_i64(number),
            AttributeValue::Bool(yes) => out.serialize_bool(yes),
        }
    }
}

struct Attributes<'a>(&'a Span);

impl Serialize for Attributes<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut out = out.serialize_map(None)?;
        let mut result = Ok(());
        self.0.attributes(|name, value| {
            if result.is_ok() {
                result = out.serialize_entry(name, &Value(value));
            }
        });
        result.map_err(S::Error::custom)?;
        out.end()
    }
}
