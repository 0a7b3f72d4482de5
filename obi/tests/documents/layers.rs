//! Rules about the source itself: arrows point left, files stay small, every file says what it is.
//!
//! In: the Rust files under `src/` and the kernel programs' C. Out: a failure that names file and rule. Refuses to
//! understand Rust beyond lines, comments and paths.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// In flow order, what everyone may know first; each may use only those before it.
const STAGES: [&str; 19] = [
    "clock",
    "counter",
    "shutdown",
    "privilege",
    "config",
    "listener",
    "kubernetes",
    "capture",
    "protocol",
    "cause",
    "span",
    "receive",
    "red",
    "profile",
    "stats",
    "span_store",
    "objective",
    "export",
    "web",
];
/// They know everything, so no one may know them.
const ROOTS: [&str; 2] = ["agent", "command"];
/// Lines without tests.
const FILE_LIMIT: usize = 500;
const MEDIAN_LIMIT: usize = 150;

#[test]
fn a_stage_uses_only_stages_to_its_left() {
    let broken: Vec<String> = rust_files()
        .iter()
        .flat_map(|file| {
            broken_arrows(&file.module, &file.text).into_iter().map(move |arrow| format!("{file}{arrow}"))
        })
        .collect();
    assert!(broken.is_empty(), "arrows to the right:\n{}", broken.join("\n"));
}

/// What has no rank may be known by everyone and know everything.
#[test]
fn every_module_has_a_rank() {
    let lib = fs::read_to_string("src/lib.rs").expect("the crate has a root");
    let modules = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let unranked: Vec<_> = modules.filter(|name| !STAGES.contains(name) && !ROOTS.contains(name)).collect();
    assert!(unranked.is_empty(), "{unranked:?} have no place in the order");
}

#[test]
fn files_stay_small() {
    let rust = rust_files();
    let kernel = kernel_files();
    let long: Vec<String> = rust
        .iter()
        .chain(&kernel)
        .filter(|file| file.lines() > FILE_LIMIT)
        .map(|file| format!("{file}{} lines", file.lines()))
        .collect();
    assert!(long.is_empty(), "more than {FILE_LIMIT} lines without tests:\n{}", long.join("\n"));

    let mut sizes: Vec<usize> = rust.iter().map(SourceFile::lines).filter(|lines| *lines > 0).collect();
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    assert!(
        median <= MEDIAN_LIMIT,
        "the median file has {median} lines without tests, more than {MEDIAN_LIMIT}"
    );
}

#[test]
fn every_file_opens_by_saying_what_it_is() {
    let silent: Vec<String> =
        rust_files().iter().filter(|file| !file.text.starts_with("//! ")).map(ToString::to_string).collect();
    assert!(silent.is_empty(), "no `//!` on the first line:\n{}", silent.join("\n"));
}

struct SourceFile {
    path: PathBuf,
    /// Path of its module below the crate root: `capture/event.rs` is `["capture", "event"]`.
    module: Vec<String>,
    text: String,
}

impl SourceFile {
    /// Without tests; none in a file that is all tests.
    fn lines(&self) -> usize {
        if self.module.last().is_some_and(|name| name == "tests") {
            0
        } else {
            lines_without_tests(&self.text)
        }
    }
}

impl fmt::Display for SourceFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "  {}: ", self.path.display())
    }
}

/// systemd takes the last of what may be said once, silently.
#[test]
fn the_systemd_unit_says_everything_once() {
    const LISTS: [&str; 1] = ["SystemCallFilter"];
    let unit = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/obi.service"));
    let mut said = Vec::new();
    for line in unit.expect("the unit is there").lines().filter(|line| !line.starts_with('#')) {
        let Some((key, _)) = line.split_once('=') else { continue };
        assert!(LISTS.contains(&key) || !said.contains(&key.to_owned()), "{key} twice");
        said.push(key.to_owned());
    }
    assert!(said.len() > 10, "{said:?}");
}

fn rust_files() -> Vec<SourceFile> {
    files("src", &["rs"])
}

fn kernel_files() -> Vec<SourceFile> {
    files("../obi-ebpf/src", &["rs", "c", "h"])
}

