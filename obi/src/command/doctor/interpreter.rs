//! What `doctor --pid` reports of a process's interpreter.
//!
//! In: a process. Out: which interpreter it runs, and whether its functions would be seen in profiles, or why not. Does
//! what the agent would do, once.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use serde::Serialize;

use crate::capture::guest::{self, Kind, ProcessMemory, Unfit};
use crate::capture::mapping::side_band::Mapped;
use crate::capture::mapping::{ExecutableFile, listing};
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

/// Looks into what a process maps. `None`: nothing of it is an interpreter, as far as we may look.
pub(super) fn examine(pid: u32) -> Option<Interpreter> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    let mut files = listing::executed(&maps).filter(|mapped| mapped.inode != 0);
    files.find_map(|mapped| look(pid, &mapped))
}

fn look(pid: u32, mapped: &Mapped<'_>) -> Option<Interpreter> {
    let Mapped { start, offset, path: file, .. } = *mapped;
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
        let text = b"7ff0-7fff r-xp 00000000 00:00 0  [vdso]\n7000-7ff0 r-xp 00000000 00:00 0";
        let looked: Vec<_> = listing::executed(text).map(|mapped| look(1, &mapped)).collect();
        assert_eq!(looked, [None, None]);
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
