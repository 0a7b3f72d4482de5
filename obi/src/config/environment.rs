//! Environment variables to keys: which variable sets which key, and how its text is read.
//!
//! In: the variables and the tree of defaults. Out: (key path, value, variable) triples. Variables that only look
//! like ours, such as those Kubernetes makes for a service named `obi`, are passed over.

use serde_json::Value;

use super::error::ConfigError;
use super::otlp_environment;

/// One key set by a variable.
#[derive(Debug)]
pub(super) struct Setting {
    /// Section and key.
    pub(super) path: [String; 2],
    /// Its value, not yet checked.
    pub(super) value: Value,
    /// Name of the variable.
    pub(super) variable: String,
}

/// OpenTelemetry's own variable for `trace.known_methods`.
const KNOWN_METHODS: &str = "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS";

/// The variable of a key: `web.listen` is `OBI_WEB_LISTEN`.
pub(super) fn variable(key: &str) -> String {
    format!("OBI_{}", key.replace('.', "_").to_uppercase())
}

/// The keys that the environment sets; later ones win.
pub(super) fn settings(
    defaults: &Value,
    variables: &[(String, String)],
) -> Result<Vec<Setting>, ConfigError> {
    let mut standard = otlp_environment::settings(variables)?;
    let mut own = Vec::new();
    for (name, text) in variables {
        if name == KNOWN_METHODS {
            let methods = text.split(',').map(|method| Value::from(method.trim())).collect();
            let path = ["trace", "known_methods"].map(str::to_owned);
            standard.push(Setting { path, value: Value::Array(methods), variable: name.clone() });
        } else if let Some(rest) = name.strip_prefix("OBI_")
            && !is_service_link(name, text)
            && let Some((section, keys)) = section_of(defaults, rest)
        {
            own.push(setting(section, keys, name.clone(), text.clone())?);
        }
    }
    standard.append(&mut own);
    Ok(standard)
}

/// The section whose name the variable continues with, and its keys.
fn section_of<'d>(defaults: &'d Value, rest: &str) -> Option<(&'d str, &'d serde_json::Map<String, Value>)> {
    defaults.as_object()?.iter().find_map(|(section, keys)| {
        let after = rest.strip_prefix(section.to_uppercase().as_str())?;
        after.starts_with('_').then_some((section.as_str(), keys.as_object()?))
    })
}

fn setting(
    section: &str,
    keys: &serde_json::Map<String, Value>,
    variable: String,
    text: String,
) -> Result<Setting, ConfigError> {
    let written = variable["OBI_".len() + section.len() + 1..].to_lowercase();
    let Some(default) = keys.get(&written) else {
        let names = keys.keys().map(|key| format!("OBI_{}_{}", section.to_uppercase(), key.to_uppercase()));
        return Err(ConfigError::UnknownKey {
            origin: format!("environment {variable}"),
            key: format!("{section}.{written}"),
            expected: one_of(section, names),
        });
    };
    // A text stays as it is; everything else is read as YAML, so that lists and numbers mean the same as in the file.
    let value = if default.is_string() {
        Value::String(text)
    } else {
        serde_saphyr::from_str(&text).unwrap_or(Value::String(text))
    };
    Ok(Setting { path: [section.to_owned(), written], value, variable })
}

/// Kubernetes gives every container `NAME_SERVICE_HOST`, `NAME_PORT=tcp://…` and more for each service NAME.
fn is_service_link(name: &str, text: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || (name.ends_with("_PORT") && text.contains("://"))
}

/// "one of a, b, c", or that there is nothing yet.
pub(super) fn one_of(section: &str, names: impl Iterator<Item = String>) -> String {
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        format!("none, `{section}` has no keys in this version")
    } else {
        format!("one of {names}")
    }
}