fn files(folder: &str, extensions: &[&str]) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extensions.iter().any(|known| extension == *known))
            {
                let text = fs::read_to_string(&path).expect("source is UTF-8 text");
                let module = module_path(path.strip_prefix(&root).expect("found below the root"));
                found.push(SourceFile { path, module, text });
            }
        }
    }
    assert!(!found.is_empty(), "no source under {}", root.display());
    found
}

fn module_path(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn lines_without_tests(text: &str) -> usize {
    without_tests(text).lines().count()
}

/// Tests stand at the end of a file, or in a file of their own that is declared there.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod ").map_or(text, |tests| &text[..tests])
}

/// Each arrow that may not be, as `from → to`.
fn broken_arrows(module: &[String], text: &str) -> Vec<String> {
    let Some(from) = module.first() else { return Vec::new() };
    if ROOTS.contains(&from.as_str()) {
        return Vec::new();
    }
    let rank = |name: &str| STAGES.iter().position(|stage| *stage == name);
    let allowed = |to: &str| {
        let to_the_right = matches!((rank(from), rank(to)), (Some(from), Some(to)) if to > from);
        !to_the_right && !ROOTS.contains(&to)
    };
    let mut targets = targets(module.len(), text);
    targets.sort();
    targets.dedup();
    targets.iter().filter(|to| !allowed(to)).map(|to| format!("{from} → {to}")).collect()
}

/// First segments of all paths that start at the crate root, written `crate::…` or with enough `super::`.
fn targets(depth: usize, text: &str) -> Vec<String> {
    let code: String = without_tests(text).lines().map(without_comment).collect::<Vec<_>>().join("\n");
    let to_root = ["crate::".to_owned(), "super::".repeat(depth)];
    let mut found = Vec::new();
    for start in to_root.iter().filter(|start| !start.is_empty()) {
        for (at, _) in code.match_indices(start.as_str()) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|before| before.is_alphanumeric() || "_:$".contains(before)) {
                continue;
            }
            found.extend(first_segments(&code[at + start.len()..]));
        }
    }
    found
}

/// `a::b…` gives `a`; `{a::b, c::{d, e}}` gives `a` and `c`.
fn first_segments(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else { return vec![identifier(path)] };
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut start = true;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if start && depth == 0 && !character.is_whitespace() => {
                found.push(identifier(&group[at..]));
                start = false;
            }
            _ => {}
        }
    }
    found
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

#[test]
fn arrows_are_found_however_they_are_written() {
    let check = |file: &str, text: &str, expected: &[&str]| {
        assert_eq!(broken_arrows(&module_path(Path::new(file)), text), expected, "{file}: {text}");
    };
    check("span/mod.rs", "use crate::protocol::Exchange;", &[]);
    check("span/mod.rs", "use crate::red::Registry;", &["span → red"]);
    check(
        "span/route.rs",
        "use crate::{config::Span, web::{self, api}, export::Batch};",
        &["span → export", "span → web"],
    );
    check("span/route.rs", "use crate::{\n    protocol::{Side, Failure},\n    red,\n};", &["span → red"]);
    check("span/route.rs", "fn f() -> crate::red::Snapshot {", &["span → red"]);
    check("span/mod.rs", "use super::red::Registry;", &["span → red"]);
    check("span/route.rs", "use super::super::red;", &["span → red"]);
    check("span/route.rs", "use super::red;", &[]);
    check("capture/ring.rs", "use crate::agent::Agent;", &["capture → agent"]);
    check("stats.rs", "use crate::command::demo;", &["stats → command"]);
    check("stats.rs", "use crate::red::Snapshot;", &[]);
    check("config/value.rs", "use crate::span::Span;", &["config → span"]);
    check("agent.rs", "use crate::{web, capture};", &[]);
    check("lib.rs", "pub mod web;", &[]);
    check("span/mod.rs", "//! see [`crate::red`]\nlet x = 1; // crate::web", &[]);
    check("span/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::red;\n}", &[]);
    check("span/mod.rs", "use mycrate::red; use $crate::red; use ::crate::red;", &[]);
}

#[test]
fn tests_do_not_count_as_lines() {
    assert_eq!(lines_without_tests("//! x\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n}\n"), 3);
    assert_eq!(lines_without_tests("//! x\n#[cfg(test)]\nuse y;\nfn f() {}\n"), 4);
}
