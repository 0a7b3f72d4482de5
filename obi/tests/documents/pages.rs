//! Links between the project's documents.
//!
//! In: every Markdown file of the repository. Out: failure when a link leads to a file or a heading that is not there,
//! when a document is reached from nowhere, or when a metric of the agent's own stands in none. Refuses
//! to know what lies on other machines.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders in which documents are.
const FOLDERS: [&str; 9] = [
    "",
    "dashboards",
    "deploy",
    "deploy/examples",
    "deploy/helm/obi",
    "docs",
    "docs/decisions",
    "docs/internals",
    "integration",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A file of the repository, from the root.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents, from the root.
pub(crate) fn documents() -> BTreeSet<PathBuf> {
    let within = |folder: &&str| fs::read_dir(root().join(folder)).into_iter().flatten();
    let paths = FOLDERS.iter().flat_map(within).map(|entry| entry.unwrap().path());
    let documents = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

/// What stands outside of blocks of code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    text.lines().filter(is_prose).collect()
}

/// Targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let parts = prose(text).into_iter().flat_map(|line| line.split("](").skip(1));
    parts.filter_map(|part| Some(part.split_once(')')?.0.to_owned())).collect()
}

/// The anchors of a document's headings, as forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
    };
    headings.map(anchor).collect()
}

/// `target` as seen from the document at `path`, without `.` and `..`.
fn resolve(path: &Path, target: &str) -> PathBuf {
    let mut found = path.parent().unwrap_or(Path::new("")).to_owned();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => drop(found.pop()),
            Component::Normal(name) => found.push(name),
            _ => {}
        }
    }
    found
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() > 20, "{documents:?}");
    let mut reached = BTreeSet::from([PathBuf::from("README.md")]);
    let mut broken = Vec::new();
    for path in &documents {
        let text = fs::read_to_string(root().join(path)).unwrap();
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (file, anchor) =
                link.split_once('#').map_or((&**link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let is_there = root().join(&target).exists();
            let has_anchor = anchor.is_none_or(|anchor| {
                fs::read_to_string(root().join(&target)).is_ok_and(|text| anchors(&text).contains(anchor))
            });
            if !is_there || !has_anchor {
                broken.push(format!("{}: {link}", path.display()));
            }
            reached.insert(target);
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    let alone: Vec<_> = documents.difference(&reached).collect();
    assert!(alone.is_empty(), "no document leads to {alone:?}");
}

/// Names of the agent's own metrics, as the exporters spell them: without the suffix that their type adds.
fn own_metrics() -> BTreeSet<String> {
    let folder = root().join("obi/src/export/prometheus");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources =
        files.filter(|path| path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs"));
    let mut names = BTreeSet::new();
    for source in sources {
        for part in fs::read_to_string(source).unwrap().split("\"obi_").skip(1) {
            let end =
                part.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_').unwrap_or(part.len());
            if part[end..].starts_with('"') {
                names.insert(format!("obi_{}", &part[..end]));
            }
        }
    }
    names
}

#[test]
fn every_metric_of_the_agent_is_documented() {
    let read = |name| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let documents = ["telemetry.md", "metrics.md", "slo.md"].map(read).concat();
    let names = own_metrics();
    assert!(names.len() > 40, "{names:?}");
    /// What a type or a unit adds to a name.
    const ENDS: [&str; 6] = ["", "_total", "_info", "_bytes", "_seconds", "_seconds_total"];
    let stands = |name: &String| ENDS.iter().any(|end| documents.contains(&format!("`{name}{end}`")));
    let missing: Vec<_> = names.iter().filter(|name| !stands(name)).collect();
    assert!(
        missing.is_empty(),
        "in no table of docs/telemetry.md, docs/metrics.md or docs/slo.md: {missing:?}"
    );
}
