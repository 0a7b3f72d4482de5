//! What changed: each file below `changelog.d` becomes one line of the next release.
//!
//! In: the files, `script/changelog`. Out: failure when one is not as `changelog.d/README.md` says, or gets lost.

use std::fs;
use std::path::Path;
use std::process::Command;

const KINDS: [&str; 6] = ["added", "changed", "deprecated", "removed", "fixed", "security"];

/// What is wrong with a file of this name and content.
fn fault(name: &str, text: &str) -> Option<&'static str> {
    let mut parts = name.split('.');
    let (what, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if what.is_empty() || !KINDS.contains(&kind) || parts.next() != Some("md") || parts.next().is_some() {
        return Some("the name is WHAT.KIND.md");
    }
    let line = text.strip_suffix('\n').unwrap_or(text);
    if line.contains('\n') || line.starts_with('-') || line.starts_with(' ') {
        return Some("it is one line, without a dash before it");
    }
    (!line.ends_with('.')).then_some("it is a sentence")
}

#[test]
fn files_are_checked() {
    let check =
        |name, text, is_right: bool| assert_eq!(fault(name, text).is_none(), is_right, "{name} {text:?}");
    check("spool.fixed.md", "It works.\n", true);
    check("spool.md", "It works.\n", false);
    check("spool.mended.md", "It works.\n", false);
    check("spool.fixed.txt", "It works.\n", false);
    check("spool.fixed.md", "- It works.\n", false);
    check("spool.fixed.md", "It works.\nSo does this.\n", false);
    check("spool.fixed.md", "It works\n", false);
    check("spool.fixed.md", "", false);
}

#[test]
fn every_file_is_a_line_of_the_next_release() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let shown = Command::new(root.join("script/changelog")).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let shown = String::from_utf8(shown.stdout).unwrap();
    for entry in fs::read_dir(root.join("changelog.d")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(fault(name, &text), None, "{name}");
        assert!(shown.contains(&format!("\n- {}\n", text.trim_end())), "{name} is not in: {shown}");
    }
}
