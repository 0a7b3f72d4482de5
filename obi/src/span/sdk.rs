//! Spans that programs make themselves and send us.
//!
//! In: what a received span says of itself. Out: the same, to be shown beside captured spans; what a captured span
//! takes over from the span of an SDK for the same event ([`Twin`]). Refuses to know how they came.

use std::sync::Arc;

use super::AttributeValue;

/// A span of an SDK.
#[derive(Debug, Clone, Default)]
pub struct Sdk {
    /// Its name, as sent.
    pub name: Arc<str>,
    /// What the application said of an error.
    pub message: Box<str>,
    /// Its attributes, as far as they are kept here.
    pub attributes: Vec<(Box<str>, Value)>,
}

/// Value of an attribute. What is no text, number or truth value is kept as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(Box<str>),
    /// A whole number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
}

impl Value {
    /// To be read.
    #[must_use]
    pub fn borrowed(&self) -> AttributeValue<'_> {
        match self {
            Self::Text(text) => AttributeValue::Str(text),
            Self::Int(number) => AttributeValue::Int(*number),
            Self::Bool(yes) => AttributeValue::Bool(*yes),
        }
    }
}

impl Sdk {
    /// Memory that it holds, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let value = |value: &Value| if let Value::Text(text) = value { text.len() } else { 0 };
        let attributes = self.attributes.iter().map(|(name, it)| name.len() + value(it));
        let table = self.attributes.capacity() * size_of::<(Box<str>, Value)>();
        size_of::<Self>() + self.name.len() + self.message.len() + table + attributes.sum::<usize>()
    }
}

/// The span of an SDK that is the same event as a captured one, which has taken over its id and its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twin {
    /// What the SDK calls it.
    pub name: Arc<str>,
    /// The id that the captured span had before.
    pub former_id: [u8; 8],
}
