//! The chart takes the keys of the configuration and no others, and what they take and nothing else.
//!
//! In: the configuration's keys, the schema of the chart's values, its files. Out: failure when they disagree.
//! `UPDATE_REFERENCE=1 cargo test --workspace --test documents` writes the schema's part.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::configuration_reference;
use super::shape;

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/obi")
}

fn read(name: &str) -> String {
    let path = chart().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The keys of the configuration and no others, each with its type. What a value of it may be is checked by the agent.
fn sections() -> Value {
    let closed = |properties: Map<String, Value>| json!({"type": "object", "additionalProperties": false, "properties": properties});
    let mut sections: Map<String, Value> = Map::new();
    for (section, key, doc) in configuration_reference::keys() {
        let schema = shape::schema(&section, &key, &doc);
        let keys = sections.entry(section).or_insert_with(|| closed(Map::new()));
        keys["properties"][key] = schema;
    }
    closed(sections)
}

#[test]
fn the_schema_knows_every_key_of_the_configuration() {
    let mut schema: Value = serde_json::from_str(&read("values.schema.json")).expect("it is JSON");
    let expected = sections();
    if schema["properties"]["config"] == expected {
        return;
    }
    assert!(std::env::var_os("UPDATE_REFERENCE").is_some(), "stale: run `make reference`");
    schema["properties"]["config"] = expected;
    let text = serde_json::to_string_pretty(&schema).expect("it was JSON") + "\n";
    std::fs::write(chart().join("values.schema.json"), text).expect("it can be written");
}

#[test]
fn every_value_is_in_the_schema_and_every_property_has_a_value() {
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("it is JSON");
    let properties = schema["properties"].as_object().expect("there are some");
    let values = read("values.yaml");
    let mut keys: Vec<&str> = values
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_alphabetic()))
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    keys.sort_unstable();
    let mut known: Vec<&str> = properties.keys().map(String::as_str).collect();
    known.sort_unstable();
    assert_eq!(keys, known);
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = read("Chart.yaml");
    assert!(chart.contains(&format!("\nappVersion: \"{}\"\n", env!("CARGO_PKG_VERSION"))), "{chart}");
}

#[test]
fn nothing_is_privileged() {
    let daemon_set = read("templates/daemonset.yaml") + &read("values.yaml");
    for word in ["privileged: true", "hostNetwork: true", "allowPrivilegeEscalation: true", "SYS_ADMIN\""] {
        assert!(!daemon_set.contains(word), "{word}");
    }
    let roles = read("templates/rbac.yaml");
    let rules: Vec<&str> = roles
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("resources:") || line.starts_with("verbs:"))
        .collect();
    let reads = "verbs: [\"list\", \"watch\"]";
    let expected =
        ["pods", "services", "endpointslices"].map(|kind| [format!("resources: [\"{kind}\"]"), reads.into()]);
    assert_eq!(rules, expected.concat());
}
