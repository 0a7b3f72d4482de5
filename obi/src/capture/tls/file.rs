//! A file's probe points.
//!
//! In: an ELF file. Out: where the kernel programs go in it; none where it has no TLS functions by name.
#![forbid(unsafe_code)]

use object::elf;

use super::code::CODE_BYTES;
use super::elf::{ElfError, Found, Image, Source};
use super::point::{Machine, NAMES, ProbePoint, Symbol, Text, plan};

/// The probe points of a file.
///
/// # Errors
/// When it is no program, cannot be read, or is malformed.
pub fn probe_points(source: &dyn Source) -> Result<Vec<ProbePoint>, ElfError> {
    let image = Image::read(source)?;
    points(&image, source)
}

/// The probe points of a file whose headers are known.
pub(super) fn points(image: &Image, source: &dyn Source) -> Result<Vec<ProbePoint>, ElfError> {
    let machine = match image.machine() {
        elf::EM_X86_64 => Machine::X86,
        _ => Machine::Other,
    };
    let file = File { image, source };
    let symbols: Vec<Symbol> = image
        .functions(source, &NAMES)?
        .into_iter()
        .filter_map(|Found { name, address, size }| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            // Hand-written assembly states no size; what follows it ends the look soon.
            let most = if size == 0 { CODE_BYTES } else { size.min(CODE_BYTES) };
            Some(Symbol { name, address, code: image.code(source, address, most)? })
        })
        .collect();
    Ok(plan(&symbols, machine, &file))
}

struct File<'a> {
    image: &'a Image,
    source: &'a dyn Source,
}

impl Text for File<'_> {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        self.image.code(self.source, address, CODE_BYTES)
    }

    fn offset(&self, address: u64) -> Option<u64> {
        self.image.offset(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use super::super::elf::OpenFile;

    #[test]
    fn show() {
        for path in ["/usr/lib/x86_64-linux-gnu/libssl.so.3","/usr/lib/x86_64-linux-gnu/libcrypto.so.3","/usr/bin/node","/usr/lib/x86_64-linux-gnu/libssl3.so"] {
            let file = std::fs::File::open(path).unwrap();
            let length = file.metadata().unwrap().len();
            let started = std::time::Instant::now();
            let points = probe_points(&OpenFile{file,length});
            println!("{path} {:?}", started.elapsed());
            for p in points.unwrap() { println!("{p:x?}"); }
        }
    }
}
