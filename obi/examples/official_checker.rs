//! Holds what we export as profiles against OpenTelemetry's own checker, `profcheck`.
//!
//! In: the checker, from `PROFCHECK` or built from its Go module. Out: what was judged, or the first thing on which the
//! two sides disagree; then it fails, as it does when the checker cannot be had.
//!
//! `make check-profiles` runs it. It is no part of `make test`, because not everybody's Go module proxy has the module.
//! The checker's rules are tested there all the same, as they were ported (`integration/src/otlp/profile_rules.rs`).

#![allow(clippy::unwrap_used, reason = "the helpers are those of tests")]

#[path = "../tests/library/profile_formats/broken.rs"]
mod broken;
#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/library/profile_formats/selection.rs"]
mod selection;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use integration::program;
use obi::export::otlp::profile;
use prost::Message as _;

/// At the commit that the ported rules were compared with.
const CHECKER: &str = "github.com/open-telemetry/sig-profiling/profcheck/cmd/profcheck@d2ab6d50";
const SEEDS: u64 = 200;
const PART_BYTES: usize = 20_000;

fn main() -> anyhow::Result<()> {
    let checker = checker()?;
    let mut n_parts = 0;
    for seed in 0..SEEDS {
        for request in profile::encode_within(&selection::random(seed, 100), PART_BYTES) {
            if let Some(complaint) = complaint(&checker, &request.bytes)? {
                bail!("seed {seed}: the checker refuses what we export: {complaint}");
            }
            n_parts += 1;
        }
    }
    let broken = broken::broken();
    for (name, message) in &broken {
        if complaint(&checker, &message.encode_to_vec())?.is_none() {
            bail!("{name}: the checker takes what our rules call broken");
        }
    }
    let imperfect = broken::imperfect();
    for (name, message) in &imperfect {
        if let Some(complaint) = complaint(&checker, &message.encode_to_vec())? {
            bail!("{name}: the checker refuses what only our stricter rules do: {complaint}");
        }
    }
    println!(
        "{}: {n_parts} requests of ours taken, {} broken messages refused, {} imperfect ones taken",
        checker.display(),
        broken.len(),
        imperfect.len()
    );
    Ok(())
}

fn checker() -> anyhow::Result<PathBuf> {
    match std::env::var_os("PROFCHECK") {
        Some(path) => Ok(path.into()),
        None => program::go_published(CHECKER, "profcheck")
            .context("failed to build the checker; set PROFCHECK to where it is"),
    }
}

/// What the checker has against a message.
fn complaint(checker: &Path, message: &[u8]) -> anyhow::Result<Option<String>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), message)?;
    let output = Command::new(checker)
        .arg("-check-dupes")
        .arg(file.path())
        .output()
        .with_context(|| format!("failed to run `{}`", checker.display()))?;
    match output.status.code() {
        Some(0) => Ok(None),
        // It says so on standard output; a crash says something else.
        Some(1) if !output.stdout.is_empty() => {
            Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        _ => bail!("the checker ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
