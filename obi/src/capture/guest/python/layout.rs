//! Where CPython has what, version by version; what a process says of itself first.
//!
//! In: a [`Build`] and a process's memory. Out: [`Known`]. From 3.13 on `_Py_DebugOffsets` at the beginning of the
//! runtime's state has; before, a table, whose numbers are those of the headers. The fields of code objects are in
//! the table of members of their type, in all versions.

use std::ops::RangeInclusive;

use obi_ebpf::{
    GUEST_BY_ADDRESS, GUEST_BY_BYTE, GUEST_BY_UNIT, GUEST_ENDS_ALWAYS, GUEST_ENDS_BY_MARK,
    GUEST_ENDS_BY_SHIM, guest,
};

use super::{Build, unlinked};
use crate::capture::guest::{Memory, Unfit, Version};

/// 3.*these*.
pub(super) const VERSIONS: RangeInclusive<u8> = 8..=14;

/// What is needed of a process.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// For the kernel's walk; `tgid` is to be set.
    pub guest: guest,
    /// For the thread that reads names.
    pub layout: Layout,
}

/// How code objects and texts lie in memory. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Which version.
    pub version: Version,
    /// Address of the type of code objects, which each of them has.
    pub code_type: u64,
    /// `co_filename`
    pub file: u16,
    /// `co_name`
    pub name: u16,
    /// `co_qualname`, since 3.11; 0: there is none.
    pub qualified: u16,
    /// `co_firstlineno`
    pub first_line: u16,
    /// `co_linetable`, before 3.10 `co_lnotab`
    pub lines: u16,
    /// From the code object to its first instruction; 0: positions count from there already.
    pub code: u16,
    /// Of an ASCII string, its bytes.
    pub ascii: u16,
    /// Of another compact string.
    pub compact: u16,
    /// Bits of a string's state below its kind.
    pub kind_shift: u8,
}

/// Of a thread's descriptor in the GNU C library: the first 32 keys' values, a pair of words each.
const FIRST_KEY: u32 = 0x310;
const KEYS: u32 = 32;
/// Of a type object.
const TYPE_SIZE: u64 = 32;
const TYPE_MEMBERS: u64 = 240;
const MEMBER_BYTES: u64 = 40;
/// Members of a type; code objects have some 20.
const MEMBERS: u64 = 64;
/// Beyond any field.
const LARGEST: u64 = 4096;
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

pub(super) fn examine(build: &Build, memory: &dyn Memory, bias: u64) -> Result<Known, Unfit> {
    let runtime = build.runtime.wrapping_add(bias);
    let slot = slot(build, memory, bias)?;
    let code_type = build.code_type.wrapping_add(bias);
    let layout = layout(build.version, memory, code_type)?;
    let guest = of_threads(build.version, memory, runtime)?;
    let eval = build.entry.wrapping_add(bias);
    Ok(Known {
        guest: guest { slot, eval, unlinked: unlinked::for_kernel(&build.unlinked), ..guest },
        layout,
    })
}

/// Where things are in threads' states and frames.
pub(super) fn of_threads(version: Version, memory: &dyn Memory, runtime: u64) -> Result<guest, Unfit> {
    match version.minor {
        13.. => described(version, memory, runtime),
        minor => listed(minor).ok_or(Unfit::Version(version)),
    }
}

/// Where, from the thread's descriptor on, its state's address stands: the value of the runtime's key.
fn slot(build: &Build, memory: &dyn Memory, bias: u64) -> Result<u32, Unfit> {
    let mut is_there = false;
    for key in &build.keys {
        let at = key.wrapping_add(bias);
        let (Some(is_made), Some(key)) = (memory.integer(at), memory.integer(at.wrapping_add(4))) else {
            continue;
        };
        is_there = true;
        if is_made == 1 && key < 1024 {
            // The second word of a pair is the value.
            return if key < KEYS { Ok(FIRST_KEY + 16 * key + 8) } else { Err(Unfit::ThreadKey(key)) };
        }
    }
    if is_there { Err(Unfit::NotBegun) } else { Err(Unfit::Memory("its variables are not there".into())) }
}

