//! `OTEL_RESOURCE_ATTRIBUTES` to attributes: `key=value,key=value`, values percent-encoded.
//!
//! In: the text of the variable. Out: the attributes that describe a service. Those of a single instance
//! (`service.instance.id`, pods, hosts) are left out: a [`super::Service`] is shared by all its processes.

/// Attributes that are kept, in the order of output; static, because spans share them.
const KEPT: [&str; 12] = [
    "service.version",
    "deployment.environment.name",
    "deployment.environment",
    "k8s.cluster.name",
    "k8s.namespace.name",
    "k8s.deployment.name",
    "k8s.statefulset.name",
    "k8s.daemonset.name",
    "k8s.cronjob.name",
    "k8s.job.name",
    "cloud.region",
    "cloud.provider",
];

/// The parsed text.
#[derive(Debug, Default)]
pub(super) struct Resource(Vec<(String, String)>);

impl Resource {
    /// The value of a key, empty when absent.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(present, _)| present == key).map_or("", |(_, value)| value)
    }

    /// The attributes that describe the service beyond name and namespace.
    pub(super) fn kept(&self) -> crate::span::Resource {
        let mut kept = crate::span::Resource::default();
        KEPT.iter().for_each(|key| kept.text(*key, &super::clean(self.get(key))));
        kept
    }
}

/// Most attributes looked at.
const ATTRIBUTES_MAX: usize = 128;

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
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = |digit: Option<&u8>| digit.and_then(|digit| char::from(*digit).to_digit(16));
        match (first, hex(after.first()), hex(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits fit a byte"));
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
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
            parse(&text).kept();
        }
    }
}
