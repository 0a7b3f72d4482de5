//! Where unnamed functions begin.
//!
//! In: an ELF file and an address in its code. Out: the first address of the function around it, from the sorted table
//! that exception handling searches (`.eh_frame_hdr`, LSB Core 4.1 §10.6.2), which stripping leaves in place. A few
//! small reads an address; nothing is kept. Refuses to know how frames are left.

use crate::capture::executable::elf::{Elf, Section};
use crate::capture::tls::elf::Source;

/// `version`, then the encodings of what follows: all that linkers write.
const KNOWN: [u8; 4] = [1, PC_RELATIVE_4, UNSIGNED_4, TABLE_RELATIVE_4];
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const PC_RELATIVE_4: u8 = 0x1b;
/// `DW_EH_PE_udata4`.
const UNSIGNED_4: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const TABLE_RELATIVE_4: u8 = 0x3b;
/// The four encodings, the address of `.eh_frame`, and the number of rows.
const HEADER: u64 = 12;
/// Beginning of a function, and its description.
const ROW: u64 = 8;

/// The first address of the function that `address` lies in; `None` when the file does not say.
#[must_use]
pub(super) fn function_start(source: &dyn Source, elf: &Elf, address: u64) -> Option<u64> {
    // Its last function goes on for ever, as far as the table says.
    let is_code =
        |section: &&Section| section.is_executable && address.wrapping_sub(section.address) < section.length;
    elf.sections.iter().find(is_code)?;
    let table = elf.section(".eh_frame_hdr")?;
    let mut header = [0; HEADER as usize];
    source.read_at(table.offset, &mut header).ok()?;
    let [a, b, c, d, _, _, _, _, rows @ ..] = header;
    if [a, b, c, d] != KNOWN {
        return None;
    }
    let rows = u64::from(u32::from_le_bytes(rows)).min(table.length.saturating_sub(HEADER) / ROW);
    let start = |row: u64| -> Option<u64> {
        let mut offset = [0; 4];
        source.read_at(table.offset.checked_add(HEADER + row * ROW)?, &mut offset).ok()?;
        Some(table.address.wrapping_add_signed(i32::from_le_bytes(offset).into()))
    };
    // Rows before `low` begin at or before the address, those from `high` on behind it.
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = u64::midpoint(low, high);
        if start(middle)? <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    start(low.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;
    use crate::capture::tls::elf::OpenFile;

    const PROGRAM: &str = "__attribute__((noinline)) int first(int n) { return n * 3; }\n\
        __attribute__((noinline)) int second(int n) { return first(n) + 5; }\n\
        int main(int n, char **v) { return second(n); }\n";

    /// Every address of a function leads to the symbol that the linker knew, also when the file is stripped.
    #[test]
    fn addresses_lead_to_the_beginnings_of_functions() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.c"), PROGRAM).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run("cc", &["-O1", "-o", "a", "a.c"]);
        let symbols = run("nm", &["-S", "a"]);
        run("strip", &["-o", "b", "a"]);
        let file = File::open(path("b")).unwrap();
        let source = OpenFile { length: file.metadata().unwrap().len(), file };
        let elf = Elf::read(&source).unwrap();
        assert!(elf.section(".symtab").is_none());
        for name in ["first", "second", "main"] {
            let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
            let [begin, size] =
                [0, 1].map(|at| u64::from_str_radix(line.split_whitespace().nth(at).unwrap(), 16).unwrap());
            for address in begin..begin + size {
                assert_eq!(function_start(&source, &elf, address), Some(begin), "{name} {address:#x}");
            }
        }
        assert_eq!(function_start(&source, &elf, 0), None);
    }

    /// Whatever the table says, it is an address or nothing.
    #[test]
    fn hostile_tables_are_searched_to_an_end() {
        let section = |name: &str, length: u64| Section {
            name: name.to_owned(),
            kind: 1,
            address: 0x1000,
            offset: 0,
            length,
            link: 0,
            entry: 0,
            is_packed: false,
            is_executable: name == ".text",
        };
        let check = |bytes: &[u8], length: u64, expected: Option<u64>| {
            let elf = Elf {
                machine: 62,
                sections: vec![section(".text", 9), section(".eh_frame_hdr", length)],
                segments: Vec::new(),
            };
            assert_eq!(function_start(&bytes, &elf, 0x1005), expected, "{bytes:?} {length}");
        };
        let header = |rows: u32| [KNOWN.as_slice(), &[0; 4], &rows.to_le_bytes()].concat();
        let with = |rows: u32, starts: &[i32]| {
            let body = starts.iter().flat_map(|start| [start.to_le_bytes(), [0; 4]].concat());
            header(rows).into_iter().chain(body).collect::<Vec<u8>>()
        };
        check(&[], 0, None);
        check(&[], u64::MAX, None);
        check(&header(0), 12, None);
        check(&header(u32::MAX), u64::MAX, None);
        check(&header(u32::MAX), 12, None);
        check(&with(1, &[3]), 20, Some(0x1003));
        check(&with(1, &[6]), 20, None);
        check(&with(2, &[3, 5]), 28, Some(0x1005));
        check(&with(2, &[5, 3]), 28, Some(0x1003));
        check(&with(1, &[i32::MIN]), 20, None);
        check(&with(1, &[-0x1000]), 20, Some(0));
        check(&[[2].as_slice(), &with(1, &[3])[1..]].concat(), 20, None);
    }
}