/// By the headers of each version; `None` from the one on that says so itself.
pub(super) fn listed(minor: u8) -> Option<guest> {
    let instruction = if minor == 10 { 96 } else { 104 };
    let position = if minor == 10 { GUEST_BY_UNIT } else { GUEST_BY_BYTE };
    let old = guest {
        thread_id: 176,
        frame: 24,
        code: 32,
        previous: 24,
        instruction,
        ends: byte(GUEST_ENDS_ALWAYS),
        position: byte(position),
        ..guest::default()
    };
    let new =
        guest { by_call: 1, adjacent: 1, frame: 56, position: byte(GUEST_BY_ADDRESS), ..guest::default() };
    Some(match minor {
        11 => guest {
            thread_id: 152,
            current: 8,
            code: 32,
            previous: 48,
            instruction: 56,
            owner: 68,
            ends: byte(GUEST_ENDS_BY_MARK),
            ..new
        },
        12 => guest {
            thread_id: 136,
            current: 0,
            code: 0,
            previous: 8,
            instruction: 56,
            owner: 70,
            ends: byte(GUEST_ENDS_BY_SHIM),
            ..new
        },
        13.. => return None,
        _ => old,
    })
}

fn byte(value: u32) -> u8 {
    u8::try_from(value).unwrap_or_default()
}

/// By `_Py_DebugOffsets`: words whose order is that of the minor version.
fn described(version: Version, memory: &dyn Memory, runtime: u64) -> Result<guest, Unfit> {
    const PROOF: Unfit = Unfit::Proof("_Py_DebugOffsets");
    let word = |index: u64| memory.word(runtime.wrapping_add(8 * index)).ok_or(PROOF);
    let reported = word(1)?;
    if word(0)? != COOKIE || reported >> 16 != (3 << 8 | u64::from(version.minor)) {
        return Err(PROOF);
    }
    // Where the groups of the thread's state and of frames begin.
    let (thread, frame) = if version.minor == 13 { (19, 28) } else { (22, 31) };
    let offset = |index: u64| {
        let offset = u16::try_from(word(index)?).ok().filter(|offset| u64::from(*offset) < LARGEST);
        offset.ok_or(PROOF)
    };
    let described = guest {
        frame: offset(thread + 4)?,
        thread_id: offset(thread + 5)?,
        previous: offset(frame + 1)?,
        code: offset(frame + 2)?,
        instruction: offset(frame + 3)?,
        owner: offset(frame + 5)?,
        adjacent: 1,
        ends: byte(GUEST_ENDS_BY_SHIM),
        position: byte(GUEST_BY_ADDRESS),
        ..guest::default()
    };
    let furthest = [described.previous, described.code, described.instruction, described.owner];
    // All within the words that the walk looks at, and words where it looks at words.
    let fits = furthest.iter().all(|offset| *offset < 8 * obi_ebpf::GUEST_FRAME_WORDS as u16);
    let are_words = furthest[..3].iter().chain([&described.frame, &described.thread_id]);
    if fits && are_words.into_iter().all(|offset| offset % 8 == 0) { Ok(described) } else { Err(PROOF) }
}

