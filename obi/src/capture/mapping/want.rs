//! What a thread that may wait should look at, so that addresses can be resolved.
//!
//! Refuses to know who asks and who looks.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::backing::Backing;

/// Something to be looked at by a thread that may wait.
#[derive(Debug, Clone)]
pub enum Want {
    /// A file that is not known yet.
    Open(Opening),
    /// A file is mapped again: is it still what its name means?
    Confirm(Opening),
    /// What a process maps.
    List(u32),
}

/// A file to be opened, and by whom it is mapped.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The file.
    pub backing: Arc<Backing>,
    /// The process.
    pub tgid: u32,
    /// Its parent, whose files it sees most likely; 0: not known.
    pub parent: u32,
    /// Addresses it is mapped at.
    pub range: (u64, u64),
}
