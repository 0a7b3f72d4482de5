//! Tables of all versions, made here, and what is read from them.

use proptest::prelude::*;

use super::*;

/// A function: instructions in runs of one line of one file.
#[derive(Debug, Clone)]
struct Made {
    name: String,
    start_line: u32,
    /// Length, file, line.
    runs: Vec<(u8, u8, u16)>,
}

const FILES: [&str; 3] = ["/src/a.go", "/src/b.go", "/src/dir/c.go"];
const TEXT: u64 = 0x40_1000;

fn made() -> impl Strategy<Value = Vec<Made>> {
    let run = (1_u8..40, 0_u8..3, 1_u16..3000);
    let function = ("[a-z]{1,80}", 1_u32..9999, proptest::collection::vec(run, 1..6));
    let function = function.prop_map(|(name, start_line, runs)| Made { name, start_line, runs });
    proptest::collection::vec(function, 1..20)
}

fn varint(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Runs of values, at their place in the table of values.
fn values(runs: impl Iterator<Item = (u8, i32)>, out: &mut Vec<u8>) -> u32 {
    let at = out.len() as u32;
    let mut last = -1;
    let mut merged: Vec<(u32, i32)> = Vec::new();
    for (length, value) in runs {
        match merged.last_mut() {
            Some((total, known)) if *known == value => *total += u32::from(length),
            _ => merged.push((length.into(), value)),
        }
    }
    for (length, value) in merged {
        let change: i32 = value - last;
        varint((change << 1 ^ change >> 31) as u32, out);
        varint(length, out);
        last = value;
    }
    out.push(0);
    at
}

fn strings(texts: impl Iterator<Item = String>, out: &mut Vec<u8>) -> Vec<u32> {
    texts
        .map(|text| {
            let at = out.len() as u32;
            out.extend(text.into_bytes());
            out.push(0);
            at
        })
        .collect()
}

/// The whole table, in the layout of the version, and where each function begins.
fn encode(version: Version, functions: &[Made]) -> (Vec<u8>, Vec<u64>) {
    let wide = version <= Version::Go116;
    let (mut names, mut files, mut table) = (vec![0], vec![0], vec![0]);
    let name_places = strings(functions.iter().map(|made| made.name.clone()), &mut names);
    let file_places = strings(FILES.iter().map(|file| (*file).to_owned()), &mut files);
    let units: Vec<u8> = file_places.iter().flat_map(|place| place.to_le_bytes()).collect();
    let mut starts = Vec::new();
    let mut at = TEXT;
    let mut records: Vec<Vec<u8>> = Vec::new();
    for (made, name) in functions.iter().zip(&name_places) {
        starts.push(at);
        let file = values(made.runs.iter().map(|(length, file, _)| (*length, i32::from(*file))), &mut table);
        let line = values(made.runs.iter().map(|(length, _, line)| (*length, i32::from(*line))), &mut table);
        let mut record = Vec::new();
        if wide {
            record.extend(at.to_le_bytes());
        } else {
            record.extend(((at - TEXT) as u32).to_le_bytes());
        }
        // name, arguments, deferreturn, pcsp, pcfile, pcln, npcdata, unit, start line, flags
        for word in [*name, 0, 0, 0, file, line, 0, 0, made.start_line, 0] {
            record.extend(word.to_le_bytes());
        }
        records.push(record);
        at += made.runs.iter().map(|(length, ..)| u64::from(*length)).sum::<u64>();
    }
    let magic: u32 = match version {
        Version::Go12 => 0xffff_fffb,
        Version::Go116 => 0xffff_fffa,
        Version::Go118 => 0xffff_fff0,
        Version::Go120 => 0xffff_fff1,
    };
    let mut out = [magic.to_le_bytes(), [0, 0, 1, 8]].concat();
    let n = functions.len();
    let index_bytes = if wide { (n * 2 + 1) * 8 } else { (n * 2 + 1) * 4 };
    let index = |base: u64| {
        let mut bytes = Vec::new();
        let mut place = base;
        for (start, record) in starts.iter().zip(&records) {
            if wide {
                bytes.extend([*start, place].iter().flat_map(|word| word.to_le_bytes()));
            } else {
                bytes
                    .extend([(start - TEXT) as u32, place as u32].iter().flat_map(|word| word.to_le_bytes()));
            }
            place += record.len() as u64;
        }
        if wide {
            bytes.extend(at.to_le_bytes());
        } else {
            bytes.extend(((at - TEXT) as u32).to_le_bytes());
        }
        bytes
    };
    let all = records.concat();
    if version == Version::Go12 {
        // Everything counts from the beginning: names, values and files are moved to where they will be.
        let files_at = 16 + index_bytes + 4;
        let names_at = (files_at + 4 + FILES.len() * 4) as u32;
        let texts_at = names_at + names.len() as u32;
        let values_at = texts_at + files.len() as u32;
        let records_at = u64::from(values_at) + table.len() as u64;
        out.extend((n as u64).to_le_bytes());
        out.extend(index(records_at));
        out.extend((files_at as u32).to_le_bytes());
        out.extend((FILES.len() as u32).to_le_bytes());
        // File 0 of the table is its length; numbers of files count from there.
        out.extend(file_places.iter().flat_map(|place| (place + texts_at).to_le_bytes()));
        out.extend(names);
        out.extend(files);
        out.extend(table);
        for mut record in records {
            for (at, base) in [(8, names_at), (24, values_at), (28, values_at)] {
                let word = u32::from_le_bytes(*record[at..].first_chunk().unwrap()) + base;
                record[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            out.extend(record);
        }
        return (out, starts);
    }
    let header = if version == Version::Go116 { 8 + 7 * 8 } else { 8 + 8 * 8 };
    let names_at = header as u64;
    let units_at = names_at + names.len() as u64;
    let files_at = units_at + units.len() as u64;
    let values_at = files_at + files.len() as u64;
    let functions_at = values_at + table.len() as u64;
    let mut words = vec![n as u64, FILES.len() as u64];
    if version >= Version::Go118 {
        words.push(TEXT);
    }
    words.extend([names_at, units_at, files_at, values_at, functions_at]);
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    for part in [names, units, files, table, index(index_bytes as u64), all] {
        out.extend(part);
    }
    (out, starts)
}

const VERSIONS: [Version; 4] = [Version::Go12, Version::Go116, Version::Go118, Version::Go120];

proptest! {
    #[test]
    fn what_was_written_is_read(functions in made()) {
        for version in VERSIONS {
            let (bytes, starts) = encode(version, &functions);
            let source = bytes.as_slice();
            let table = Table::read(&source, 0).expect("a table");
            prop_assert_eq!(table.version(), version);
            let name = functions[functions.len() / 2].name.as_str();
            let wanted = &name[name.len() / 2..];
            let found = table.named(&source, &["(none)", wanted]);
            let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.wanted, it.start)).collect();
            let all = functions.iter().zip(&starts).map(|(made, start)| (made.name.as_str(), 1, *start));
            let expected: Vec<_> = all.filter(|(name, ..)| name.ends_with(wanted)).collect();
            prop_assert_eq!(found, if version == Version::Go12 { Vec::new() } else { expected });
            for (made, start) in functions.iter().zip(starts) {
                let mut at = start;
                for (length, file, line) in &made.runs {
                    // In Go 1.2 the number 0 is no file: numbers begin behind the count of files.
                    let file = match version {
                        Version::Go12 => file.checked_sub(1).map(|file| FILES[usize::from(file)].to_owned()),
                        _ => Some(FILES[usize::from(*file)].to_owned()),
                    };
                    for address in [at, at + u64::from(*length) - 1] {
                        let lines = table.lines(&source, &NoMemory, address);
                        prop_assert_eq!(lines.len(), 1, "{:?}", version);
                        prop_assert_eq!(&lines[0].function, &made.name);
                        if let Some(file) = &file {
                            prop_assert_eq!((&lines[0].file, lines[0].line), (file, u32::from(*line)), "{:?}", version);
                        }
                        let start_line = if version == Version::Go120 { made.start_line } else { 0 };
                        prop_assert_eq!(lines[0].start_line, start_line);
                    }
                    at += u64::from(*length);
                }
            }
            prop_assert!(table.lines(&source, &NoMemory, TEXT - 1).is_empty());
        }
    }

    #[test]
    fn damage_is_survived(
        functions in made(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<proptest::sample::Index>(),
        address in TEXT..TEXT + 3000,
    ) {
        for version in VERSIONS {
            let (mut bytes, _) = encode(version, &functions);
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            for source in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Some(table) = Table::read(&source, 0) {
                    for named in table.named(&source, &["a", "b"]) {
                        prop_assert!(named.name.len() <= 3 * LONGEST && named.start < named.end);
                    }
                    for line in table.lines(&source, &Anything, address) {
                        prop_assert!(line.function.len() <= 3 * (LONGEST + 64));
                    }
                }
            }
        }
    }
}

/// Whatever is asked for, there is something.
struct Anything;

impl Memory for Anything {
    fn function_data(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        buffer.fill((offset % 5) as u8);
        Some(())
    }
}
