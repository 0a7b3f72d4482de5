//! Towers of Python functions that never mix, and a judgement over samples of them.
//!
//! In: an interpreter. Out: a running program of `workload/towers.py`, what it says that its stacks are, and how many
//! samples show them so. Names are drawn by the program, in each run. Refuses to know who takes the samples.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use tempfile::TempDir;

use super::sampled::{Guest, Sampled};
use super::tower::{Judge, Verdict, judge};
use crate::process::{Program, READY};
use crate::program;

/// It runs. Dropping it kills it.
#[derive(Debug)]
pub struct Towers {
    /// What its samples are called by.
    pub service: String,
    /// Of its interpreter: `3.11`.
    pub version: String,
    /// Process.
    pub program: Program,
    towers: Vec<Vec<Guest>>,
    _folder: TempDir,
}

/// Functions of the program around its towers, outermost first.
const AROUND: [&str; 6] =
    ["<module>", "main", "spin", "Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run"];
/// A function of `towers.py` has so many lines at most.
const LINES: i64 = 5;
/// What runs functions of Python.
const EVAL: &str = "_PyEval_EvalFrameDefault";
/// Functions that are inlined into one at the same place.
const INLINED: usize = 6;

impl Towers {
    /// Starts it in an interpreter.
    ///
    /// # Errors
    /// When it does not start, or says what cannot be understood.
    pub fn start(interpreter: &Path, has_thread: bool) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let name = interpreter.to_string_lossy().replace(['/', '.'], "-");
        let service = format!("towers{name}{}", if has_thread { "-threads" } else { "" });
        let mut command = Command::new(interpreter);
        command.arg(program::source("towers.py")).arg(folder.path()).env("OTEL_SERVICE_NAME", &service);
        command.args(has_thread.then_some("thread"));
        let mut program = Program::spawn(&service, command)?;
        let mut towers = Vec::new();
        for _ in 0..3 {
            towers.push(tower(&program.await_line("tower ", READY)?)?);
        }
        let version = program.await_line("ready ", READY)?;
        Ok(Self { service, version, program, towers, _folder: folder })
    }

    /// What samples show.
    #[must_use]
    pub fn judge(&self, samples: &[Sampled]) -> Verdict {
        judge(self, samples)
    }

    fn is_around(&self, guest: &Guest) -> bool {
        // Before 3.11 methods do not say their class.
        let is_named = |name: &&str| **name == *guest.name || name.rsplit('.').next() == Some(&guest.name);
        AROUND.iter().any(is_named) && self.towers.iter().flatten().all(|own| own.file != guest.file)
    }
}

impl Judge for Towers {
    fn is_right(&self, sample: &Sampled) -> bool {
        let outermost_first: Vec<&Guest> = sample.guests.iter().rev().collect();
        let around = outermost_first.iter().take_while(|guest| self.is_around(guest)).count();
        let tower = &outermost_first[around..];
        around > 0
            && self.towers.iter().any(|known| {
                known.len() >= tower.len()
                    && known.iter().zip(tower).all(|(known, shown)| {
                        (&known.name, &known.file, known.start_line)
                            == (&shown.name, &shown.file, shown.start_line)
                    })
            })
    }

    fn has_lines(&self, sample: &Sampled) -> bool {
        let mut towers = sample.guests.iter().filter(|guest| !self.is_around(guest));
        towers.all(|guest| (guest.start_line..guest.start_line + LINES).contains(&guest.line))
    }

    /// The outermost function stands before the native frame that runs it, and what is inlined there.
    fn is_in_place(&self, sample: &Sampled) -> bool {
        let Some(outermost) = sample.guests.last() else { return false };
        let last =
            sample.frames.iter().rposition(|frame| frame.name == outermost.name && frame.file.is_empty());
        let behind = last.map(|last| &sample.frames[last + 1..]).unwrap_or_default();
        behind.iter().take(INLINED).any(|frame| frame.name.starts_with(EVAL))
    }
}

fn tower(line: &str) -> anyhow::Result<Vec<Guest>> {
    let mut words = line.split_whitespace();
    let file = words.next().context("a tower without a file")?.to_owned();
    let function = |word: &str| {
        let (name, line) = word.rsplit_once(':')?;
        let start_line = line.parse().ok()?;
        Some(Guest { name: name.to_owned(), file: file.clone(), line: start_line, start_line })
    };
    words.map(|word| function(word).with_context(|| format!("no function: `{word}`"))).collect()
}

/// The interpreters of this machine from 3.8 on: the one that is installed; where `wanted` says so those of pyenv whose
/// path it is part of, or `all`.
#[must_use]
pub fn interpreters(wanted: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut add = |path: PathBuf| {
        let Ok(path) = path.canonicalize() else { return };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let minor: Option<u8> = name.strip_prefix("python3.").and_then(|minor| minor.parse().ok());
        if minor.is_some_and(|minor| minor >= 8) && !found.contains(&path) {
            found.push(path);
        }
    };
    if wanted.is_none_or(|wanted| wanted == "all") {
        add("/usr/bin/python3".into());
    }
    let pyenv = std::env::var("PYENV_ROOT").or_else(|_| std::env::var("HOME").map(|home| home + "/.pyenv"));
    if let (Some(wanted), Ok(root)) = (wanted, pyenv) {
        let versions = std::fs::read_dir(Path::new(&root).join("versions")).into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin/python3")).collect();
        versions.retain(|path| wanted == "all" || path.to_string_lossy().contains(wanted));
        versions.sort();
        versions.into_iter().for_each(&mut add);
    }
    found
}
