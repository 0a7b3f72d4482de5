//! How a picture is to look: what it shows of stacks, and which way they grow.
//!
//! In: words of parameters. Out: choices. Refuses to know samples and pixels.

/// What a reader wants to see of the same samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// Which frames there are.
    pub frames: Frames,
    /// What stands on what.
    pub view: View,
}

/// Which frames of a program a picture has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Frames {
    /// Without those that a runtime has between and below functions of the program.
    #[default]
    Program,
    /// All.
    All,
}

impl Frames {
    /// Names, as parameters give them, in the order of the cases.
    pub const NAMES: [&'static str; 2] = ["program", "all"];

    /// The one of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Program, Self::All].into_iter().find(|frames| Self::NAMES[*frames as usize] == name)
    }
}

/// What stands on what, and where the root is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum View {
    /// Functions on their callers, the root at the bottom.
    #[default]
    Flame,
    /// The same with the root at the top.
    Icicle,
    /// Functions by the time in themselves at the top, their callers below them.
    Callers,
}

impl View {
    /// All, in the order in which they are offered.
    pub const ALL: [Self; 3] = [Self::Flame, Self::Icicle, Self::Callers];
    /// Names, as parameters give them, in the order of the cases.
    pub const NAMES: [&'static str; 3] = ["flame", "icicle", "callers"];

    /// The one of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }

    /// As parameters give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// What has to be said to read it.
    pub(super) fn note(self) -> Option<&'static str> {
        let note = "at the top each function by what it takes itself, below it what called it";
        (self == Self::Callers).then_some(note)
    }

    /// Whether the root is at the top.
    pub(super) fn grows_down(self) -> bool {
        self != Self::Flame
    }
}
