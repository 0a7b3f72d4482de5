//! Attributes of a resource: what is known of a service, or of one of its processes, beside its name.
//!
//! In: names and values, each name once, the first one wins. Out: the same in order. Refuses to know where they come
//! from and how exporters write them.

use std::borrow::Cow;

use super::AttributeValue;

/// Resource attributes in the order in which they were added.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Resource(Vec<(Cow<'static, str>, Value)>);

/// Value of a resource attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Value {
    Text(Box<str>),
    Int(i64),
}

impl Resource {
    /// Adds a text; an empty one, or one whose name is taken, is passed over.
    pub fn text(&mut self, name: impl Into<Cow<'static, str>>, value: &str) {
        if !value.is_empty() {
            self.add(name.into(), Value::Text(value.into()));
        }
    }

    /// Adds a number, unless its name is taken.
    pub fn int(&mut self, name: impl Into<Cow<'static, str>>, value: i64) {
        self.add(name.into(), Value::Int(value));
    }

    /// The same attributes with another number in the place of one.
    #[must_use]
    pub fn with_int(&self, name: &str, value: i64) -> Self {
        let mut changed = self.clone();
        if let Some((_, place)) = changed.0.iter_mut().find(|(present, _)| present == name) {
            *place = Value::Int(value);
        }
        changed
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, AttributeValue<'_>)> {
        self.0.iter().map(|(name, value)| {
            let value = match value {
                Value::Text(text) => AttributeValue::Str(text),
                Value::Int(number) => AttributeValue::Int(*number),
            };
            (&**name, value)
        })
    }

    /// The text of one attribute; `None` when it is absent or a number.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(present, _)| present == name).and_then(|(_, value)| match value {
            Value::Text(text) => Some(&**text),
            Value::Int(_) => None,
        })
    }

    /// Memory of all attributes, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let one = |(name, value): &(Cow<'static, str>, Value)| {
            let name = if let Cow::Owned(name) = name { name.capacity() } else { 0 };
            let text = if let Value::Text(text) = value { text.len() } else { 0 };
            name + text
        };
        self.0.capacity() * size_of::<(Cow<'static, str>, Value)>() + self.0.iter().map(one).sum::<usize>()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, name: Cow<'static, str>, value: Value) {
        if self.0.iter().all(|(present, _)| *present != name) {
            self.0.push((name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_order() {
        let mut resource = Resource::default();
        resource.text("b", "1");
        resource.text("a", "");
        resource.int("a", 2);
        resource.text("b", "3");
        resource.text("c".to_owned(), "4");
        let shown = |resource: &Resource| {
            resource.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(shown(&resource), ["b=1", "a=2", "c=4"]);
        assert_eq!(shown(&resource.with_int("a", 7)), ["b=1", "a=7", "c=4"]);
        assert_eq!((resource.get("b"), resource.get("a"), resource.get("d")), (Some("1"), None, None));
        assert_eq!((resource.len(), resource.is_empty()), (3, false));
    }
}
