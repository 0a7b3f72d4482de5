//! Which kinds of values a key of the configuration takes, as a schema in JSON: found by asking the loader.
//!
//! In: a section, a key, its comment. Out: its words, where it takes only some, else the types that it takes. Refuses
//! to know ranges and what stands inside of lists and maps: the agent checks these.

use serde_json::{Value, json};

use super::configuration_reference::{code_behind, load_key};

/// Values of each type, in YAML, of which a key takes at least one if it takes the type at all.
const TRIED: [(&str, &[&str]); 7] = [
    ("null", &["null"]),
    ("boolean", &["true", "false"]),
    ("integer", &["0", "1", "16", "99", "1000", "4096", "65536", "1048576", "67108864"]),
    ("number", &["0.5"]),
    (
        "string",
        &[
            r#""""#,
            r#""a""#,
            r#""true""#,
            r#""on""#,
            r#""1""#,
            r#""1000""#,
            r#""10s""#,
            r#""1m""#,
            r#""1h""#,
            r#""64KiB""#,
            r#""64 MiB""#,
            r#""/a""#,
            r#""127.0.0.1:1""#,
            r#""https://a.example""#,
            r#""k7Qw2mZx9Lr4Vt8Np3Hs""#,
        ],
    ),
    ("array", &["[]", "[a]", "[/a]", "[{}]"]),
    ("object", &["{}"]),
];

/// What a value is, by JSON Schema.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Words that the loader names when it refuses one, if it takes all of them.
fn words(section: &str, key: &str) -> Vec<String> {
    let refused = load_key(section, key, "\"no such word\"").err().unwrap_or_default();
    let Some((_, expected)) = refused.rsplit_once("expected ") else { return Vec::new() };
    let words: Vec<String> = expected.split([',', ' ']).map(str::to_owned).collect();
    let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty() && word != "or").collect();
    let takes_all = words.iter().all(|word| load_key(section, key, &format!("{word:?}")).is_ok());
    if words.len() > 1 && takes_all { words } else { Vec::new() }
}

/// The schema of one key.
pub(crate) fn schema(section: &str, key: &str, doc: &str) -> Value {
    let takes = |value: &str| load_key(section, key, value).is_ok();
    let words = words(section, key);
    if !words.is_empty() {
        // YAML takes `on` and `off` for truth values.
        let truths = [true, false].into_iter().filter(|truth| takes(&truth.to_string())).map(Value::Bool);
        return json!({"enum": words.into_iter().map(Value::String).chain(truths).collect::<Vec<_>>()});
    }
    let shown = ["Default:", "Example:"].into_iter().filter_map(|word| code_behind(doc, word));
    let shown: Vec<&str> =
        shown.map(|value| kind(&serde_saphyr::from_str::<Value>(value).expect("it is YAML"))).collect();
    let is_taken =
        |name: &str, values: &[&str]| shown.contains(&name) || values.iter().any(|value| takes(value));
    let mut types: Vec<&str> =
        TRIED.iter().filter(|(name, values)| is_taken(name, values)).map(|(name, _)| *name).collect();
    // The loader takes the values of a map without their names as well, which no document says.
    if types.contains(&"object") {
        types.retain(|name| *name != "array");
    }
    // Whole numbers are numbers.
    if types.contains(&"number") {
        types.retain(|name| *name != "integer");
    }
    assert!(!types.is_empty(), "{section}.{key} takes nothing");
    match types[..] {
        [one] => json!({"type": one}),
        _ => json!({"type": types}),
    }
}

#[test]
fn shapes_are_found() {
    let check = |section: &str, key: &str, expected: Value| {
        assert_eq!(schema(section, key, ""), expected, "{section}.{key}");
    };
    check("web", "spans", json!({"type": "integer"}));
    check("web", "open", json!({"type": "boolean"}));
    check("web", "span_bytes", json!({"type": ["integer", "string"]}));
    check("web", "hosts", json!({"type": "array"}));
    check("web", "listen", json!({"type": "string"}));
    check("protocol", "databases", json!({"type": "object"}));
    check("trace", "parents", json!({"enum": ["on", "certain", "off", true, false]}));
    check("capture", "hooks", json!({"enum": ["auto", "socket", "fentry", "kprobe", "syscall"]}));
}
