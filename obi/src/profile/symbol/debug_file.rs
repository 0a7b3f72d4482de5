//! Files of debug information beside stripped programs.
//!
//! In: a program, where it lies and the root of those who run it. Out: the file that holds its symbols: by build id
//! (`/usr/lib/debug/.build-id/ab/cdef.debug`), by its link (`.gnu_debuglink`, checked by its checksum), or packed
//! inside it (`.gnu_debugdata`). Looks in the root of the process first, then in the machine's. Refuses to fetch
//! anything.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::{OpenFile, Source};
use crate::capture::tls::place::Root;

const FOLDER: &str = "usr/lib/debug";
const PACKED_BYTES: u64 = 8 * 1024 * 1024;
/// What a dictionary of `xz -9` needs.
const UNPACKER_KIBIBYTES: u32 = 80 * 1024;
const CHUNK: usize = 256 * 1024;

/// A file that was found and belongs to the program.
#[derive(Debug)]
pub struct DebugFile {
    /// Its bytes.
    pub file: OpenFile,
    /// Its headers.
    pub elf: Elf,
}

/// Looks for the file that the program points to, of at most `limit` bytes where it has to be read whole.
#[must_use]
pub fn find(source: &dyn Source, elf: &Elf, path: &str, root: &Path, limit: u64) -> Option<DebugFile> {
    let machine = Path::new("/");
    let roots = [Some(root), (root != machine).then_some(machine)];
    let build_id = elf.build_id(source);
    let link = elf.debug_link(source);
    for root in roots.into_iter().flatten() {
        // Whose program it is may have made links and names that lead anywhere: they stay below its root.
        let Ok(root) = Root::at(root) else { continue };
        if let Some(id) = &build_id
            && let Some(found) = open(&root, &by_build_id(id))
            && found.elf.build_id(&found.file).as_ref() == Some(id)
        {
            return Some(found);
        }
        let Some(link) = &link else { continue };
        for candidate in by_link(path, &link.name) {
            let found = open(&root, &candidate).filter(|found| found.file.length <= limit);
            if let Some(found) = found
                && checksum(&found.file) == Some(link.checksum)
            {
                return Some(found);
            }
        }
    }
    None
}

/// The symbols that are packed inside the program, at most `limit` bytes.
#[must_use]
pub fn packed(source: &dyn Source, elf: &Elf, limit: u64) -> Option<Vec<u8>> {
    let bytes = elf.section(".gnu_debugdata")?.bytes(source, PACKED_BYTES).ok()?;
    let mut out = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(bytes.as_slice(), false, UNPACKER_KIBIBYTES);
    reader.take(limit + 1).read_to_end(&mut out).ok()?;
    (out.len() as u64 <= limit).then_some(out)
}

fn by_build_id(id: &[u8]) -> PathBuf {
    let mut name = format!("{FOLDER}/.build-id/");
    for (at, byte) in id.iter().enumerate() {
        let _ = write!(name, "{byte:02x}{}", if at == 0 { "/" } else { "" });
    }
    name.push_str(".debug");
    name.into()
}

fn by_link(program: &str, name: &str) -> [PathBuf; 3] {
    let folder = Path::new(program).parent().unwrap_or(Path::new("/"));
    let folder = folder.strip_prefix("/").unwrap_or(folder);
    [folder.join(name), folder.join(".debug").join(name), Path::new(FOLDER).join(folder).join(name)]
}

fn open(root: &Root, path: &Path) -> Option<DebugFile> {
    let file = root.open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let file = OpenFile { file, length };
    let elf = Elf::read(&file).ok()?;
    Some(DebugFile { file, elf })
}

fn checksum(source: &dyn Source) -> Option<u32> {
    let mut sum = flate2::Crc::new();
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < source.length() {
        let length = usize::try_from(source.length() - at).unwrap_or(CHUNK).min(CHUNK);
        source.read_at(at, &mut chunk[..length]).ok()?;
        sum.update(&chunk[..length]);
        at += length as u64;
    }
    Some(sum.sum())
}
