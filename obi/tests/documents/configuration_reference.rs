//! `docs/configuration.md`: the reference of every key, made of the doc comments in `src/config`.
//!
//! In: the source of the configuration's structures, and their defaults. Out: failure when the page is stale, a key has
//! no default or example, a default in the text is not the real one, or an example is refused.
//! `UPDATE_REFERENCE=1 cargo test --workspace --test documents` writes the page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use obi::config::{Config, load};
use serde_json::Value;

const INTRODUCTION: &str = "\
# Configuration

<!-- Made by `make reference` from the doc comments in obi/src/config. Do not edit. -->

One YAML file, given with `--config FILE`, and the environment; without either, everything has its default.
`obi check --config FILE` validates without running.

**Precedence**, the first wins: `OBI_SECTION_KEY`, then OpenTelemetry's own variables where a key names them, then the
file, then the default.

**Environment.** Every key is also a variable: `web.listen` is `OBI_WEB_LISTEN`. Lists and maps are written in YAML's flow
style: `OBI_DISCOVER_EXCLUDE='[{executable: /usr/bin/*}]'`. `OBI_LOG` (or `RUST_LOG`) filters the log and is no key.

**Mistakes.** Unknown keys, wrong types and impossible combinations stop the start with one line that names the file or
variable, the key, the value and what was expected; exit code 2.

**Sizes** are bytes, with `KiB`, `MiB` or `GiB` if you like.

";

/// A structure with its comment and its fields.
struct Structure {
    doc: String,
    /// Name, type, comment.
    fields: Vec<(String, String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every public structure of the configuration.
fn structures() -> BTreeMap<String, Structure> {
    let mut files = vec![root().join("src/config.rs")];
    let directory = std::fs::read_dir(root().join("src/config")).expect("the folder is there");
    files
        .extend(directory.map(|entry| entry.expect("it can be listed").path()).filter(|path| path.is_file()));
    let mut found = BTreeMap::new();
    for text in files.iter().map(|path| read(path)) {
        let mut lines = text.lines();
        let mut doc = String::new();
        while let Some(line) = lines.next() {
            let rest = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"));
            if let Some(name) = rest {
                let fields = fields(&mut lines);
                found.insert(name.to_owned(), Structure { doc: std::mem::take(&mut doc), fields });
            } else {
                comment(line, &mut doc);
            }
        }
    }
    found
}

/// Adds a line of a doc comment; attributes may stand between it and its item.
fn comment(line: &str, doc: &mut String) {
    let line = line.trim();
    if let Some(text) = line.strip_prefix("/// ") {
        if !doc.is_empty() {
            doc.push(' ');
        }
        doc.push_str(text);
    } else if !line.starts_with("#[") {
        doc.clear();
    }
}

fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<(String, String, String)> {
    let (mut fields, mut doc) = (Vec::new(), String::new());
    for line in lines.take_while(|line| *line != "}") {
        let field =
            line.trim().strip_prefix("pub ").and_then(|rest| rest.strip_suffix(',')?.split_once(": "));
        if let Some((name, kind)) = field {
            fields.push((name.to_owned(), kind.to_owned(), std::mem::take(&mut doc)));
        } else {
            comment(line, &mut doc);
        }
    }
    fields
}

/// What stands in backquotes right behind a word.
pub(crate) fn code_behind<'a>(doc: &'a str, word: &str) -> Option<&'a str> {
    doc.split_once(word)?.1.trim_start().strip_prefix('`')?.split_once('`').map(|(code, _)| code)
}

/// Sections in the file's order, with their structures.
fn sections(structures: &BTreeMap<String, Structure>) -> Vec<(&str, &str, Option<&Structure>)> {
    let config = &structures["Config"];
    config
        .fields
        .iter()
        .map(|(name, kind, doc)| (name.as_str(), doc.as_str(), structures.get(kind)))
        .collect()
}

/// Every key, as section, key and comment.
pub(crate) fn keys() -> Vec<(String, String, String)> {
    let structures = structures();
    let sections = sections(&structures).into_iter();
    let keys = sections.flat_map(|(section, _, structure)| {
        let keys = structure.into_iter().flat_map(|structure| &structure.fields);
        keys.map(move |(key, _, doc)| (section.to_owned(), key.clone(), doc.clone()))
    });
    keys.collect()
}

/// The structure that a list's or a key's type is made of.
fn inner<'a>(kind: &str, structures: &'a BTreeMap<String, Structure>) -> Option<&'a Structure> {
    let name = kind.rsplit(['<', ':']).next().unwrap_or(kind).trim_end_matches('>');
    structures.get(name).filter(|structure| !structure.fields.is_empty())
}

