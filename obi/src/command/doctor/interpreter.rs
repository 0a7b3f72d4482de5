//! What `doctor --pid` reports of a process's interpreter.
//!
//! In: a process. Out: which interpreter it runs, and whether its functions would be seen in profiles, or why not. Does
//! what the agent would do, once.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use serde::Serialize;

use crate::capture::guest::{self, Kind, ProcessMemory, Unfit};
use crate::capture::mapping::ExecutableFile;
use crate::capture::tls::elf::OpenFile;

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Interpreter {
    /// Of which language the functions are; empty if not known.
    language: &'static str,
    /// Empty if not known.
    version: String,
    /// Where it is, as the process sees it.
    file: String,
    /// Why its functions are not seen; `None`: they are.
    off: Option<String>,
}

/// Files that a process maps to be executed at most.
const MAPPINGS: usize = 1024;

/// Looks into what a process maps. `None`: nothing of it is an interpreter, as far as we may look.
pub(super) fn examine(pid: u32) -> Option<Interpreter> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let executable = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|may| may.contains('x')));
    executable.take(MAPPINGS).find_map(|line| look(pid, line))
}

fn look(pid: u32, line: &str) -> Option<Interpreter> {
    let mut words = line.split_ascii_whitespace();
    let (start, offset) = (words.next()?.split('-').next()?, words.nth(1)?);
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, offset, file) = (number(start)?, number(offset)?, words.nth(2)?);
    let path = format!("/proc/{pid}/root{file}");
    let open = || File::open(&path).ok();
    let length = open()?.metadata().ok().filter(|metadata| metadata.mode() & 0o170_000 == 0o100_000)?.len();
    let (language, version, off) = match guest::recognise(&OpenFile { file: open()?, length })? {
        Err(Unfit::Version(version)) => {
            (Kind::Cpython.language(), version.to_string(), Some(Unfit::Version(version)))
        }
        Err(unfit) => ("", String::new(), Some(unfit)),
        Ok(build) => {
            let address = ExecutableFile::new(0, file.into(), open()?).ok()?.address(offset)?;
            let memory = ProcessMemory::open(pid).map_err(|error| Unfit::Memory(error.to_string()));
            let known = memory.and_then(|memory| build.examine(&memory, start.wrapping_sub(address)));
            let version = known.as_ref().map_or_else(|_| build.version(), |known| known.version.clone());
            (build.kind().language(), version, known.err())
        }
    };
    Some(Interpreter { language, version, file: file.to_owned(), off: off.map(|unfit| unfit.to_string()) })
}

impl fmt::Display for Interpreter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { language, version, file, off } = self;
        for word in [language, &**version].into_iter().filter(|word| !word.is_empty()) {
            write!(out, "{word} ")?;
        }
        write!(out, "in {file}: ")?;
        match off {
            None => out.write_str("its functions are in profiles"),
            Some(reason) => write!(out, "its functions are not in profiles, {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_interpreter_has_none() {
        assert_eq!(examine(std::process::id()), None);
        assert_eq!(look(1, "nothing"), None);
        assert_eq!(look(1, "7ff0-7fff r-xp 00000000 00:00 0  [vdso]"), None);
    }

    #[test]
    fn people_read_why() {
        let language = Kind::Cpython.language();
        let on =
            Interpreter { language, version: "3.11.2".into(), file: "/usr/bin/python3.11".into(), off: None };
        assert_eq!(on.to_string(), "Python 3.11.2 in /usr/bin/python3.11: its functions are in profiles");
        let off = Interpreter { off: Some(Unfit::NotBegun.to_string()), ..on };
        assert!(off.to_string().ends_with("are not in profiles, the interpreter has not begun yet"), "{off}");
    }
}
