//! Code that runtimes tell of in `jit-PID.dump`.
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
