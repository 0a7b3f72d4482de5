//! The chart takes the keys of the configuration and no others.
//!
//! In: the configuration's defaults, the schema of the chart's values, its files. Out: failure when they disagree.
//! `UPDATE_REFERENCE=1 cargo test -p obi --test documents` writes the schema's part.

use std::path::{Path, PathBuf};

use obi::config::Config;
use serde_json::{Map, Value, json};

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/obi")
}

fn read(name: &str) -> String {
    let path = chart().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Of a value with named parts: those and no others. What a part may be is checked by the agent.
fn sections(config: &Value) -> Value {
    let keys = |section: &Value| -> Map<String, Value> {
        let keys = section.as_object().into_iter().flatten();
        keys.map(|(key, _)| (key.clone(), json!({}))).collect()
    };
    let closed = |properties: Map<String, Value>| json!({"type": "object", "additionalProperties": false, "properties": properties});
    let sections = config.as_object().expect("a configuration has sections").iter();
    closed(sections.map(|(name, section)| (name.clone(), closed(keys(section)))).collect())
}

#[test]
fn the_schema_knows_every_key_of_the_configuration() {
    let mut schema: Value = serde_json::from_str(&read("values.schema.json")).expect("it is JSON");
    let expected = sections(&serde_json::to_value(Config::default()).expect("it is plain values"));
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
