//! What `doctor` reports of the spool.
//!
//! In: key `export.spool`. Out: whether its folder can be used, and what is free there. Changes nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::config;
use crate::export::spool;

/// Everything about the spool.
#[derive(Debug, Serialize)]
pub(super) struct Spool {
    /// Bytes of its files at most; 0: it is not wanted.
    bytes: u64,
    directory: PathBuf,
    /// Bytes that the file system has free.
    free_bytes: Option<u64>,
    /// Why it cannot be used.
    error: Option<String>,
}

impl Spool {
    pub(super) fn new(config: &config::spool::Spool) -> Self {
        let (bytes, directory) = (config.bytes, config.directory.clone());
        let probed = (bytes > 0).then(|| spool::probe(&directory));
        let (free_bytes, error) = match probed {
            None => (None, None),
            Some(Ok(free)) => (Some(free), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Self { bytes, directory, free_bytes, error }
    }

    pub(super) fn write(&self, text: &mut String) {
        let directory = self.directory.display();
        let _ = match (self.bytes, &self.error) {
            (0, _) => writeln!(text, "\nspool of exports: off (export.spool.bytes)"),
            (_, Some(error)) => writeln!(
                text,
                "\nspool of exports: none, what is not taken waits in memory only\n  because: {error}\n  -> a folder \
                 that the agent's user may write to: export.spool.directory"
            ),
            (bytes, None) => writeln!(
                text,
                "\nspool of exports: {} MiB at most in `{directory}`, where {} MiB are free",
                bytes >> 20,
                self.free_bytes.unwrap_or_default() >> 20
            ),
        };
    }
}
