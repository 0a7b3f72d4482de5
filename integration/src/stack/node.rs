//! Towers of JavaScript functions that never mix, and a judgement over samples of them.
//!
//! In: a Node. Out: a running program of `workload/towers.js`, what it says that its stacks are, and how many
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
    /// Of Node: `v20.20.2`.
    pub version: String,
    /// Process.
    pub program: Program,
    towers: Vec<Vec<Guest>>,
    inlines: bool,
    _folder: TempDir,
}

/// What makes each function a frame of its own; a Node knows some of them.
const NOT_INLINED: [&str; 2] = ["--no-turbo-inlining", "--no-maglev-inlining"];
/// Functions of the program around its towers.
const AROUND: [&str; 4] = ["spin", "work", "turn", "main"];
/// What of Node's own code calls the outermost function.
const CALLER: &str = "Builtins_";
/// Native frames between an outermost function and that.
const BETWEEN: usize = 2;

impl Towers {
    /// Starts it in a Node. `inlines`: the compiler may put functions into their callers, so that some have no frame.
    ///
    /// # Errors
    /// When it does not start, or says what cannot be understood.
    pub fn start(node: &Path, inlines: bool) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let name = node.to_string_lossy().replace(['/', '.'], "-");
        let service = format!("towers{name}{}", if inlines { "-inlined" } else { "" });
        let options = Command::new(node).arg("--v8-options").output().context("ask Node for its options")?;
        let options = String::from_utf8_lossy(&options.stdout);
        let is_known = |flag: &&&str| options.contains(&flag.replace("--no-", "--"));
        let flags: Vec<&&str> = NOT_INLINED.iter().filter(|_| !inlines).filter(is_known).collect();
        let mut command = Command::new(node);
        command.args(flags).arg(program::source("towers.js")).arg(folder.path());
        command.env("OTEL_SERVICE_NAME", &service);
        let mut program = Program::spawn(&service, command)?;
        let mut towers = Vec::new();
        for _ in 0..3 {
            towers.push(tower(&program.await_line("tower ", READY)?)?);
        }
        let version = program.await_line("ready ", READY)?;
        Ok(Self { service, version, program, towers, inlines, _folder: folder })
    }

    /// What samples show.
    #[must_use]
    pub fn judge(&self, samples: &[Sampled]) -> Verdict {
        judge(self, samples)
    }

    /// Functions of the program of a sample, outermost first: neither Node's own, nor those of the language.
    fn own<'a>(&self, sample: &'a Sampled) -> Vec<&'a Guest> {
        let of_program = |guest: &&Guest| !guest.file.starts_with("node:") && !is_of_the_language(guest);
        sample.guests.iter().rev().filter(of_program).collect()
    }

    /// Whether what is shown of a tower is: all of it from the outermost on, or with inlining some of it in order.
    fn is_of(&self, known: &[Guest], shown: &[&Guest]) -> bool {
        let is_same = |known: &Guest, shown: &Guest| {
            // So V8 calls what reads a property.
            let name = shown.name.strip_prefix("get ").unwrap_or(&shown.name);
            (&*known.name, &known.file, known.start_line) == (name, &shown.file, shown.start_line)
        };
        if !self.inlines {
            let mut pairs = known.iter().zip(shown);
            return known.len() >= shown.len() && pairs.all(|(known, shown)| is_same(known, shown));
        }
        let mut left = known.iter();
        shown.iter().all(|shown| left.any(|known| is_same(known, shown)))
    }
}

/// Without a script: `map`, `sort`. Of what was a text the script has no name either, and its functions have lines.
fn is_of_the_language(guest: &Guest) -> bool {
    guest.file.is_empty() && guest.start_line == 0 && !is_unnamed(guest)
}

/// An address stands for it.
fn is_unnamed(guest: &Guest) -> bool {
    guest.name.starts_with('[')
}

fn is_around(guest: &Guest) -> bool {
    AROUND.contains(&&*guest.name) && guest.file.ends_with("/towers.js")
}

impl Judge for Towers {
    fn is_right(&self, sample: &Sampled) -> bool {
        let own = self.own(sample);
        let around = own.iter().take_while(|guest| is_around(guest)).count();
        let tower = &own[around..];
        // Nothing but Node's: between two turns of its loop.
        own.is_empty() || (around > 0 && self.towers.iter().any(|known| self.is_of(known, tower)))
    }

    /// Where in its function a frame is, is not known.
    fn has_lines(&self, _sample: &Sampled) -> bool {
        true
    }

    /// V8's own code, which calls functions of the program, stands behind the outermost of them.
    fn is_in_place(&self, sample: &Sampled) -> bool {
        let Some(outermost) = sample.guests.last() else { return false };
        let last =
            sample.frames.iter().rposition(|frame| frame.name == outermost.name && frame.file.is_empty());
        let behind = last.map(|last| &sample.frames[last + 1..]).unwrap_or_default();
        behind.iter().take(BETWEEN).any(|frame| frame.name.starts_with(CALLER) || frame.file.contains("node"))
    }
}

fn tower(line: &str) -> anyhow::Result<Vec<Guest>> {
    let function = |word: &str| {
        let (name, place) = word.split_once('@')?;
        let (file, line) = place.rsplit_once(':')?;
        let start_line = line.parse().ok()?;
        Some(Guest { name: name.to_owned(), file: file.to_owned(), line: start_line, start_line })
    };
    line.split_whitespace()
        .map(|word| function(word).with_context(|| format!("no function: `{word}`")))
        .collect()
}

/// The Node that is installed; where `wanted` is a path, the one there.
///
/// # Errors
/// When there is none.
pub fn node(wanted: Option<&str>) -> anyhow::Result<PathBuf> {
    if let Some(path) = wanted.filter(|wanted| wanted.starts_with('/')) {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join("node"));
    found.find_map(|node| node.canonicalize().ok()).context("no Node is installed")
}
