//! Names of the stubs through which programs call libraries.
//!
//! In: an ELF file and an address in one of its tables of stubs. Out: `malloc@plt`. A stub jumps to where a word of the
//! table of addresses points, a relocation fills this word, and the relocation names the function. Refuses to know what
//! is behind the stub.

use object::LittleEndian as Little;
use object::elf;
use object::pod;

use crate::capture::executable::elf::{Elf, Section};
use crate::capture::tls::elf::Source;

const STUBS: [&str; 3] = [".plt.sec", ".plt.got", ".plt"];
const STUB: u64 = 16;
const TABLE_BYTES: u64 = 4 * 1024 * 1024;
const LONGEST: usize = 1024;

/// The function that a stub calls; `None` if the address is in no stub.
#[must_use]
pub fn name(source: &dyn Source, elf: &Elf, address: u64) -> Option<String> {
    let stubs = STUBS.iter().filter_map(|name| elf.section(name));
    let section = { stubs }.find(|section| address.wrapping_sub(section.address) < section.length)?;
    let slot = slot(source, elf.machine, section, address)?;
    let name = [".rela.plt", ".rela.dyn"].iter().find_map(|table| {
        let table = elf.section(table)?;
        let symbol = relocation(source, table, slot)?;
        symbol_name(source, elf, table, symbol)
    })?;
    Some(name + "@plt")
}

/// The word that a stub jumps through.
fn slot(source: &dyn Source, machine: u16, section: &Section, address: u64) -> Option<u64> {
    // `.plt.got` without `endbr64` has stubs of 8 bytes.
    let size = if section.entry == 8 { 8 } else { STUB };
    let start = (address - section.address) / size * size;
    let mut code = [0; STUB as usize];
    let code = &mut code[..usize::try_from(size).unwrap_or_default()];
    source.read_at(section.offset.checked_add(start)?, code).ok()?;
    let begin = section.address.checked_add(start)?;
    match machine {
        elf::EM_X86_64 => {
            // jmp *offset(%rip)
            let at = code.windows(2).position(|pair| pair == [0xff, 0x25])?;
            let offset = i32::from_le_bytes(*code.get(at + 2..)?.first_chunk()?);
            Some(begin.wrapping_add(at as u64 + 6).wrapping_add_signed(offset.into()))
        }
        elf::EM_AARCH64 => {
            // adrp x16, page; ldr x17, [x16, #offset]; perhaps behind a landing pad.
            let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
            let at = words.iter().position(|word| word & 0x9f00_001f == 0x9000_0010)?;
            let (adrp, load) = (words[at], *words.get(at + 1)?);
            let pages = i64::from(((adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3).cast_signed() << 11 >> 11);
            let place = begin.wrapping_add(at as u64 * 4) & !0xfff;
            let page = place.wrapping_add_signed(pages << 12);
            (load & 0xffc0_0000 == 0xf940_0000).then(|| page + u64::from(load >> 10 & 0xfff) * 8)
        }
        _ => None,
    }
}

/// The symbol of the relocation of this word.
fn relocation(source: &dyn Source, table: &Section, slot: u64) -> Option<u32> {
    let bytes = table.bytes(source, TABLE_BYTES).ok()?;
    let whole = bytes.len() / size_of::<elf::Rela64<Little>>() * size_of::<elf::Rela64<Little>>();
    let all = pod::slice_from_all_bytes::<elf::Rela64<Little>>(&bytes[..whole]).ok()?;
    let found = all.iter().find(|relocation| relocation.r_offset.get(Little) == slot)?;
    Some(found.r_sym(Little, false)).filter(|symbol| *symbol != 0)
}

fn symbol_name(source: &dyn Source, elf: &Elf, table: &Section, symbol: u32) -> Option<String> {
    let symbols = elf.sections.get(usize::try_from(table.link).ok()?)?;
    let names = elf.sections.get(usize::try_from(symbols.link).ok()?)?;
    let size = size_of::<elf::Sym64<Little>>() as u64;
    let mut bytes = [0; size_of::<elf::Sym64<Little>>()];
    source.read_at(symbols.offset.checked_add(u64::from(symbol) * size)?, &mut bytes).ok()?;
    let (symbol, _) = pod::from_bytes::<elf::Sym64<Little>>(&bytes).ok()?;
    let place = u64::from(symbol.st_name.get(Little));
    let length = names.length.checked_sub(place)?.min(LONGEST as u64);
    let mut name = vec![0; usize::try_from(length).ok()?];
    source.read_at(names.offset.checked_add(place)?, &mut name).ok()?;
    let end = name.iter().position(|byte| *byte == 0)?;
    name.truncate(end);
    String::from_utf8(name).ok().filter(|name| !name.is_empty())
}
