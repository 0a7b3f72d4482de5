//! Texts of V8.
//!
//! In: a reference to a text. Out: its characters, or where they are. A text is plain, lies outside of V8's memory, or
//! is made of others: of two, of a piece of one, of one that it stands for. How many steps are taken is bounded. Never
//! panics. Refuses to know what a text is for.

use super::{kind, number, object};
use crate::capture::guest::Memory;
use crate::capture::guest::v8::Layout;

/// A text's characters, side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Characters {
    /// Where.
    pub(super) at: u64,
    /// They are of two bytes each, not of one.
    pub(super) is_wide: bool,
    /// How many.
    pub(super) length: u32,
}

/// Texts that another is made of.
const STEPS: usize = 64;
/// Types up to this one are texts.
const TEXTS: u16 = 128;
/// Bits of a text's type.
const WAY: u16 = 7;
const NARROW: u16 = 8;
/// Where its characters are does not stand in it.
const UNCACHED: u16 = 16;
const PLAIN: u16 = 0;
const TWO: u16 = 1;
const OUTSIDE: u16 = 2;
const PIECE: u16 = 3;
const OTHER: u16 = 5;
const WORD: u64 = 8;

/// One of `most` characters; what is longer is cut.
pub(super) fn text(memory: &dyn Memory, layout: &Layout, reference: u64, most: usize) -> Option<String> {
    let mut units = Vec::new();
    let mut left = vec![reference];
    for _ in 0..STEPS {
        let Some(reference) = left.pop() else { break };
        if units.len() >= most {
            break;
        }
        if let Some([first, second]) = parts(memory, layout, reference) {
            left.extend([second, first]);
            continue;
        }
        let characters = characters(memory, layout, reference)?;
        characters.read(memory, 0, most - units.len(), &mut units)?;
    }
    let text = String::from_utf16_lossy(&units);
    Some(text.replace(char::is_control, "\u{fffd}"))
}

/// Of one that is put together of two.
fn parts(memory: &dyn Memory, layout: &Layout, reference: u64) -> Option<[u64; 2]> {
    let text = object(reference)?;
    let kind = kind(memory, layout, text).filter(|kind| *kind < TEXTS && kind & WAY == TWO);
    kind?;
    let [first, second] = layout.parts.map(|offset| memory.word(text.wrapping_add(offset.into())));
    Some([first?, second?])
}

/// Where a text's characters are; `None`: they are not in one place.
pub(super) fn characters(memory: &dyn Memory, layout: &Layout, mut reference: u64) -> Option<Characters> {
    let (mut skipped, mut wanted) = (0_u32, None);
    for _ in 0..STEPS {
        let text = object(reference)?;
        let at = |offset: u16| text.wrapping_add(offset.into());
        let kind = kind(memory, layout, text).filter(|kind| *kind < TEXTS)?;
        let own = memory.integer(at(layout.length))?;
        let length = *wanted.get_or_insert(own);
        let start = match kind & WAY {
            PLAIN => at(layout.characters[usize::from(kind & NARROW == 0)]),
            OUTSIDE if kind & UNCACHED == 0 => memory.word(at(layout.resource).wrapping_add(WORD))?,
            TWO => {
                let [first, second] = parts(memory, layout, reference)?;
                // One that was made plain later: all of it is in the first.
                if memory.integer(object(second)?.wrapping_add(layout.length.into()))? != 0 {
                    return None;
                }
                reference = first;
                continue;
            }
            PIECE => {
                skipped = skipped.checked_add(number(memory.word(at(layout.offset))?)?)?;
                reference = memory.word(at(layout.offset).wrapping_sub(WORD))?;
                continue;
            }
            OTHER => {
                reference = memory.word(at(layout.actual))?;
                continue;
            }
            _ => return None,
        };
        let is_wide = kind & NARROW == 0;
        let at = start.wrapping_add(u64::from(skipped) << u32::from(is_wide));
        return (skipped.checked_add(length)? <= own).then_some(Characters { at, is_wide, length });
    }
    None
}

impl Characters {
    /// Those from `first` on, `most` of them, behind others.
    pub(super) fn read(&self, memory: &dyn Memory, first: u32, most: usize, to: &mut Vec<u16>) -> Option<()> {
        let left = usize::try_from(self.length.saturating_sub(first)).ok()?.min(most);
        let width = 1 + usize::from(self.is_wide);
        let mut bytes = vec![0; left * width];
        let at = self.at.wrapping_add(u64::from(first) * width as u64);
        if !memory.read(at, &mut bytes) {
            return None;
        }
        if self.is_wide {
            to.extend(bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])));
        } else {
            to.extend(bytes.iter().map(|byte| u16::from(*byte)));
        }
        Some(())
    }
}
