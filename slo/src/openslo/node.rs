//! YAML as a tree that knows its lines.
//!
//! In: text. Out: nodes with line and column. Refuses more than the parser's budget of depth, aliases and size, and
//! keys that appear twice.

use std::fmt;

use super::syntax::SyntaxError;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// From 1; 0 when unknown.
    pub line: u32,
}

/// Nodes are equal when they say the same, wherever they stand.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, in decimal notation.
    Number(String),
    /// Any other scalar.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in order.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key as text.
    pub key: String,
    /// Line of the key.
    pub line: u32,
    /// What it is set to.
    pub value: Node,
}

/// As for nodes, places do not count.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

impl Node {
    /// The value under a key of a mapping.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Entries of a mapping; none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The text of a scalar: numbers and booleans as they are written.
    pub fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Bool(value) => Some(value.to_string()),
            Value::Number(text) | Value::Text(text) => Some(text.clone()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// `a list`, `the number 5`… for messages.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("{value}"),
            Value::Number(text) => format!("the number {text}"),
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// All documents of a text; empty ones are left out.
///
/// # Errors
/// Line and message of the first thing that is no YAML.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, SyntaxError> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| SyntaxError::of(&error))
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: u32::try_from(spanned.referenced.line()).unwrap_or(0), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    // The shortest decimal that is this number: what was written, up to 15 digits.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Node>()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let line = u32::try_from(key.referenced.line()).unwrap_or(0);
            entries.push(Entry { key: key.value, line, value: access.next_value()? });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_lines() {
        let documents = parse(
            "a: 0.999\nb:\n  - x\n  - y: 2022-01-01 12:00:00\n---\n# nothing\n---\nc: &x {d: 1m}\ne: *x\n",
        )
        .expect("valid YAML");
        assert_eq!(documents.len(), 2);
        let a = documents[0].get("a").expect("there is an a");
        assert_eq!((a.value.clone(), a.line), (Value::Number("0.999".to_owned()), 1));
        let Value::List(b) = &documents[0].get("b").expect("there is a b").value else { panic!("a list") };
        assert_eq!((b[0].line, b[1].line), (3, 4));
        let y = b[1].get("y").and_then(Node::scalar);
        assert_eq!(y.as_deref(), Some("2022-01-01 12:00:00"));
        let d = documents[1].get("e").and_then(|e| e.get("d")).and_then(Node::scalar);
        assert_eq!(d.as_deref(), Some("1m"));
    }

    #[test]
    fn what_is_no_yaml_is_reported_with_its_line() {
        let check = |text: &str, line: u32| {
            let error = parse(text).expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
        };
        check("a: 1\nb: [1, 2\n", 2);
        check("a: 1\na: 2\n", 2);
    }
}
