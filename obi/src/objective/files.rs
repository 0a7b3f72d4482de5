//! OpenSLO files to objectives.
//!
//! In: paths and globs of the configuration or the command line. Out: what is in the files, read together; or the first
//! thing that is wrong, with file, line and key. Refuses to know the text's meaning: that is [`slo::openslo`].

use std::path::{Path, PathBuf};

use slo::openslo::{Finding, Reading, Severity};
use thiserror::Error;

use crate::config;

/// Longest file, bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Most files.
const FILES: usize = 10_000;

/// Why files cannot be used. Every text is one line.
#[derive(Debug, Error)]
pub enum FilesError {
    /// A glob is none, or matches nothing.
    #[error("`{pattern}` {problem}")]
    Pattern {
        /// As written.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file could not be read.
    #[error("failed to read the objectives of `{}`: {reason}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// A file is wrong.
    #[error("{first}{}", and_more(*further))]
    Wrong {
        /// The first error in it.
        first: Box<Finding>,
        /// How many more there are.
        further: usize,
    },
}

fn and_more(further: usize) -> String {
    if further == 0 { String::new() } else { format!(" (and {further} more: see `obi slo lint`)") }
}

/// Reads all files that the patterns name, as one set: they may refer to each other.
///
/// # Errors
/// When a pattern matches nothing, a file cannot be read or is too large.
pub fn read(patterns: &[String]) -> Result<Reading, FilesError> {
    let mut texts = Vec::new();
    for path in paths(patterns)? {
        let text = config::read_text(&path, FILE_BYTES)
            .map_err(|reason| FilesError::Read { path: path.clone(), reason })?;
        texts.push((path.display().to_string(), text));
    }
    let texts = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    Ok(slo::openslo::read(texts))
}

/// The same, for the agent: nothing in them may be wrong.
///
/// # Errors
/// As [`read`], and when there is a finding of severity error.
pub fn load(patterns: &[String]) -> Result<Reading, FilesError> {
    let reading = read(patterns)?;
    let mut errors = reading.findings.iter().filter(|finding| finding.severity == Severity::Error);
    match errors.next() {
        None => Ok(reading),
        Some(first) => Err(FilesError::Wrong { first: Box::new(first.clone()), further: errors.count() }),
    }
}

/// Every file once, in the order of the patterns.
fn paths(patterns: &[String]) -> Result<Vec<PathBuf>, FilesError> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for pattern in patterns {
        let wrong = |problem: String| FilesError::Pattern { pattern: pattern.clone(), problem };
        let is_glob = pattern.contains(['*', '?', '[']) && !Path::new(pattern).exists();
        if !is_glob {
            paths.push(PathBuf::from(pattern));
            continue;
        }
        let before = paths.len();
        let found = glob::glob(pattern)
            .map_err(|error| wrong(format!("is no glob: {} at character {}", error.msg, error.pos + 1)))?;
        for path in found {
            let path = path.map_err(|error| {
                let path = error.path().to_owned();
                FilesError::Read { path, reason: error.into() }
            })?;
            if path.is_file() {
                paths.push(path);
            }
        }
        if paths.len() == before {
            return Err(wrong("matches no file, expected at least one".to_owned()));
        }
        if paths.len() > FILES {
            return Err(wrong(format!("matches more than {FILES} files")));
        }
    }
    let mut seen = std::collections::HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml", "c.txt", "deep/er/d.yaml"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let check = |patterns: &[&str], expected: Result<&[&str], &str>| {
            let root = folder.path().display();
            let patterns: Vec<_> = patterns.iter().map(|pattern| format!("{root}/{pattern}")).collect();
            let named = |path: PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
            match (paths(&patterns), expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found.into_iter().map(named).collect::<Vec<_>>(), expected)
                }
                (Err(error), Err(expected)) => {
                    assert_eq!(error.to_string(), format!("`{root}/{expected}"));
                }
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        };
        check(&["b.yaml", "*.yaml"], Ok(&["b.yaml", "a.yaml"]));
        check(&["**/*.yaml"], Ok(&["a.yaml", "b.yaml", "deep/er/d.yaml"]));
        check(&["?.txt"], Ok(&["c.txt"]));
        // A plain path is taken as it is; reading it says what is wrong.
        check(&["missing.yaml"], Ok(&["missing.yaml"]));
        check(&["a.yaml", "*.json"], Err("*.json` matches no file, expected at least one"));
        check(&["deep/*"], Err("deep/*` matches no file, expected at least one"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let missing = load(&["/nonexistent/slo.yaml".to_owned()]).unwrap_err().to_string();
        let expected = "failed to read the objectives of `/nonexistent/slo.yaml`: No such file";
        assert!(missing.starts_with(expected), "{missing}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "#".repeat(2 << 20)).unwrap();
        let huge = load(&[file.path().display().to_string()]).unwrap_err().to_string();
        assert!(huge.ends_with("more than 1048576 bytes"), "{huge}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "apiVersion: openslo/v1\nkind: SLO\nmetadata:\n  name: x\nspec:\n  service: y\n";
        std::fs::write(file.path(), text).unwrap();
        let error = load(&[file.path().display().to_string()]).unwrap_err();
        let place = file.path().display().to_string();
        assert!(error.to_string().starts_with(&place) && !error.to_string().contains('\n'), "{error}");
        assert!(matches!(error, FilesError::Wrong { .. }), "{error:?}");
    }
}
