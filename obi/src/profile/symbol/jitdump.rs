//! Code that runtimes record in `jit-PID.dump`.
//!
//! In: the file's bytes as they are appended: records of code loaded and moved, and of its lines. Out:
//! [`super::code::Code`]. Refuses to know where the file is, and the code itself, which is skipped.
//!
//! Format: `tools/perf/Documentation/jitdump-specification.txt` of the kernel.

use super::code::{Code, CodeLine};

const MAGIC: [u8; 4] = *b"DTiJ"; // 0x4A695444, little-endian
const HEADER: usize = 40;
const PREFIX: usize = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CODE_CLOSE: u32 = 3;
/// What is kept of a record that is not yet whole.
const LARGEST_RECORD: usize = 1024 * 1024;
const LONGEST_NAME: usize = 1024;
const LARGEST_CODE: u64 = 256 * 1024 * 1024;
const LINES: usize = 65_536;

/// Where reading stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JitDump {
    state: State,
    kept: Vec<u8>,
    /// Bytes of a record that are not looked at.
    skip: u64,
    /// Of the code that comes next.
    lines: Vec<CodeLine>,
    about: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Header,
    Records,
    /// Not a file of this kind, or one that has ended.
    Ended,
}

impl JitDump {
    /// Takes what follows what it was given before.
    pub fn extend(&mut self, mut bytes: &[u8], code: &mut Code) {
        while !bytes.is_empty() && self.state != State::Ended {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= skipped as u64;
            bytes = &bytes[skipped..];
            let wanted = self.wanted().saturating_sub(self.kept.len()).min(bytes.len());
            self.kept.extend_from_slice(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            if self.kept.len() >= self.wanted() {
                self.take(code);
            }
        }
    }

    /// How many bytes are needed to go on.
    fn wanted(&self) -> usize {
        match self.state {
            State::Header => HEADER,
            _ if self.kept.len() < PREFIX => PREFIX,
            _ => self.looked_at(),
        }
    }

    /// What of a record is looked at: of code, the name before it.
    fn looked_at(&self) -> usize {
        let size = self.size();
        let most = match word32(&self.kept, 0) {
            Some(CODE_LOAD) => 56 + LONGEST_NAME,
            Some(CODE_MOVE) => 64,
            Some(DEBUG_INFO) => LARGEST_RECORD,
            _ => PREFIX,
        };
        size.min(most)
    }

    fn size(&self) -> usize {
        word32(&self.kept, 4).and_then(|size| usize::try_from(size).ok()).unwrap_or_default().max(PREFIX)
    }

    fn take(&mut self, code: &mut Code) {
        let kept = std::mem::take(&mut self.kept);
        if self.state == State::Header {
            let size = word32(&kept, 8).unwrap_or_default();
            let is_ours = kept.starts_with(&MAGIC) && word32(&kept, 4) == Some(1) && size >= 40;
            self.state = if is_ours { State::Records } else { State::Ended };
            self.skip = u64::from(size).saturating_sub(HEADER as u64);
            return;
        }
        if kept.len() == PREFIX {
            self.kept = kept;
            // The prefix alone, or a record that is whole with it.
            if self.looked_at() > PREFIX {
                return;
            }
            let kept = std::mem::take(&mut self.kept);
            return self.record(&kept, code);
        }
        self.record(&kept, code);
    }

    fn record(&mut self, record: &[u8], code: &mut Code) {
        let size = word32(record, 4).unwrap_or_default();
        self.skip = u64::from(size).saturating_sub(record.len() as u64);
        match word32(record, 0) {
            Some(CODE_LOAD) => {
                let _ = self.load(record, code);
            }
            Some(CODE_MOVE) => {
                if let (Some(from), Some(to)) = (word64(record, 32), word64(record, 40)) {
                    code.shift(from, to);
                }
            }
            Some(DEBUG_INFO) => {
                self.lines = lines(record).unwrap_or_default();
                self.about = word64(record, 16).unwrap_or_default();
            }
            Some(CODE_CLOSE) => self.state = State::Ended,
            _ => {}
        }
    }

    fn load(&mut self, record: &[u8], code: &mut Code) -> Option<()> {
        let (address, size) = (word64(record, 32)?, word64(record, 40)?);
        let name = record.get(56..)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let mut lines = std::mem::take(&mut self.lines);
        if self.about != address {
            lines.clear();
        }
        let fits = address != 0 && (1..=LARGEST_CODE).contains(&size) && end > 0;
        fits.then(|| code.load(address, size, &String::from_utf8_lossy(&name[..end]), &lines))
    }
}

/// Lines of the code that the next record loads. A file name that starts with 0xff 0x00 is the one before.
fn lines(record: &[u8]) -> Option<Vec<CodeLine>> {
    let count = usize::try_from(word64(record, 24)?).ok()?.min(LINES);
    let mut lines: Vec<CodeLine> = Vec::new();
    let mut at = 32;
    for _ in 0..count {
        let (Some(address), Some(line)) = (word64(record, at), word32(record, at + 8)) else { break };
        let Some(name) = record.get(at + 16..) else { break };
        let Some(end) = name.iter().position(|byte| *byte == 0) else { break };
        let name = match (&name[..end], lines.first()) {
            ([0xff], Some(_)) => String::new(),
            (name, None) => String::from_utf8_lossy(&name[..end.min(LONGEST_NAME)]).into_owned(),
            // Code that was inlined from another file: one file is kept.
            _ => String::new(),
        };
        lines.push((address, line, name));
        at += 16 + end + 1;
    }
    lines.sort_by_key(|(address, _, _)| *address);
    if let Some(named) = lines.iter().position(|(_, _, name)| !name.is_empty()) {
        let name = std::mem::take(&mut lines[named].2);
        lines[0].2 = name;
    }
    Some(lines)
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Vec<u8> {
        let words: [u32; 10] = [u32::from_le_bytes(MAGIC), 1, 40, 62, 0, 1, 0, 0, 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn record(kind: u32, content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(PREFIX + content.len()).unwrap();
        [&kind.to_le_bytes()[..], &size.to_le_bytes(), &7_u64.to_le_bytes(), content].concat()
    }

    fn load(address: u64, name: &str, code: &[u8]) -> Vec<u8> {
        let numbers = [address, address, code.len() as u64, 1];
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        record(CODE_LOAD, &[&[1, 0, 0, 0, 2, 0, 0, 0], &numbers[..], name.as_bytes(), &[0], code].concat())
    }

    fn shift(from: u64, to: u64, size: u64) -> Vec<u8> {
        let numbers = [from, from, to, size, 1];
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        // The address of the record is that of the code before.
        record(CODE_MOVE, &[&[1, 0, 0, 0, 2, 0, 0, 0], &numbers[..]].concat())
    }

    fn debug(address: u64, lines: &[(u64, u32, &[u8])]) -> Vec<u8> {
        let mut content = [address.to_le_bytes(), (lines.len() as u64).to_le_bytes()].concat();
        for (at, line, name) in lines {
            content.extend(at.to_le_bytes());
            content.extend(line.to_le_bytes());
            content.extend([0; 4]);
            content.extend(*name);
            content.push(0);
        }
        record(DEBUG_INFO, &content)
    }

    fn read(pieces: &[&[u8]]) -> Code {
        let (mut dump, mut code) = (JitDump::default(), Code::default());
        for piece in pieces {
            dump.extend(piece, &mut code);
        }
        code
    }

    #[test]
    fn code_is_loaded_moved_and_has_lines() {
        let long = vec![0x90; 3 << 20];
        let file = [
            header(),
            debug(0x1000, &[(0x1000, 7, b"Shop.java"), (0x1010, 9, b"\xff")]),
            load(0x1000, "Lshop/Shop;::sell", &[0x90; 0x40]),
            load(0x80_0000, "long", &long),
            record(77, &[1; 100]),
            load(0x2000, "moved", &[0x90; 0x10]),
            shift(0x2000, 0x3000, 0x10),
        ]
        .concat();
        let code = read(&[&file]);
        let check = |address: u64, name: Option<&str>, line: u32| {
            assert_eq!(code.find(address).map(|found| found.name.as_str()), name, "{address:x}");
            assert_eq!(code.line(address), line, "{address:x}");
        };
        check(0x1000, Some("Lshop/Shop;::sell"), 7);
        check(0x100f, Some("Lshop/Shop;::sell"), 7);
        check(0x1010, Some("Lshop/Shop;::sell"), 9);
        check(0x80_0000 + (3 << 20) - 1, Some("long"), 0);
        check(0x2000, None, 0);
        check(0x300f, Some("moved"), 0);
        assert_eq!(code.find(0x1000).unwrap().file, "Shop.java");
    }

    #[test]
    fn what_is_behind_the_end_is_not_read() {
        let file = [header(), record(CODE_CLOSE, &[]), load(0x1000, "late", &[0x90; 4])].concat();
        assert_eq!(read(&[&file]).find(0x1000), None);
        assert_eq!(read(&[b"no such file, but long enough to be one of them"]), Code::default());
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            names in proptest::collection::vec(("[a-z]", 1_usize..2000), 1..8),
            cuts in proptest::collection::vec(0_usize..6000, 0..6),
        ) {
            let names: Vec<String> = names.iter().map(|(letter, length)| letter.repeat(*length)).collect();
            let records = names.iter().zip(1_u64..).map(|(name, at)| load(at * 0x100, name, &[0x90; 0x20]));
            let file = [header(), records.collect::<Vec<_>>().concat()].concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(file.len())).collect();
            cuts.extend([0, file.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &file[pair[0]..pair[1]]).collect();
            let code = read(&pieces);
            prop_assert_eq!(&code, &read(&[&file]));
            for (name, at) in names.iter().zip(1_u64..) {
                let found = &code.find(at * 0x100).unwrap().name;
                prop_assert!(name.starts_with(found.as_str()) && found.len() >= name.len().min(LONGEST_NAME));
            }
        }

        #[test]
        fn any_records_are_bounded(
            records in proptest::collection::vec((0_u32..6, proptest::collection::vec(any::<u8>(), 0..300), 0_u32..600), 0..20),
        ) {
            let mut file = header();
            for (kind, content, size) in records {
                let mut record = record(kind, &content);
                record[4..8].copy_from_slice(&size.to_le_bytes());
                file.extend(record);
            }
            prop_assert!(read(&[&file]).bytes() <= super::super::code::MOST_BYTES);
        }
    }
}
