//! Which Go has made a program, and how its goroutines look.
//!
//! In: a file, a version. Out: offsets in `runtime.g` and `runtime.gobuf` of `runtime/runtime2.go`, by the debug
//! information of each version's programs. Refuses to know processes.

use super::Unread;
use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::Source;

/// Offsets in a goroutine (`runtime.g`), bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Where its frame pointer is kept while it does not run.
    pub(super) frame_pointer: usize,
    /// `atomicstatus`.
    pub(super) status: usize,
    /// `gopc`: behind the `go` statement that has made it. `startpc` comes two words later.
    pub(super) made_at: usize,
}

/// First and last address of its stack, the latter behind it.
pub(super) const STACK: usize = 0;
/// `sched.sp`, followed by `sched.pc`.
pub(super) const STACK_POINTER: usize = 56;
/// From `gopc` to `startpc`.
pub(super) const START: usize = 16;

const fn layout(frame_pointer: usize, status: usize, made_at: usize) -> Layout {
    Layout { frame_pointer: STACK_POINTER + frame_pointer, status, made_at }
}

/// By the minor version from which on it holds; the newest also for those that are not known yet, where what is read
/// proves itself.
const LAYOUTS: [(u32, Layout); 5] = [
    (26, layout(40, 144, 288)),
    (25, layout(40, 144, 280)),
    (23, layout(48, 152, 288)),
    (21, layout(48, 144, 280)),
    (18, layout(48, 144, 296)),
];

impl Layout {
    /// Of a program that this Go has made, as `go1.26.8`.
    pub(super) fn of(version: &str) -> Result<Self, Unread> {
        let minor = version.strip_prefix("go1.").unwrap_or_default();
        let digits = minor.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(minor.len());
        // What has no number is made of the newest sources.
        let minor: u32 = if version.starts_with("devel") {
            u32::MAX
        } else {
            minor[..digits].parse().map_err(|_| Unread::NoVersion)?
        };
        let found = LAYOUTS.iter().find(|(first, _)| *first <= minor);
        found.map(|(_, layout)| *layout).ok_or_else(|| Unread::Old(version.to_owned()))
    }
}

/// `.go.buildinfo`: a magic text, flags, and from 1.18 on the texts themselves, each behind its length.
const MAGIC: &[u8] = b"\xff Go buildinf:";
const FLAGS: usize = 15;
const INLINE: u8 = 2;
const TEXT: usize = 32;
/// More is no version; its length is one byte then.
const MOST: usize = 127;

/// The version of Go that the file says.
pub(super) fn version(source: &dyn Source, elf: &Elf) -> Option<String> {
    let section = elf.section(".go.buildinfo")?;
    let mut bytes = vec![0; usize::try_from(section.length).ok()?.min(TEXT + 1 + MOST)];
    source.read_at(section.offset, &mut bytes).ok()?;
    version_in(&bytes).map(str::to_owned)
}

fn version_in(bytes: &[u8]) -> Option<&str> {
    let is_inline = bytes.starts_with(MAGIC) && bytes.get(FLAGS)? & INLINE != 0;
    let length = usize::from(*bytes.get(TEXT).filter(|_| is_inline)?);
    let text = bytes.get(TEXT + 1..TEXT + 1 + length).filter(|_| length <= MOST)?;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_go_by_the_minor_version() {
        let check = |version: &str, expected: Result<usize, Unread>| {
            assert_eq!(Layout::of(version).map(|layout| layout.made_at), expected, "{version}");
        };
        check("go1.26.8", Ok(288));
        check("go1.26rc1 X:nodwarf5", Ok(288));
        check("go1.25.5", Ok(280));
        check("go1.24", Ok(288));
        check("go1.22.12", Ok(280));
        check("go1.18.10", Ok(296));
        check("go1.99", Ok(288));
        check("devel go1.27-abcdef", Ok(288));
        check("go1.17.3", Err(Unread::Old("go1.17.3".to_owned())));
        check("go2", Err(Unread::NoVersion));
        check("", Err(Unread::NoVersion));
    }

    #[test]
    fn versions_are_read_from_the_build_information() {
        let mut bytes = [MAGIC, &[8, INLINE]].concat();
        bytes.resize(TEXT, 0);
        bytes.extend(b"\x08go1.26.8\0\0");
        assert_eq!(version_in(&bytes), Some("go1.26.8"));
        for length in 0..TEXT + 9 {
            assert_eq!(version_in(&bytes[..length]), None, "{length}");
        }
        bytes[FLAGS] = 0;
        assert_eq!(version_in(&bytes), None);
    }
}
