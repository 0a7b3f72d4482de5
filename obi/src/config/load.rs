//! File and environment to [`Config`].
//!
//! In: a path and the environment. Out: the checked configuration, or one error. The two sources are merged as
//! trees and typed once, so that a key means the same wherever it comes from.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::environment::{self, Setting, one_of};
use super::error::{ConfigError, one_line, shown};
use super::{Config, Rule, export, otlp_environment, receive};

/// Longest file, bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Where a configuration comes from, so that it can be read again.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file, if one is given.
    pub file: Option<PathBuf>,
}

impl Source {
    /// Reads it as it is now; see [`load`].
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        load(self.file.as_deref())
    }

    /// Where a key such as `slo.files` is set, for errors that are found only after loading: `FILE: slo.files`, or the
    /// variable of the environment before it.
    pub fn place(&self, key: &str) -> String {
        let variable = environment::variable(key);
        match &self.file {
            _ if std::env::var_os(&variable).is_some() => format!("environment {variable}: {key}"),
            Some(file) => format!("{}: {key}", file.display()),
            None => key.to_owned(),
        }
    }
}

/// Reads the file, if one is given, and the environment (`OBI_SECTION_KEY`,
/// `OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS`): environment over file over default.
///
/// # Errors
/// When the file cannot be read or is not YAML, a key is unknown, a value is not what its key expects, or two
/// values exclude each other. The text names the file or variable, the key, the value and what was expected.
pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
    let text = file.map(read).transpose()?;
    let origin = file.map_or_else(|| "environment".to_owned(), |path| path.display().to_string());
    let variables = std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
    merge(
        &origin,
        text.as_deref().unwrap_or(""),
        variables.map(|(name, text)| (name, text.to_string_lossy().into_owned())),
    )
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let fail = |reason| ConfigError::Read { path: path.to_owned(), reason };
    read_text(path, FILE_BYTES).map_err(fail)
}

/// A file of UTF-8 text that is not longer than `limit` bytes.
///
/// # Errors
/// What the system says, that it is longer, or the line at which it is no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("more than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        std::io::Error::other(format!("line {line} is not UTF-8"))
    })
}

/// Everything but the reading: pure, for tests.
fn merge(
    origin: &str,
    text: &str,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let defaults = serde_json::to_value(Config::default()).expect("the defaults are plain values");
    let mut tree = parse(origin, text)?;
    refuse_unknown(origin, &defaults, &tree)?;
    let variables: Vec<_> = variables.collect();
    let settings = environment::settings(&defaults, &variables)?;
    for Setting { path: [section, key], value, .. } in &settings {
        let keys = tree.entry(section).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(keys) = keys {
            keys.insert(key.clone(), value.clone());
        }
    }
    let tree = Value::Object(tree);
    let place = Provenance { origin, settings: &settings, tree: &tree };
    let mut config: Config =
        serde_path_to_error::deserialize(&tree).map_err(|error| place.explain(&error))?;
    config.export.otlp.append(&mut otlp_environment::destinations(&variables)?);
    refuse_contradiction(&place, &config)?;
    Ok(config)
}

/// The file as a tree of sections; a section without a value is an empty one.
fn parse(origin: &str, text: &str) -> Result<Map<String, Value>, ConfigError> {
    let syntax = |message: String| ConfigError::Syntax { origin: origin.to_owned(), message };
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Map::new());
    }
    let tree = serde_saphyr::from_str::<Value>(text).map_err(|error| {
        syntax(one_line(&format!("not valid YAML: {}", slo::openslo::SyntaxError::of(&error))))
    })?;
    let Value::Object(mut tree) = tree else {
        return Err(syntax(format!("`{}` is not valid, expected sections such as `web:`", shown(&tree))));
    };
    for section in tree.values_mut().filter(|section| section.is_null()) {
        *section = Value::Object(Map::new());
    }
    Ok(tree)
}

