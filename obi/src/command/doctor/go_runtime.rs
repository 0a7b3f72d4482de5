//! What `doctor --pid` reports of a program made by Go: what its runtime keeps of memory and goroutines.
//!
//! In: a process. Out: how much that is, or why it is not read. Does what the agent would do when asked for a profile
//! of these, once.

use std::fs::File;

use serde::Serialize;

use crate::capture::go_runtime::{Program, Unread};
use crate::capture::guest::ProcessMemory;
use crate::capture::mapping::{ExecutableFile, listing};

/// A Go program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct GoRuntime {
    /// Memory in use, bytes.
    heap_bytes: Option<u64>,
    /// Why that is not known.
    heap_error: Option<String>,
    goroutines: Option<u64>,
    /// Why their number is not known.
    goroutines_error: Option<String>,
}

/// Looks into the process. `None`: it is no program made by Go, as far as we may look.
pub(super) fn examine(pid: u32) -> Option<GoRuntime> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    let mapped: Vec<_> = listing::executed(&maps).collect();
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let own = mapped.iter().find(|it| path.to_str() == Some(it.path))?;
    let file = File::open(format!("/proc/{pid}/exe")).ok()?;
    let file = ExecutableFile::new(0, own.path.into(), file).ok()?;
    if file.build_ids.go.is_empty() {
        return None;
    }
    let bias = own.start.wrapping_sub(file.address(own.offset)?);
    let source = file.source()?;
    let is_code = |address| mapped.iter().any(|it| (it.start..it.end).contains(&address));
    let memory = ProcessMemory::open(pid).map_err(|error| Unread::Memory(error.to_string()));
    let both = Program::read(&source).and_then(|program| Ok((program, memory?)));
    let both = both.as_ref().map_err(Unread::clone);
    let heap = both.clone().and_then(|(program, memory)| {
        Ok(program.heap(memory, bias)?.sites.iter().map(|site| site.in_use).sum())
    });
    let goroutines = both.and_then(|(program, memory)| {
        Ok(program.goroutines(memory, bias, is_code)?.iter().map(|some| some.n).sum())
    });
    Some(GoRuntime::new(heap, goroutines))
}

impl GoRuntime {
    fn new(heap: Result<u64, Unread>, goroutines: Result<u64, Unread>) -> Self {
        let reason = |unread: &Unread| unread.to_string();
        let (heap_bytes, heap_error) = (heap.as_ref().ok().copied(), heap.as_ref().err().map(reason));
        let (number, goroutines_error) =
            (goroutines.as_ref().ok().copied(), goroutines.as_ref().err().map(reason));
        Self { heap_bytes, heap_error, goroutines: number, goroutines_error }
    }

    /// Names and values for people.
    pub(super) fn lines(&self) -> [(&'static str, String); 2] {
        let unknown =
            |reason: &Option<String>| format!("not known: {}", reason.as_deref().unwrap_or_default());
        let heap = self.heap_bytes.map(|bytes| {
            format!("{:.1} MB in use, by the profile that Go keeps (--type heap)", bytes as f64 / 1e6)
        });
        let goroutines = self.goroutines.map(|n| format!("{n} (--type goroutines)"));
        [
            ("memory", heap.unwrap_or_else(|| unknown(&self.heap_error))),
            ("goroutines", goroutines.unwrap_or_else(|| unknown(&self.goroutines_error))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_has_not_made_has_none() {
        assert_eq!(examine(std::process::id()), None);
        assert_eq!(examine(u32::MAX / 2), None);
    }

    #[test]
    fn people_read_how_much_or_why_not() {
        let runtime = GoRuntime::new(Ok(64_200_000), Err(Unread::Table));
        let [memory, goroutines] = runtime.lines();
        assert_eq!(
            memory,
            ("memory", "64.2 MB in use, by the profile that Go keeps (--type heap)".to_owned())
        );
        assert_eq!(
            goroutines,
            ("goroutines", "not known: its table of functions is not understood".to_owned())
        );
    }
}
