//! How to leave each function of a file, for the kernel side: it walks the stacks of programs without frame pointers.
//!
//! In: an ELF file. Out: [`Table`]s for the kernel's map `unwind_chunk`. Refuses to know who maps the file.
#![forbid(unsafe_code)]

pub mod file;
mod frame;
mod go;
pub mod rule;
pub mod table;

use gimli::{BaseAddresses, DebugFrame, EhFrame, EhFrameHdr, LittleEndian, Pointer};

pub use self::file::Reason;
use self::file::{Headers, Machine, Part, read};
use self::frame::Functions;
pub use self::table::{Row, Table};
use super::tls::elf::Source;

/// The largest section of unwind information that is read: a browser's engine has 20 MB.
const SECTION_BYTES: u64 = 64 << 20;
const HEADER_BYTES: u64 = 16;
/// The largest tables of Go's that are read: a cluster's control plane in one file has 40 MB.
const GO_BYTES: u64 = 128 << 20;

/// The tables of a file, for the machine that we run on.
///
/// # Errors
/// When the file has none.
pub fn build(source: &dyn Source) -> Result<Vec<Table>, Reason> {
    let headers = Headers::read(source)?;
    if headers.machine != Machine::OWN {
        return Err(Reason::Foreign);
    }
    let tables = Table::cut(&rows(source)?);
    if tables.is_empty() { Err(Reason::Silent) } else { Ok(tables) }
}

/// The rows of a file, for whatever machine.
///
/// # Errors
/// When the file has none.
pub fn rows(source: &dyn Source) -> Result<Vec<Row>, Reason> {
    let headers = Headers::read(source)?;
    let text = headers.section(".text").map_or(0, |text| text.address);
    let mut functions = Functions::default();
    go_functions(&headers, source, &mut functions)?;
    if let Some(part) = frame_section(&headers, source)? {
        let bytes = read(source, part, SECTION_BYTES, "unwind information")?;
        let section = EhFrame::new(&bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(part.address).set_text(text);
        frame::rows(headers.machine, &section, &bases, &mut functions);
    }
    // What has only the debuggers' information has it for all of its code.
    if functions.is_empty()
        && let Some(part) = headers.section(".debug_frame")
    {
        let bytes = read(source, part, SECTION_BYTES, "unwind information for debuggers")?;
        let mut section = DebugFrame::new(&bytes, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_text(text);
        frame::rows(headers.machine, &section, &bases, &mut functions);
    }
    let rows = functions.join();
    if rows.is_empty() { Err(Reason::Silent) } else { Ok(rows) }
}

/// Those of Go's compiler; code of other compilers in the same file has `.eh_frame`.
fn go_functions(headers: &Headers, source: &dyn Source, into: &mut Functions) -> Result<(), Reason> {
    let names = [".gopclntab", ".data.rel.ro.gopclntab"];
    let Some(part) = names.iter().find_map(|name| headers.section(name)) else { return Ok(()) };
    let bytes = read(source, part, GO_BYTES, "Go's tables")?;
    let Some(module) = go::Module::read(&bytes) else { return Ok(()) };
    let described = headers.section(".go.module").and_then(|part| {
        let most = (go::TEXT_WORD as u64 + 1) * 8;
        let bytes = read(source, Part { length: part.length.min(most), ..part }, most, "Go's module").ok()?;
        go::u64_at(&bytes, go::TEXT_WORD * 8).filter(|address| *address != 0)
    });
    // Where neither says it, all code of the file is Go's, if it has the right length.
    let whole = headers.section(".text").filter(|text| module.code_bytes() == Some(text.length));
    if let Some(text) = module.text().or(described).or(whole.map(|text| text.address)) {
        module.rows(headers.machine, text, into);
    }
    Ok(())
}

/// Where `.eh_frame` is: a section, or what the mapped header points to, to the end of what is mapped there.
fn frame_section(headers: &Headers, source: &dyn Source) -> Result<Option<Part>, Reason> {
    if let Some(section) = headers.section(".eh_frame") {
        return Ok(Some(section));
    }
    let Some(header) = headers.frame_header() else { return Ok(None) };
    let start = Part { length: header.length.min(HEADER_BYTES), ..header };
    let bytes = read(source, start, HEADER_BYTES, "header of the unwind information")?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address);
    let parsed = EhFrameHdr::new(&bytes, LittleEndian).parse(&bases, 8);
    let pointer = parsed.map(|parsed| parsed.eh_frame_ptr());
    Ok(match pointer {
        Ok(Pointer::Direct(address)) => headers.mapped(address),
        _ => None,
    })
}
