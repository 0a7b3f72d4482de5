//! Functions of the kernel, its modules and BPF programs.
//!
//! In: the text of `/proc/kallsyms`. Out: the function at an address. One entry is 12 bytes and its name; the whole is
//! bounded. Refuses to know when the text is read: it is opened while the agent is privileged, since the kernel shows
//! addresses to a process that had `CAP_SYSLOG` when opening it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _};

/// Names and addresses; a distribution's kernel has 5 MB of them.
const MOST_BYTES: usize = 10 * 1024 * 1024;
const ENTRY_BYTES: usize = 12;
/// Functions are shorter, so what is farther behind one is not in it: a module that came later, or memory of none.
const LONGEST_FUNCTION: u64 = 256 * 1024;
const LONGEST_LINE: u64 = 1024;
const LINES: usize = 4_000_000;
/// The kernel's half of all addresses.
const KERNEL: u64 = 1 << 63;

/// What a reading has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Functions {
    /// Sorted.
    addresses: Vec<u64>,
    /// Where each name begins in `names`.
    places: Vec<u32>,
    /// Each ends with a zero byte; a module's name behind a tab.
    names: Vec<u8>,
    /// Functions that did not fit.
    left_out: usize,
    /// Lines with the address zero: not shown to us.
    hidden: usize,
}

impl Functions {
    /// Reads the text.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(text: impl io::Read) -> io::Result<Self> {
        let mut found: Vec<(u64, u32)> = Vec::new();
        let mut functions = Self::default();
        let mut input = BufReader::with_capacity(64 * 1024, text);
        let mut line = Vec::new();
        for _ in 0..LINES {
            line.clear();
            if io::Read::take(&mut input, LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Some((address, name, module)) = split(&line) else { continue };
            if address < KERNEL {
                functions.hidden += usize::from(address == 0);
                continue;
            }
            if functions.names.len() + found.len() * ENTRY_BYTES + line.len() > MOST_BYTES {
                functions.left_out += 1;
                continue;
            }
            found.push((address, u32::try_from(functions.names.len()).unwrap_or_default()));
            functions.names.extend_from_slice(name);
            if !module.is_empty() {
                functions.names.push(b'\t');
                functions.names.extend_from_slice(module);
            }
            functions.names.push(0);
        }
        // Stable: of several names for one address the first is the one that the kernel itself would give.
        found.sort_by_key(|(address, _)| *address);
        found.dedup_by_key(|(address, _)| *address);
        (functions.addresses, functions.places) = found.into_iter().unzip();
        functions.names.shrink_to_fit();
        Ok(functions)
    }

    /// Name and module (empty for the kernel itself) of the function at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&str, &str)> {
        let next = self.addresses.partition_point(|start| *start <= address);
        let at = next.checked_sub(1)?;
        if address - self.addresses[at] > LONGEST_FUNCTION {
            return None;
        }
        let text = self.names.get(usize::try_from(self.places[at]).ok()?..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        let text = str::from_utf8(&text[..end]).ok()?;
        Some(text.split_once('\t').unwrap_or((text, "")))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Functions that did not fit.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The kernel shows names, but not where they are: `kptr_restrict`, or no `CAP_SYSLOG` when the text was opened.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.addresses.is_empty() && self.hidden > 0
    }

    /// Memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.addresses.capacity() * size_of::<u64>()
            + self.places.capacity() * size_of::<u32>()
            + self.names.capacity()
    }
}

/// The kernel's functions as they are now, read again when something new shows up.
#[derive(Debug)]
pub struct Kernel {
    file: Option<File>,
    functions: Functions,
    /// An address was in no function.
    is_wanting: bool,
    next: u64,
    pause: u64,
}

/// Between two readings, which take the kernel some 50 ms; doubled as long as they show nothing new.
const PAUSE: u64 = 30_000_000_000;
const LONGEST_PAUSE: u64 = 16 * PAUSE;

impl Kernel {
    /// Opens and reads `/proc/kallsyms`, which needs `CAP_SYSLOG`; the descriptor is kept, and needs none.
    #[must_use]
    pub fn open() -> Self {
        let file = File::open("/proc/kallsyms").ok();
        let mut kernel =
            Self { file, functions: Functions::default(), is_wanting: false, next: 0, pause: PAUSE };
        kernel.read();
        kernel
    }

    /// With these functions, never read again.
    #[must_use]
    pub fn of(functions: Functions) -> Self {
        Self { file: None, functions, is_wanting: false, next: 0, pause: PAUSE }
    }

    /// What is known.
    #[must_use]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Name and module of the function at an address; what is unknown makes for another reading.
    pub fn find(&mut self, address: u64) -> Option<(&str, &str)> {
        let found = self.functions.find(address);
        self.is_wanting |= found.is_none();
        found
    }

