//! `OTEL_RESOURCE_ATTRIBUTES` to attributes: `key=value,key=value`, values percent-encoded.
//!
//! In: the text of the variable. Out: attributes of the service, and those of the instance: what is particular to a
//! process, a container or a pod. Whatever the user says there is kept, but for what only we can know.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::span::Resource as Attributes;

/// Names that are no attributes here: they have a place of their own, or we know better.
const OURS: [&str; 4] = ["service.name", "service.namespace", "process.pid", "telemetry.sdk."];
/// Names, or beginnings of names, of what is particular to an instance.
const INSTANCE: [&str; 6] =
    ["service.instance.id", "process.", "container.", "k8s.pod.", "k8s.container.", "thread."];

/// The parsed text.
#[derive(Debug, Default)]
pub(super) struct Resource(Vec<(String, String)>);

impl Resource {
    /// The value of a key, empty when absent.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(present, _)| present == key).map_or("", |(_, value)| value)
    }

    /// The attributes that hold for the service, in the order of their names.
    pub(super) fn of_service(&self) -> Attributes {
        let mut attributes = Attributes::default();
        self.add(&mut attributes, |name| !is_any(name, &INSTANCE));
        attributes
    }

    /// Adds the attributes that hold for one instance.
    pub(super) fn of_instance(&self, attributes: &mut Attributes) {
        self.add(attributes, |name| is_any(name, &INSTANCE));
    }

    fn add(&self, attributes: &mut Attributes, wanted: impl Fn(&str) -> bool) {
        let mut pairs: Vec<_> =
            self.0.iter().filter(|(name, _)| wanted(name) && !is_any(name, &OURS)).collect();
        // Stable: of equal names the first counts. Sorted, so that the order in which they were written is no
        // difference.
        pairs.sort_by_key(|(name, _)| name);
        pairs.into_iter().for_each(|(name, value)| attributes.text(super::clean(name), &super::clean(value)));
    }
}

/// A name that ends with a dot stands for all that begin with it.
fn is_any(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| name == *known || known.ends_with('.') && name.starts_with(known))
}

/// Most attributes looked at.
const ATTRIBUTES_MAX: usize = 128;

/// Attributes that the source has taken apart already.
pub(super) fn of_pairs(pairs: &[(Box<str>, Box<str>)]) -> Resource {
    Resource(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
}

/// Parses the text. Pairs without a key or `=` are passed over.
pub(super) fn parse(text: &str) -> Resource {
    let pairs = text.split(',').take(ATTRIBUTES_MAX).filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), decode(value.trim())))
    });
    Resource(pairs.collect())
}

/// Percent-decoded; a text that does not decode stays as it is.
fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values() {
        fn check(text: &str, key: &str, expected: &str) {
            assert_eq!(parse(text).get(key), expected, "{text}");
        }
        check("service.name=shop,service.namespace=eu", "service.namespace", "eu");
        check(" service.name = shop ", "service.name", "shop");
        check("service.name=a%20b%2Cc", "service.name", "a b,c");
        check("service.name=100%", "service.name", "100%");
        check("service.name=%ff", "service.name", "%ff");
        check("service.name=a=b", "service.name", "a=b");
        check("nonsense,=x,,service.name=ok", "service.name", "ok");
        check("", "service.name", "");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<String>()) {
            parse(&text).of_service();
        }
    }
}
