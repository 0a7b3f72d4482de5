//! What documents say of capabilities is what the deployments ask for.
//!
//! In: the systemd unit, documents. Out: failure where a document counts or lists other capabilities than the unit
//! grants. Refuses to know what each of them is for: `docs/requirements.md` says that.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::collections::BTreeSet;

use super::pages;

/// Documents that say how many there are.
const COUNTING: [&str; 3] = ["README.md", "docs/install.md", "deploy/helm/obi/README.md"];

const NUMBERS: [&str; 11] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

/// The capabilities of the unit, as the kernel spells them.
fn granted() -> BTreeSet<String> {
    let unit = pages::read("deploy/obi.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// Numbers before the word, in words or digits.
fn counts(text: &str) -> Vec<usize> {
    let words: Vec<&str> =
        text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let number = |word: &str| NUMBERS.iter().position(|it| *it == word).or_else(|| word.parse().ok());
    let pairs = words.windows(2).filter(|pair| pair[1] == "capabilities");
    pairs.filter_map(|pair| number(&pair[0].to_lowercase())).collect()
}

/// Names of capabilities.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    words.filter(|word| word.starts_with("CAP_")).map(str::to_owned).collect()
}

#[test]
fn numbers_are_found() {
    let check = |text: &str, expected: &[usize]| assert_eq!(counts(text), expected, "{text}");
    check("root or [five capabilities](requirements.md), and Six\ncapabilities", &[5, 6]);
    check("12 capabilities of these capabilities; six of its capabilities", &[12]);
    check("five capability", &[]);
}

#[test]
fn documents_count_the_capabilities_of_the_unit() {
    let granted = granted().len();
    for document in pages::documents() {
        let counts = counts(&pages::read(document.to_str().unwrap()));
        // What was true of an earlier release stays in its changes.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        let wrong: Vec<_> = counts.iter().filter(|count| **count != granted).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?} capabilities, not {granted}", document.display());
        let must = COUNTING.iter().any(|it| document.to_str() == Some(it));
        assert!(!must || !counts.is_empty(), "{} does not say how many there are", document.display());
    }
}

#[test]
fn documents_list_the_capabilities_of_the_unit() {
    let requirements = pages::read("docs/requirements.md");
    let (_, privileges) = requirements.split_once("\n## Privileges\n").unwrap();
    let first = privileges.trim_start().lines().next().unwrap();
    assert_eq!(names(first), granted(), "{first}");
    let unit = pages::read("deploy/obi.service");
    let lines =
        |start: &str| unit.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>().concat();
    assert_eq!(names(&lines("CapabilityBoundingSet=")), granted());
    assert_eq!(names(&lines("# CAP_")), granted(), "each has its reason in a comment");
}

#[test]
fn deployments_ask_for_the_capabilities_of_the_unit() {
    for file in ["deploy/daemonset.yaml", "deploy/helm/obi/values.yaml"] {
        let text = pages::read(file);
        let line = text.lines().find_map(|line| line.trim().strip_prefix("add: ")).unwrap();
        let names: BTreeSet<String> = serde_json::from_str(line).unwrap();
        let names: BTreeSet<String> = names.iter().map(|name| format!("CAP_{name}")).collect();
        assert_eq!(names, granted(), "{file}");
    }
}

/// Names that an installation's lines ask for.
fn asked_for(text: &str) -> Vec<BTreeSet<String>> {
    let list = |line: &str| {
        let names = line.strip_prefix("allowedCapabilities: [")?.strip_suffix(']')?;
        Some(names.split(", ").map(|name| format!("CAP_{name}")).collect())
    };
    let lists = text.lines().filter_map(list);
    let options = text.split("--cap-add ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    // What some machines need besides stands in prose.
    let options = options.filter(|name| *name != "SYS_RESOURCE").map(|name| format!("CAP_{name}"));
    lists.chain([options.collect()]).collect()
}

#[test]
fn installations_by_hand_ask_for_the_capabilities_of_the_unit() {
    let asked_for = asked_for(&pages::read("docs/install.md"));
    assert_eq!(asked_for.len(), 2, "OpenShift's, and containers'");
    for names in asked_for {
        assert_eq!(names, granted());
    }
}
