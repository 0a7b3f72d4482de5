//! Profiles as Pyroscope's `/ingest` takes them: pprof by service, with labels in the query.
//!
//! In: a [`Selection`]. Out: [`Push`]es. Refuses to know connections.
//!
//! Samples of a span carry its ids as the labels `span_id` and `trace_id`, which Pyroscope keeps beside the stacks; so
//! a span with `pyroscope.profile.id` opens its own flame graph in Grafana.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::pprof;
use crate::profile::{Origin, Sample, SampleType, Selection};
use crate::span::AttributeValue;

/// Attributes of resources that become labels: few values each, and those that people choose by.
const LABELS: [&str; 7] = [
    "service.namespace",
    "service.version",
    "deployment.environment.name",
    "host.name",
    "k8s.namespace.name",
    "k8s.pod.name",
    "container.id",
];
/// Who took the samples: names of functions are left as they are for this one.
const SPY: &str = "ebpfspy";
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Push {
    /// `name`, `from`, `until` and so on, encoded.
    pub(super) query: String,
    /// pprof, compressed.
    pub(super) body: Vec<u8>,
}

/// One request for each set of labels and kind of samples.
pub(super) fn pushes(selection: &Selection) -> Vec<Push> {
    let mut groups: BTreeMap<(String, SampleType), Vec<Sample>> = BTreeMap::new();
    for sample in selection.samples.iter().filter(|sample| sample.value > 0) {
        let group = (name(&sample.origin), selection.type_of(sample.kind));
        groups.entry(group).or_default().push(sample.clone());
    }
    let Selection { start, end, .. } = *selection;
    let push = |((name, of), samples): ((String, SampleType), Vec<Sample>)| {
        let body = pprof::merged(&Selection { start, end, types: vec![of], samples, lost: 0 });
        // Seconds: what all its versions read alike; the profile itself has the nanoseconds.
        let (from, until) = (start / 1_000_000_000, end.div_ceil(1_000_000_000));
        let rate = 1_000_000_000_u64.checked_div(of.period).unwrap_or(100);
        let name = utf8_percent_encode(&name, UNRESERVED);
        let query =
            format!("name={name}&from={from}&until={until}&spyName={SPY}&sampleRate={rate}&format=pprof");
        Push { query, body }
    };
    groups.into_iter().map(push).collect()
}

/// `service{label=value,…}`, in characters that its parser takes.
fn name(origin: &Origin) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-./_".contains(c);
    let service: String = origin.service.name.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    let service = if service.is_empty() { "unknown" } else { &service };
    let mut labels = Vec::new();
    origin.attributes(|key, value| {
        if let (true, AttributeValue::Str(value)) = (LABELS.contains(&key), value) {
            let value: String = value
                .chars()
                .map(|c| if matches!(c, ',' | '}' | '{') || c.is_control() { '_' } else { c })
                .collect();
            labels.push(format!("{}={}", key.replace('.', "_"), value.trim()));
        }
    });
    format!("{service}{{{}}}", labels.join(","))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::{Instance, Resource, Service};

    #[test]
    fn names_are_such_as_the_parser_takes() {
        let check = |service: &str, attributes: &[(&str, &str)], expected: &str| {
            let mut resource = Resource::default();
            attributes.iter().for_each(|(key, value)| resource.text((*key).to_owned(), value));
            let service =
                Service { name: service.to_owned(), namespace: "shop".to_owned(), ..Service::default() };
            let instance = Arc::new(Instance { attributes: resource });
            let origin = Origin { service: Arc::new(service), instance, ..Origin::default() };
            assert_eq!(name(&origin), expected);
        };
        check("cart", &[], "cart{service_namespace=shop}");
        check("", &[("process.pid", "7")], "unknown{service_namespace=shop}");
        check("a b{c}", &[("host.name", " x,y}=z ")], "a_b_c_{service_namespace=shop,host_name=x_y_=z}");
    }
}