/// Fields of code objects, by the members of their type.
fn layout(version: Version, memory: &dyn Memory, code_type: u64) -> Result<Layout, Unfit> {
    const PROOF: Unfit = Unfit::Proof("PyCode_Type");
    let members = memory.word(code_type.wrapping_add(TYPE_MEMBERS)).ok_or(PROOF)?;
    let mut found = [0_u16; 6];
    const NAMES: [&[u8]; 6] =
        [b"co_filename", b"co_name", b"co_qualname", b"co_firstlineno", b"co_linetable", b"co_lnotab"];
    for index in 0..MEMBERS {
        let member = members.wrapping_add(index * MEMBER_BYTES);
        let name = memory.word(member).ok_or(PROOF)?;
        if name == 0 {
            break;
        }
        let mut text = [0; 24];
        if !memory.read(name, &mut text) {
            continue;
        }
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(place) = NAMES.iter().position(|wanted| *wanted == text) {
            let offset = memory.word(member.wrapping_add(16)).filter(|offset| *offset < LARGEST);
            found[place] = offset.and_then(|offset| offset.try_into().ok()).ok_or(PROOF)?;
        }
    }
    let [file, name, qualified, first_line, new_lines, old_lines] = found;
    let lines = if new_lines > 0 { new_lines } else { old_lines };
    if [file, name, first_line, lines].contains(&0) || (version.minor >= 11 && qualified == 0) {
        return Err(PROOF);
    }
    // The type's size ends where its instructions begin, since 3.11.
    let size = memory.word(code_type.wrapping_add(TYPE_SIZE)).filter(|size| *size < LARGEST).ok_or(PROOF)?;
    let code = if version.minor >= 11 { u16::try_from(size).unwrap_or_default() } else { 0 };
    let (ascii, compact) = if version.minor >= 12 { (40, 56) } else { (48, 72) };
    let kind_shift = if version.minor >= 14 { 16 } else { 2 };
    Ok(Layout {
        version,
        code_type,
        file,
        name,
        qualified,
        first_line,
        lines,
        code,
        ascii,
        compact,
        kind_shift,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capture::guest::memory::Piece;

    fn build(minor: u8) -> Build {
        let version = Version { minor, micro: 0 };
        let (eval, unlinked) = (Vec::new(), Vec::new());
        Build { version, eval, runtime: 0, code_type: 0x1000, keys: vec![0x604, 0x608], entry: 0, unlinked }
    }

    /// A runtime at 0, a type at 0x1000 whose members are at 0x1200, with their names at 0x1800.
    fn memory(key: [u32; 2], minor: u8) -> Piece {
        let mut bytes = vec![0; 0x2000];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(0x608, u64::from(key[1]) << 32 | u64::from(key[0]));
        put(0x1000 + 32, 192);
        put(0x1000 + 240, 0x1200);
        let names = ["co_name", "co_filename", "co_firstlineno", "co_qualname", "co_linetable"];
        for (index, _) in names.iter().enumerate() {
            put(0x1200 + 40 * index, 0x1800 + 32 * index as u64);
            put(0x1210 + 40 * index, 100 + 8 * index as u64);
        }
        if minor >= 13 {
            put(0, COOKIE);
            put(8, 0x0300_00f0 | u64::from(minor) << 16);
            let (thread, frame) = if minor == 13 { (19, 28) } else { (22, 31) };
            for (index, offset) in [(thread + 4, 72), (thread + 5, 152)] {
                put(8 * index, offset);
            }
            for (index, offset) in [(frame + 1, 8), (frame + 2, 0), (frame + 3, 56), (frame + 5, 70)] {
                put(8 * index, offset);
            }
        }
        for (index, name) in names.iter().enumerate() {
            bytes[0x1800 + 32 * index..][..name.len()].copy_from_slice(name.as_bytes());
        }
        Piece { start: 0, bytes }
    }

    #[test]
    fn what_proves_itself_is_known() {
        let check = |minor: u8, key: [u32; 2], expected: Result<(u16, u16, u32), Unfit>| {
            let known = build(minor).examine(&memory(key, minor), 0);
            let reported = known.map(|known| (known.layout.name, known.guest.thread_id, known.guest.slot));
            assert_eq!(reported, expected, "3.{minor} {key:?}");
        };
        check(11, [1, 3], Ok((100, 152, 0x310 + 56)));
        check(12, [1, 0], Ok((100, 136, 0x318)));
        check(13, [1, 0], Ok((100, 152, 0x318)));
        check(14, [1, 0], Ok((100, 152, 0x318)));
        check(11, [0, 0], Err(Unfit::NotBegun));
        check(11, [1, 40], Err(Unfit::ThreadKey(40)));
    }

    #[test]
    fn what_does_not_is_refused() {
        let check = |at: usize, expected: Unfit| {
            let mut memory = memory([1, 0], 13);
            memory.bytes[at] ^= 0xff;
            assert_eq!(build(13).examine(&memory, 0).err(), Some(expected), "{at:#x}");
        };
        check(3, Unfit::Proof("_Py_DebugOffsets"));
        check(10, Unfit::Proof("_Py_DebugOffsets"));
        // A frame's word that is none, one beyond what is looked at.
        check(8 * 29, Unfit::Proof("_Py_DebugOffsets"));
        check(8 * 30 + 1, Unfit::Proof("_Py_DebugOffsets"));
        check(0x1800, Unfit::Proof("PyCode_Type"));
        check(0x1000 + 241, Unfit::Proof("PyCode_Type"));
        assert_eq!(
            build(13).examine(&Piece::default(), 0).err(),
            Some(Unfit::Memory("its variables are not there".into()))
        );
    }

    proptest! {
        #[test]
        fn any_memory_is_known_or_refused(
            minor in 8_u8..15,
            changes in proptest::collection::vec((0_usize..0x2000, any::<u8>()), 0..64),
        ) {
            let mut memory = memory([1, 0], minor);
            for (at, byte) in changes {
                memory.bytes[at] = byte;
            }
            if let Ok(known) = build(minor).examine(&memory, 0) {
                prop_assert!(known.guest.slot < 0x310 + 32 * 16);
                prop_assert!(u64::from(known.layout.name) < LARGEST);
            }
        }
    }
}
