//! Spans that programs make themselves and send us.
//!
//! In: what a received span says of itself. Out: the same, to be shown beside captured spans; what a captured span
//! takes over from the span of an SDK for the same event ([`Twin`]). Refuses to know how they came.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
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
    pub attributes: SentAttributes,
}

/// Value of an attribute. What is no text, number or truth value is kept as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// A whole number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
}

impl Display for Value<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::Int(number) => number.fmt(formatter),
            Self::Bool(yes) => yes.fmt(formatter),
        }
    }
}

/// Attributes in the order that they came in. All texts are one: a span has some ten attributes, and memory for each
/// of their texts alone would cost more than reading the span.
#[derive(Debug, Clone, Default)]
pub struct SentAttributes {
    /// Name after name, with the value behind it where that is a text.
    texts: String,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its name ends.
    name: u32,
    value: Kept,
}

/// A value, or where it ends.
#[derive(Debug, Clone, Copy)]
enum Kept {
    Text(u32),
    Int(i64),
    Bool(bool),
}

impl SentAttributes {
    /// None yet; so many, with so many bytes of texts, take no further memory.
    #[must_use]
    pub fn with_capacity(n_attributes: usize, n_bytes: usize) -> Self {
        Self { texts: String::with_capacity(n_bytes), entries: Vec::with_capacity(n_attributes) }
    }

    /// Adds one, unless all texts together would be longer than 4 GiB.
    pub fn push(&mut self, name: &str, value: &Value<'_>) {
        let text = if let Value::Text(text) = value { &**text } else { "" };
        let end_of_name = self.texts.len() + name.len();
        let (Ok(name_end), Ok(text_end)) =
            (u32::try_from(end_of_name), u32::try_from(end_of_name + text.len()))
        else {
            return;
        };
        self.texts.push_str(name);
        self.texts.push_str(text);
        let value = match value {
            Value::Text(_) => Kept::Text(text_end),
            Value::Int(number) => Kept::Int(*number),
            Value::Bool(yes) => Kept::Bool(*yes),
        };
        self.entries.push(Entry { name: name_end, value });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, AttributeValue<'_>)> {
        let mut begin = 0;
        self.entries.iter().map(move |entry| {
            let name = &self.texts[begin..entry.name as usize];
            begin = entry.name as usize;
            let value = match entry.value {
                Kept::Text(end) => {
                    let text = &self.texts[begin..end as usize];
                    begin = end as usize;
                    AttributeValue::Str(text)
                }
                Kept::Int(number) => AttributeValue::Int(number),
                Kept::Bool(yes) => AttributeValue::Bool(yes),
            };
            (name, value)
        })
    }

    fn held_bytes(&self) -> usize {
        self.texts.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}

impl Sdk {
    /// Memory that it holds, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.message.len() + self.attributes.held_bytes()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value<'static>> {
        prop_oneof![
            "\\PC{0,12}".prop_map(|text| Value::Text(text.into())),
            any::<i64>().prop_map(Value::Int),
            any::<bool>().prop_map(Value::Bool),
        ]
    }

    proptest! {
        #[test]
        fn attributes_come_out_as_they_went_in(pairs in proptest::collection::vec(("\\PC{0,8}", value()), 0..9)) {
            let mut attributes = SentAttributes::default();
            pairs.iter().for_each(|(name, value)| attributes.push(name, value));
            let expected: Vec<_> = pairs.iter().map(|(name, it)| (name.clone(), it.to_string())).collect();
            let found: Vec<_> = attributes.iter().map(|(name, it)| (name.to_owned(), it.to_string())).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(attributes.len(), pairs.len());
        }
    }
}