/// Keys that SIGHUP applies, as the agent lists them.
fn applied() -> String {
    let source = read(&root().join("src/agent/reload.rs"));
    let list =
        source.split_once("const APPLIED").and_then(|(_, rest)| rest.split_once("= [")?.1.split_once(']'));
    let (list, _) = list.expect("the agent has a list of the keys that SIGHUP applies");
    list.split(',')
        .map(|key| key.trim().trim_matches('"'))
        .filter(|key| !key.is_empty())
        .map(|key| format!("`{key}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn page() -> String {
    let structures = structures();
    let mut page = INTRODUCTION.to_owned();
    let mut out =
        |text: std::fmt::Arguments<'_>| page.write_fmt(text).expect("writing to a string cannot fail");
    out(format_args!(
        "**Reload.** SIGHUP reads file and environment again. At once follow: {}.\nOther changes are named in the log and wait for a restart. A configuration that is not valid is refused: the old one stays, the log says why,\n`obi_config_reloads_total{{outcome=\"refused\"}}` grows and `obi_config_last_reload_successful` is 0.\n",
        applied()
    ));
    for (section, doc, structure) in sections(&structures) {
        let Some(structure) = structure.filter(|structure| !structure.fields.is_empty()) else {
            out(format_args!("\n## `{section}`\n\n{doc}\n"));
            continue;
        };
        let about = structure.doc.split_once(". ").map_or("", |(_, rest)| rest);
        out(format_args!("\n## `{section}`\n\n{doc}{}{about}\n", if about.is_empty() { "" } else { " " }));
        for (key, kind, doc) in &structure.fields {
            let variable = format!("OBI_{section}_{key}").to_uppercase();
            out(format_args!("\n### `{section}.{key}`\n\n{doc}\n\nVariable: `{variable}`.\n"));
            if let Some(inner) = inner(kind, &structures) {
                out(format_args!("\n| key | |\n|---|---|\n"));
                for (key, _, doc) in &inner.fields {
                    out(format_args!("| `{key}` | {} |\n", doc.replace('|', "\\|")));
                }
            }
        }
    }
    page
}

#[test]
fn the_reference_is_up_to_date() {
    let path = root().join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let stands = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stands == page, "{} is stale; `make reference` writes it", path.display());
}

/// Loads a configuration of one key.
pub(crate) fn load_key(section: &str, key: &str, value: &str) -> Result<Config, String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), format!("{section}:\n  {key}: {value}\n")).expect("it can be written");
    load(Some(file.path())).map_err(|error| error.to_string())
}

#[test]
fn every_key_has_its_default_and_an_example_that_holds() {
    /// Examples that need a file of the machine or another key.
    const NEED_MORE: [&str; 5] =
        ["capture.enabled", "slo.files", "web.cert_file", "web.key_file", "web.client_ca_file"];
    let structures = structures();
    let defaults = serde_json::to_value(Config::default()).expect("a configuration is plain values");
    let mut n_keys = 0;
    for (section, _, structure) in sections(&structures) {
        let keys = structure.map_or(&[][..], |structure| &structure.fields);
        let real = defaults[section].as_object().expect("a section has keys");
        assert_eq!(keys.len(), real.len(), "the page knows every key of {section}");
        for (key, _, doc) in keys {
            let name = format!("{section}.{key}");
            assert!(real.contains_key(key), "{name}");
            let default =
                code_behind(doc, "Default:").unwrap_or_else(|| panic!("{name} says no default: {doc}"));
            let loaded =
                load_key(section, key, default).unwrap_or_else(|error| panic!("default of {name}: {error}"));
            assert_eq!(loaded, Config::default(), "`{default}` is not the default of {name}");
            let example =
                code_behind(doc, "Example:").unwrap_or_else(|| panic!("{name} has no example: {doc}"));
            if !NEED_MORE.contains(&name.as_str()) {
                let loaded = load_key(section, key, example)
                    .unwrap_or_else(|error| panic!("example of {name}: {error}"));
                assert_ne!(loaded, Config::default(), "the example of {name} is its default");
            }
            n_keys += 1;
        }
    }
    let n_real: usize = defaults
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, keys)| keys.as_object())
        .map(serde_json::Map::len)
        .sum();
    assert_eq!((n_keys, n_keys > 15), (n_real, true));
    assert!(matches!(defaults, Value::Object(_)));
}
