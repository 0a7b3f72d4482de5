//! A request's dictionary.
//!
//! In: stacks, attributes and links of samples. Out: indices, and at the end the dictionary. Refuses to know samples.

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::profiles::v1development as otlp;

use super::{BUILD_ID_GNU, BUILD_ID_GO, BUILD_ID_HTLHASH, FIDELITY, FRAME_TYPE, IS_RETURN};
use crate::export::table::{Interned, Location, Mark, Tables};
use crate::profile::sample_type::ValueName;
use crate::profile::{Link, Mapping, Stack};

/// An attribute; its key is an index of a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Attribute {
    key: u32,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum Value {
    #[default]
    None,
    Text(String),
    Int(i64),
    Bool(bool),
}

/// The tables of a request, while it is made.
#[derive(Debug, Default)]
pub(super) struct Dictionary<'a> {
    tables: Tables<'a>,
    texts: Interned<String>,
    attributes: Interned<Attribute>,
    links: Interned<Option<([u8; 16], [u8; 8])>>,
}

/// An index as messages have it.
pub(super) fn index(index: u32) -> i32 {
    i32::try_from(index).expect("a table of 2^31 entries does not fit into a request")
}

impl<'a> Dictionary<'a> {
    pub(super) fn stack(&mut self, stack: &'a Stack) -> u32 {
        self.tables.stack(stack)
    }

    pub(super) fn text(&mut self, text: &str) -> i32 {
        index(self.texts.borrowed(text))
    }

    pub(super) fn attribute(&mut self, key: &str, value: Value) -> i32 {
        let key = self.texts.borrowed(key);
        index(self.attributes.insert(Attribute { key, value }))
    }

    pub(super) fn link(&mut self, link: Option<&Link>) -> i32 {
        index(self.links.insert(link.map(|link| (link.trace_id, link.span_id))))
    }

    pub(super) fn value_type(&mut self, (kind, unit): ValueName) -> otlp::ValueType {
        otlp::ValueType { type_strindex: self.text(kind), unit_strindex: self.text(unit) }
    }

    /// The finished tables.
    pub(super) fn finish(mut self) -> otlp::ProfilesDictionary {
        // Each of these adds texts and attributes, so those two come last.
        let tables = std::mem::take(&mut self.tables);
        let mapping_table = tables.mappings.entries().iter().map(|mapping| self.mapping(*mapping)).collect();
        let function_table = tables
            .functions
            .entries()
            .iter()
            .map(|function| otlp::Function {
                name_strindex: self.text(&function.name),
                system_name_strindex: self.text(function.system_name),
                filename_strindex: self.text(function.file),
                start_line: function.start_line.into(),
            })
            .collect();
        let mut location_table = vec![otlp::Location::default()];
        for location in &tables.locations.entries()[1..] {
            location_table.push(self.location(location));
        }
        let stack_table = tables
            .stacks
            .entries()
            .iter()
            .map(|stack| otlp::Stack { location_indices: stack.iter().copied().map(index).collect() })
            .collect();
        let links = self.links.into_entries().into_iter();
        let link_table = links.map(|link| link.map_or_else(otlp::Link::default, otlp_link)).collect();
        let attribute_table = self.attributes.into_entries().into_iter().map(key_value).collect();
        otlp::ProfilesDictionary {
            mapping_table,
            location_table,
            function_table,
            link_table,
            string_table: self.texts.into_entries(),
            attribute_table,
            stack_table,
        }
    }

    fn mapping(&mut self, mapping: Option<&Mapping>) -> otlp::Mapping {
        let Some(mapping) = mapping else { return otlp::Mapping::default() };
        let Mapping { start, end, offset, path, gnu_build_id, go_build_id, htlhash } = mapping;
        let ids = [(BUILD_ID_GNU, gnu_build_id), (BUILD_ID_GO, go_build_id), (BUILD_ID_HTLHASH, htlhash)];
        otlp::Mapping {
            memory_start: *start,
            memory_limit: *end,
            file_offset: *offset,
            filename_strindex: self.text(path),
            attribute_indices: ids
                .into_iter()
                .filter(|(_, id)| !id.is_empty())
                .map(|(key, id)| self.attribute(key, Value::Text(id.to_string())))
                .collect(),
        }
    }

    fn location(&mut self, location: &Location) -> otlp::Location {
        let Location { mapping, address, lines, mark: Mark { runtime, fidelity, is_return } } = location;
        let mut attribute_indices = vec![
            self.attribute(FRAME_TYPE, Value::Text(runtime.name().to_owned())),
            self.attribute(FIDELITY, Value::Text(fidelity.name().to_owned())),
        ];
        if *is_return {
            attribute_indices.push(self.attribute(IS_RETURN, Value::Bool(true)));
        }
        let lines = lines.iter().map(|line| otlp::Line {
            function_index: index(line.function),
            line: line.line.into(),
            column: line.column.into(),
        });
        otlp::Location {
            mapping_index: index(*mapping),
            address: *address,
            lines: lines.collect(),
            attribute_indices,
        }
    }
}

fn otlp_link((trace_id, span_id): ([u8; 16], [u8; 8])) -> otlp::Link {
    otlp::Link { trace_id: trace_id.to_vec(), span_id: span_id.to_vec() }
}

fn key_value(Attribute { key, value }: Attribute) -> otlp::KeyValueAndUnit {
    let value = match value {
        Value::None => None,
        Value::Text(text) => Some(Any::StringValue(text)),
        Value::Int(number) => Some(Any::IntValue(number)),
        Value::Bool(yes) => Some(Any::BoolValue(yes)),
    };
    let value = value.map(|value| AnyValue { value: Some(value) });
    otlp::KeyValueAndUnit { key_strindex: index(key), value, unit_strindex: 0 }
}