    /// Reads again if something was missing and enough time has passed; whether it did. `now` in nanoseconds.
    pub fn advance(&mut self, now: u64) -> bool {
        if self.next == 0 {
            self.next = now.saturating_add(self.pause);
        }
        if !self.is_wanting || now < self.next || self.file.is_none() {
            return false;
        }
        self.is_wanting = false;
        let before = self.functions.len();
        let is_read = self.read();
        let is_same = before == self.functions.len();
        self.pause = if is_same { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
        self.next = now.saturating_add(self.pause);
        is_read
    }

    fn read(&mut self) -> bool {
        let Some(file) = &mut self.file else { return false };
        let functions = file.rewind().and_then(|()| Functions::read(&*file));
        // What was known before is better than nothing.
        functions.map(|functions| self.functions = functions).is_ok()
    }
}

/// `ffffffff81000000 T name\t[module]`: address, name, module; only of functions.
fn split(line: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let line = line.trim_ascii();
    let (address, rest) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
    let address = u64::from_str_radix(str::from_utf8(address).ok()?, 16).ok()?;
    let [b' ', b't' | b'T' | b'w' | b'W', b' ', name @ ..] = rest else { return None };
    let tab = name.iter().position(|byte| *byte == b'\t');
    let (name, module) = tab.map_or((name, &b""[..]), |tab| (&name[..tab], &name[tab + 1..]));
    let is_plain = !name.is_empty() && str::from_utf8(name).is_ok() && str::from_utf8(module).is_ok();
    let is_plain = is_plain && !name.contains(&0) && !module.contains(&0);
    is_plain.then(|| (address, name, module.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "ffffffff81000000 T _stext\n\
        ffffffff81000000 T _text\n\
        ffffffff81000100 t do_one\n\
        ffffffff81000180 D a_variable\n\
        ffffffff81000200 W weak_one\n\
        ffffffffc0000000 t of_module\t[nf_tables]\n\
        ffffffffc0400000 t bpf_prog_6deef7357e7b4530_count\t[bpf]\n\
        0000000000000000 A per_cpu\n\
        nonsense\n";

    #[test]
    fn functions_reach_to_the_next() {
        let functions = Functions::read(TEXT.as_bytes()).unwrap();
        let check = |address: u64, expected: Option<(&str, &str)>| {
            assert_eq!(functions.find(address), expected, "{address:x}");
        };
        check(0xffff_ffff_80ff_ffff, None);
        check(0xffff_ffff_8100_0000, Some(("_stext", "")));
        check(0xffff_ffff_8100_00ff, Some(("_stext", "")));
        check(0xffff_ffff_8100_01ff, Some(("do_one", "")));
        check(0xffff_ffff_8100_0200, Some(("weak_one", "")));
        check(0xffff_ffff_8200_0200, None);
        check(0xffff_ffff_c000_0010, Some(("of_module", "[nf_tables]")));
        check(0xffff_ffff_c040_0004, Some(("bpf_prog_6deef7357e7b4530_count", "[bpf]")));
        check(u64::MAX, None);
        assert!(!functions.is_hidden());
    }

    #[test]
    fn hidden_addresses_are_reported_from_none() {
        let hidden =
            Functions::read("0000000000000000 T _stext\n0000000000000000 t do_one\n".as_bytes()).unwrap();
        assert!(hidden.is_hidden() && hidden.find(0xffff_ffff_8100_0000).is_none());
        assert!(!Functions::read(&b""[..]).unwrap().is_hidden());
    }

    #[test]
    fn memory_has_an_end() {
        let text: String = (0..300_000_u64)
            .map(|at| format!("{:016x} t {:0>80}\n", 0xffff_ffff_8100_0000 + at * 16, at))
            .collect();
        let functions = Functions::read(text.as_bytes()).unwrap();
        assert!(functions.left_out() > 0 && functions.bytes() <= MOST_BYTES + MOST_BYTES / 2);
        assert_eq!(functions.len() + functions.left_out(), 300_000);
    }

    #[test]
    fn the_machine_shows_its_own() {
        // What is shown depends on privileges; both are answers.
        let kernel = Kernel::open();
        let functions = kernel.functions();
        assert!(functions.bytes() <= MOST_BYTES + MOST_BYTES / 2, "{} bytes", functions.bytes());
        assert!(functions.is_hidden() || functions.len() > 1000, "{} functions", functions.len());
    }

    #[test]
    fn it_is_read_again_for_a_reason_and_not_too_often() {
        let mut kernel = Kernel::open();
        assert!(!kernel.advance(1) && !kernel.advance(PAUSE * 2), "nothing was missing");
        kernel.find(KERNEL);
        assert!(kernel.advance(PAUSE * 2));
        kernel.find(KERNEL);
        assert!(!kernel.advance(PAUSE * 2 + 1), "too soon");
    }

    proptest! {
        #[test]
        fn any_text_is_functions(text in proptest::collection::vec(any::<u8>(), 0..2000), address: u64) {
            let functions = Functions::read(text.as_slice()).unwrap();
            let _ = functions.find(address);
        }
    }
}
