//! Colours: whose code it is, how well it is named, how much it has changed.
//!
//! In: what a bar is. Out: a colour as SVG has it, the same for the same name, and what it is on a dark ground. Text of
//! the ground's other colour can be read on each. Refuses to know trees.

use std::fmt;

use super::tree::{Key, Kind};
use crate::profile::{Fidelity, Runtime};

/// A colour on a light ground, and its like on a dark one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Colour {
    /// In degrees.
    hue: u16,
    /// In percent.
    saturation: u8,
    /// In percent: on a light ground, on a dark one.
    lightness: [u8; 2],
}

impl Colour {
    const fn new(hue: u16, saturation: u8, lightness: [u8; 2]) -> Self {
        Self { hue, saturation, lightness }
    }

    /// The same on a dark ground.
    pub(super) fn on_dark(self) -> Self {
        let [_, dark] = self.lightness;
        Self { lightness: [dark, dark], ..self }
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "hsl({},{}%,{}%)", self.hue, self.saturation, self.lightness[0])
    }
}

/// What the legend shows.
pub(super) const LEGEND: [(&str, Kind); 10] = [
    ("kernel", Kind::Code(Runtime::Kernel, Fidelity::Function)),
    ("native", Kind::Code(Runtime::Native, Fidelity::Function)),
    ("Rust", Kind::Code(Runtime::Rust, Fidelity::Function)),
    ("Go", Kind::Code(Runtime::Go, Fidelity::Function)),
    ("JavaScript", Kind::Code(Runtime::V8, Fidelity::Function)),
    ("JVM", Kind::Code(Runtime::Jvm, Fidelity::Function)),
    (".NET", Kind::Code(Runtime::Dotnet, Fidelity::Function)),
    ("Python", Kind::Code(Runtime::Cpython, Fidelity::Function)),
    ("no name", Kind::Code(Runtime::Native, Fidelity::Address)),
    ("truncated", Kind::Code(Runtime::Native, Fidelity::Marker)),
];

/// The colour of a kind of bar.
pub(super) fn of_kind(kind: Kind) -> Colour {
    match kind {
        Kind::Level(_) => Colour::new(215, 18, [84, 32]),
        Kind::Code(_, Fidelity::Marker) => Colour::new(0, 0, [45, 40]),
        Kind::Code(Runtime::Kernel, _) => Colour::new(212, 52, [70, 42]),
        Kind::Code(_, Fidelity::Address) => Colour::new(0, 0, [78, 40]),
        Kind::Code(Runtime::Native, _) => Colour::new(46, 85, [68, 25]),
        Kind::Code(Runtime::Rust, _) => Colour::new(22, 78, [68, 36]),
        Kind::Code(Runtime::Go, _) => Colour::new(186, 52, [66, 30]),
        Kind::Code(Runtime::V8, _) => Colour::new(95, 45, [66, 30]),
        Kind::Code(Runtime::Jvm, _) => Colour::new(150, 38, [66, 31]),
        Kind::Code(Runtime::Dotnet, _) => Colour::new(275, 42, [76, 45]),
        Kind::Code(Runtime::Cpython, _) => Colour::new(60, 55, [68, 25]),
    }
}

/// The colour of waits for a reason, by its words; each has one of its own.
pub(super) fn of_wait(reason: &str) -> Colour {
    match reason {
        "lock" => Colour::new(2, 70, [66, 44]),
        "gil" => Colour::new(330, 55, [72, 44]),
        "condition" => Colour::new(284, 40, [70, 46]),
        "network" => Colour::new(205, 60, [66, 38]),
        "poll" => Colour::new(205, 22, [76, 40]),
        "disk" => Colour::new(30, 80, [62, 33]),
        "file" => Colour::new(45, 60, [66, 29]),
        "page fault" => Colour::new(75, 45, [60, 28]),
        "sleep" => Colour::new(160, 32, [68, 33]),
        "child" => Colour::new(120, 28, [66, 34]),
        _ => Colour::new(0, 0, [72, 40]),
    }
}

/// The same with a shade by its name, so that neighbours can be distinguished.
pub(super) fn of(key: &Key) -> Colour {
    let colour = match &key.wait {
        Some(reason) => of_wait(reason),
        None => of_kind(key.kind),
    };
    if let Kind::Level(_) | Kind::Code(_, Fidelity::Marker) = key.kind {
        return colour;
    }
    let shade = key.name.bytes().fold(7_u8, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte)) % 11;
    let [light, dark] = colour.lightness;
    // Between dark colours half as much is as much to the eye.
    Colour { lightness: [light - 5 + shade, dark - 2 + shade * 2 / 5], ..colour }
}

/// Standard errors within which a difference is chance: one bar in a hundred is beyond by chance.
const CERTAIN: f64 = 2.58;

/// Whether chance alone explains that `now` holds another share than `before`; each is samples of the bar, and all
/// samples. The standard error of two proportions with one success and one failure more on each side (Agresti and Caffo
/// 2000), which holds for few samples, too.
pub(super) fn is_chance(before: [f64; 2], now: [f64; 2]) -> bool {
    let [old, new] = [before, now].map(|[samples, all]| {
        let (share, all) = ((samples + 1.0) / (all + 2.0), all + 2.0);
        (share, share * (1.0 - share) / all)
    });
    (new.0 - old.0).abs() < CERTAIN * (old.1 + new.1).sqrt()
}

/// How a share has changed from `before` to `now`: like the ground as it was, full red twice as much or new, full blue
/// half as much or gone.
pub(super) fn of_change(before: f64, now: f64) -> Colour {
    let change = match (before, now) {
        (before, now) if before == now => 0.0,
        (_, 0.0) => -1.0,
        (0.0, _) => 1.0,
        (before, now) => (now / before).log2().clamp(-1.0, 1.0),
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 34")]
    let strength = (f64::abs(change) * 34.0).round() as u8;
    let (hue, saturation) = (if change < 0.0 { 215 } else { 8 }, if change == 0.0 { 0 } else { 85 });
    Colour::new(hue, saturation, [96 - strength, 23 + strength / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_differ_by_chance() {
        let check = |before: [f64; 2], now: [f64; 2], expected: bool| {
            assert_eq!(is_chance(before, now), expected, "{before:?} {now:?}");
            assert_eq!(is_chance(now, before), expected, "{now:?} {before:?}");
        };
        check([2.0, 2.0], [0.0, 3.0], true);
        check([3.0, 3.0], [0.0, 3.0], true);
        check([0.0, 0.0], [3.0, 3.0], true);
        check([10.0, 10.0], [0.0, 10.0], false);
        check([50.0, 100.0], [55.0, 100.0], true);
        check([50.0, 100.0], [80.0, 100.0], false);
        check([500.0, 10_000.0], [520.0, 10_000.0], true);
        check([500.0, 10_000.0], [700.0, 10_000.0], false);
        check([0.0, 1_000.0], [0.0, 1_000.0], true);
        check([0.0, 1_000.0], [2.0, 1_000.0], true);
        check([0.0, 1_000.0], [20.0, 1_000.0], false);
    }
}
