//! OpenSLO as others write it: the specification's examples, the cases of its validator, our own extensions.
//!
//! In: the files under `openslo`, each with what is expected in its comments. Out: findings and objectives
//! compared. Refuses to expect anything that is not written in the file.
//!
//! A line that has a finding ends in `# error: …`, `# warning: …` or `# note: …` with a part of its text, or several
//! of these; all findings must be expected and the other way round. `# objective: NAME TARGET` lines list what can be
//! executed. The files are written after examples of the specification and cases of its tools, not copied from them.

use std::fs;
use std::path::Path;

#[test]
fn every_file_is_read_as_its_comments_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/openslo");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        wrong.extend(check(&name, &text));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is not as expected.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let reading = slo::openslo::read([(name, text)]);
    let mut found: Vec<(u32, String)> = reading
        .findings
        .iter()
        .map(|finding| {
            (finding.place.line, format!("{}: {}; {}", finding.severity, finding.what, finding.instead))
        })
        .collect();
    for (line, expected) in expectations(text) {
        let at = found.iter().position(|(known, text)| {
            let (severity, part) = expected.split_once(": ").expect("severity and text");
            *known == line && text.starts_with(severity) && text.contains(part)
        });
        match at {
            Some(at) => drop(found.remove(at)),
            None => wrong.push(format!("{name}:{line}: missing: {expected}")),
        }
    }
    wrong.extend(found.iter().map(|(line, text)| format!("{name}:{line}: not expected: {text}")));
    let objectives: Vec<String> = reading
        .objectives
        .iter()
        .map(|objective| format!("{} {}", objective.name, objective.target()))
        .collect();
    let expected: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# objective: ")).collect();
    if objectives != expected {
        wrong.push(format!("{name}: objectives {objectives:?}, expected {expected:?}"));
    }
    wrong
}

/// Lines and what is expected there.
fn expectations(text: &str) -> Vec<(u32, String)> {
    let mut expected = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some(start) =
            ["# error: ", "# warning: ", "# note: "].iter().filter_map(|mark| rest.find(mark)).min()
        {
            let from = &rest[start + 2..];
            let end = from.find(" # ").unwrap_or(from.len());
            expected.push((u32::try_from(at + 1).expect("a short file"), from[..end].trim_end().to_owned()));
            rest = &from[end..];
        }
    }
    expected
}
