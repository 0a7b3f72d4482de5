//! CPython's contexts: the functions that copy and free them.
//!
//! In: a CPython, or its library. Out: [`Contexts`]. The function that frees them has no name; their type refers to it,
//! in the file itself or by what the loader is to write there. Refuses to know what is done with it. Pure.

use super::{File, RUNTIME, STATE, VERSION, VERSION_TEXT, layout};
use crate::capture::executable::elf::Elf;
use crate::capture::guest::{relocation, symbol};
use crate::capture::tls::elf::Source;

/// Addresses in the file's own layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contexts {
    /// `PyContext_CopyCurrent`
    pub copy: u64,
    /// What frees one.
    pub free: u64,
    /// Where in a thread's state its descriptor is, bytes.
    pub thread_id: u16,
}

const COPY: &str = "PyContext_CopyCurrent";
pub(in crate::capture::guest) const EXPORTED: &[u8] = COPY.as_bytes();
const TYPE: &str = "PyContext_Type";
const NAMES: [&str; 6] = [COPY, TYPE, RUNTIME, STATE, VERSION, VERSION_TEXT];
/// `tp_dealloc`, of a type.
const TYPE_FREE: u64 = 48;

/// As [`crate::capture::guest::contexts`].
pub(in crate::capture::guest) fn contexts(source: &dyn Source) -> Option<Contexts> {
    let elf = Elf::read(source).ok().filter(|elf| elf.machine == object::elf::EM_X86_64)?;
    let mut found = [None; NAMES.len()];
    symbol::linked(&elf, source, |name, symbol| {
        if let Some(index) = NAMES.iter().position(|wanted| wanted.as_bytes() == name) {
            found[index].get_or_insert(symbol);
        }
    });
    let [copy, of_type, runtime, state, version, text] = found;
    let (copy, of_type, runtime) = (copy?, of_type?, runtime?);
    // By its key a thread's state is found.
    state?;
    let file = File { elf: &elf, source };
    let version = file.version(version, text).filter(|version| layout::VERSIONS.contains(&version.minor))?;
    let thread_id = layout::of_threads(version, &file, runtime.address).ok()?.thread_id;
    let free = file.pointer(of_type.address.checked_add(TYPE_FREE)?)?;
    Some(Contexts { copy: copy.address, free, thread_id })
}

impl File<'_> {
    /// The address that the loader leaves at this one.
    fn pointer(&self, at: u64) -> Option<u64> {
        let mut written = relocation::pointers(self.elf, self.source).into_iter();
        let written = written.find(|pointer| pointer.at == at).map(|pointer| pointer.to);
        let in_the_file = || {
            let word = self.bytes(at, 8)?;
            word.first_chunk().copied().map(u64::from_le_bytes).filter(|address| *address != 0)
        };
        written.or_else(in_the_file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::capture::guest::Followed;

    /// Of this machine, read as files.
    #[test]
    fn the_interpreter_of_this_machine_tells_where_contexts_are_freed() {
        let bytes = fs::read("/usr/bin/python3.11").unwrap();
        let found = contexts(&bytes.as_slice()).unwrap();
        assert_eq!(found.thread_id, 152);
        let elf = Elf::read(&bytes.as_slice()).unwrap();
        let code =
            elf.segments.iter().find(|segment| found.copy.wrapping_sub(segment.address) < segment.length);
        assert!(code.is_some_and(|code| found.free.wrapping_sub(code.address) < code.length), "{found:?}");
        let followed = |path: &str| crate::capture::guest::followed(&fs::read(path).unwrap().as_slice());
        assert_eq!(followed("/usr/bin/python3.11"), Followed { python: true, ..Followed::default() });
        assert_eq!(followed("/bin/sh"), Followed::default());
        assert_eq!(contexts(&&b"#!/bin/sh"[..]), None);
        assert_eq!(contexts(&fs::read("/proc/self/exe").unwrap().as_slice()), None);
    }

    #[test]
    fn a_damaged_file_is_taken() {
        let whole = fs::read("/usr/bin/python3.11").unwrap();
        for length in [100, 1_000, 100_000, whole.len() / 2, whole.len() - 1] {
            let _ = contexts(&&whole[..length]);
        }
    }
}