/// Sections and keys must be among the defaults, which name them all.
fn refuse_unknown(origin: &str, defaults: &Value, tree: &Map<String, Value>) -> Result<(), ConfigError> {
    let unknown =
        |key: String, expected: String| ConfigError::UnknownKey { origin: origin.to_owned(), key, expected };
    let sections = defaults.as_object().expect("the configuration is a structure");
    for (section, keys) in tree {
        let Some(known) = sections.get(section).and_then(Value::as_object) else {
            return Err(unknown(section.clone(), one_of("", sections.keys().cloned())));
        };
        let Value::Object(keys) = keys else {
            return Err(ConfigError::Value {
                origin: origin.to_owned(),
                key: section.clone(),
                value: shown(keys),
                problem: format!("is not a section, expected {}", one_of(section, known.keys().cloned())),
            });
        };
        if let Some(key) = keys.keys().find(|key| !known.contains_key(*key)) {
            return Err(unknown(format!("{section}.{key}"), one_of(section, known.keys().cloned())));
        }
    }
    Ok(())
}

fn refuse_contradiction(place: &Provenance<'_>, config: &Config) -> Result<(), ConfigError> {
    if let Some((key, problem)) = export::contradiction(&config.export) {
        return Err(place.refuse(&key, problem));
    }
    if let Some((key, problem)) = config.web.contradiction() {
        return Err(place.refuse(key, problem.to_owned()));
    }
    let captures = config.capture.enabled;
    let received = receive::contradiction(&config.receive);
    if let Some((key, problem)) = received.or_else(|| receive::is_idle(&config.receive, captures)) {
        return Err(place.refuse(&key, problem));
    }
    let twice = |rule: &Rule| config.discover.include.contains(rule);
    let Some(index) = config.discover.exclude.iter().position(twice) else { return Ok(()) };
    Err(place.refuse(
        &format!("discover.exclude[{index}]"),
        "is in discover.include as well, expected a rule to be in one of the two".to_owned(),
    ))
}

/// Where a value came from.
struct Provenance<'a> {
    origin: &'a str,
    settings: &'a [Setting],
    tree: &'a Value,
}

impl Provenance<'_> {
    fn explain(&self, error: &serde_path_to_error::Error<serde_json::Error>) -> ConfigError {
        let message = one_line(&error.inner().to_string());
        // A key within a value, such as a rule: the sections' own keys have been looked at before.
        if let Some((_, expected)) =
            message.strip_prefix("unknown field ").and_then(|rest| rest.split_once("expected "))
        {
            let key = error.path().to_string();
            let expected = match expected.replace('`', "") {
                several if several.starts_with("one of ") => several,
                single => format!("one of {single}"),
            };
            return ConfigError::UnknownKey { origin: self.origin_of(&key), key, expected };
        }
        // Our own checks say "is not …, expected …"; serde's own texts get the same shape.
        let problem = if message.starts_with("is ") || message.starts_with("matches ") {
            message
        } else if let Some((_, expected)) = message.rsplit_once("expected ") {
            format!("is not valid, expected {}", plain(expected))
        } else {
            format!("is not valid: {message}")
        };
        self.refuse(&error.path().to_string(), problem)
    }

    fn refuse(&self, key: &str, problem: String) -> ConfigError {
        let origin = self.origin_of(key);
        let value = if key == "web.token" { "…".to_owned() } else { shown(self.find(key)) };
        ConfigError::Value { origin, key: key.to_owned(), value, problem }
    }

    /// The variable that set a key, or the file.
    fn origin_of(&self, key: &str) -> String {
        let set_by = self.settings.iter().rev().find(|setting| {
            let full = setting.path.join(".");
            key.strip_prefix(&full).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        });
        set_by.map_or_else(|| self.origin.to_owned(), |setting| format!("environment {}", setting.variable))
    }

    /// The value at a path such as `discover.include[0].port`.
    fn find(&self, key: &str) -> &Value {
        key.split(['.', '[', ']']).filter(|step| !step.is_empty()).fold(
            self.tree,
            |value, step| match value {
                Value::Array(items) => {
                    step.parse().ok().and_then(|index: usize| items.get(index)).unwrap_or(&Value::Null)
                }
                other => other.get(step).unwrap_or(&Value::Null),
            },
        )
    }
}

/// serde's word for a type in a user's words.
fn plain(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "struct Written" => "a rule, such as {service: shop-*}",
        other => other,
    }
}

#[cfg(test)]
mod tests;
