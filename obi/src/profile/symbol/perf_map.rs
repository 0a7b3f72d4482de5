//! Names that runtimes write down for machine code they make while running: `/tmp/perf-PID.map`.
//!
//! In: the text, appended to while the program runs: `start size name`, in hexadecimal. Out: [`super::code::Code`].
//! Refuses to know where the file is.

use super::code::Code;

/// A name is cut here; Node writes whole paths and sources of regular expressions.
const LONGEST_NAME: usize = 1024;
const LONGEST_LINE: usize = 4096;
const LARGEST: u64 = 256 * 1024 * 1024;

/// Where reading stopped: the beginning of a line that has no end yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PerfMap {
    open: Vec<u8>,
    /// The rest of a line that is too long is skipped.
    is_skipping: bool,
}

impl PerfMap {
    /// Takes what follows what it was given before.
    pub fn extend(&mut self, mut text: &[u8], code: &mut Code) {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&text[..end], &text[end + 1..]);
            if self.is_skipping {
                self.is_skipping = false;
            } else if self.open.is_empty() {
                add(line, code);
            } else {
                self.open.extend_from_slice(&line[..line.len().min(LONGEST_LINE)]);
                add(&std::mem::take(&mut self.open), code);
            }
            text = rest;
        }
        if self.is_skipping || self.open.len() + text.len() > LONGEST_LINE {
            self.is_skipping = true;
            self.open.clear();
        } else {
            self.open.extend_from_slice(text);
        }
    }
}

fn add(line: &[u8], code: &mut Code) {
    if let Some((start, size, name)) = entry(line) {
        code.load(start, size, &String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]), &[]);
    }
}

fn entry(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let digits = str::from_utf8(parts.next()?).ok()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = parts.next()?.trim_ascii();
    let fits = start != 0 && (1..=LARGEST).contains(&size) && !name.is_empty();
    fits.then_some((start, size, name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Code {
        let (mut map, mut code) = (PerfMap::default(), Code::default());
        for piece in pieces {
            map.extend(piece, &mut code);
        }
        code
    }

    #[test]
    fn lines_are_functions() {
        let code = read(&[b"7f00 20 LazyCompile:*hot /srv/app.js:12:3\nbad\n0x7f20 10 py::work:/a.py\n7f40 0 none\n8000 10 no end"]);
        let check = |address, expected: Option<&str>| {
            assert_eq!(code.find(address).map(|found| found.name.as_str()), expected, "{address:x}");
        };
        check(0x7eff, None);
        check(0x7f00, Some("LazyCompile:*hot /srv/app.js:12:3"));
        check(0x7f1f, Some("LazyCompile:*hot /srv/app.js:12:3"));
        check(0x7f20, Some("py::work:/a.py"));
        check(0x7f30, None);
        check(0x7f40, None);
        check(0x8000, None);
    }

    #[test]
    fn the_later_line_holds() {
        let code = read(&[b"1000 100 old\n1040 20 new\n"]);
        let name = |address| code.find(address).map(|found| found.name.clone()).unwrap_or_default();
        assert_eq!((name(0x1000).as_str(), name(0x1040).as_str(), name(0x1060).as_str()), ("", "new", ""));
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let long = vec![b'a'; 1 << 20];
        let (mut map, mut code) = (PerfMap::default(), Code::default());
        map.extend(&long, &mut code);
        map.extend(&long, &mut code);
        assert!(map.open.capacity() <= LONGEST_LINE);
        map.extend(b" end\n10 10 next\n", &mut code);
        assert_eq!(code.find(0x10).unwrap().name, "next");
    }

    proptest! {
        #[test]
        fn cuts_make_no_difference(
            lines in proptest::collection::vec("[0-9a-f]{1,6} [0-9a-f]{1,3} [a-z ]{0,9}\n|[ -~]{0,20}\n", 0..40),
            cut in 0_usize..600,
        ) {
            let text = lines.concat().into_bytes();
            let (first, second) = text.split_at(cut.min(text.len()));
            prop_assert_eq!(read(&[first, second]), read(&[&text]));
        }

        #[test]
        fn any_bytes_are_a_map(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..9)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let code = read(&pieces);
            prop_assert!(code.bytes() <= super::super::code::MOST_BYTES);
        }
    }
}
