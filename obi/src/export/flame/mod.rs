//! Flame graphs: where the time of a selection went, or what differs between two, as one SVG file.
//!
//! In: [`Selection`]s. Out: text of an SVG that needs nothing else: it shows in a browser, with zoom, search and
//! details, and as a still picture where scripts do not run. The same selection gives the same bytes. Refuses to know
//! where selections come from.
//!
//! - `look`: what is wanted. `runtime`: which frames are shown. `tree`: samples to a tree of frames. `paint`: their
//!   colours. `svg`: the picture; `style`: what does not depend on it, and dark grounds; `script.js` makes it move.

mod look;
mod paint;
mod runtime;
mod style;
mod svg;
mod tree;

use std::fmt::Write as _;

pub use self::look::{Frames, Look, View};
use self::svg::Picture;
pub use self::svg::SCRIPT;
use self::tree::{Levels, Tree};
use crate::profile::sample_type::SampleUnit;
use crate::profile::{SampleKind, SampleType, Selection};

/// A flame graph of one selection.
#[must_use]
pub fn graph(title: &str, selection: &Selection, look: Look) -> String {
    let tree = Tree::new(&[selection], Levels::fitting(selection), look);
    let picture = Picture { title, subtitle: describe(selection), sides: None, view: look.view, tree: &tree };
    picture.write()
}

/// A differential flame graph: each frame is as wide as its mean share of both selections, red where it takes a larger
/// share of `now` than of `before`, blue where a smaller one, without colour where chance explains the difference. Each
/// comes with what it is called.
#[must_use]
pub fn difference(title: &str, before: (&str, &Selection), now: (&str, &Selection), look: Look) -> String {
    let tree = Tree::new(&[before.1, now.1], Levels::common(before.1, now.1), look);
    let mut subtitle = String::new();
    for (index, (name, selection)) in [before, now].into_iter().enumerate() {
        let _ = write!(subtitle, "{}{name}: {}", if index == 0 { "" } else { "\n" }, describe(selection));
    }
    let picture = Picture { title, subtitle, sides: Some([before.0, now.0]), view: look.view, tree: &tree };
    picture.write()
}

/// What the numbers rest on.
fn describe(selection: &Selection) -> String {
    let total = Total::of(selection);
    let of = selection.shown_type();
    let (row, samples) = (of.row(), total.samples);
    if of.kind == SampleKind::Goroutines {
        return amount(of, total.sum);
    }
    let mut text = format!("{samples} samples, {} ± {}", amount(of, total.sum), figure(of, total.error));
    if of.period > 0 && of.kind.has_clock() {
        let period = row.unit.shown(of.period as f64);
        let _ = write!(text, ", one every {} of {}", figure(of, period), row.looked_at);
    }
    if selection.lost > 0 {
        let _ = write!(text, "; {} samples lost", selection.lost);
    }
    if let Some(warning) = total.warning() {
        let _ = write!(text, "; {warning}");
    }
    text
}

/// Samples below which a picture says more about chance than about the program: shares are off by a tenth and more.
const FEW_SAMPLES: u64 = 100;

/// Sums over a selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Total {
    /// Samples.
    pub samples: u64,
    /// What they stand for, as people read it: seconds, or how many.
    pub sum: f64,
    /// Its standard error, at most.
    pub error: f64,
    /// Everything was counted: a small number says as much as a large one.
    pub is_exact: bool,
}

impl Total {
    /// Adds a selection up.
    #[must_use]
    pub fn of(selection: &Selection) -> Self {
        Self::of_values(selection.shown_type(), selection.shown().map(|sample| sample.value))
    }

    /// What to say where so few samples show little: how far off a share may be, and what would help.
    ///
    /// A share of a half is the least certain one: 95 of a hundred times it is off by less than 0.98 / √n.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let n = self.samples;
        let advice = "record longer, or under more load";
        match n {
            1.. if self.is_exact => None,
            0 => Some(format!("no samples: {advice}")),
            FEW_SAMPLES.. => None,
            _ => {
                let off = 98.0 / (n as f64).sqrt();
                Some(format!("few samples ({n}): shares may be {off:.0} % off; {advice}"))
            }
        }
    }

    /// Adds values of samples up.
    pub fn of_values(of: SampleType, values: impl Iterator<Item = u64>) -> Self {
        let unit = of.row().unit;
        let (mut samples, mut sum, mut squares) = (0, 0_u64, 0.0);
        for value in values {
            let n = of.samples(value);
            samples += n;
            sum = sum.saturating_add(value);
            // What is not looked at now and then, but measured each time, is not off by chance.
            if of.is_by_chance(value) {
                squares += unit.shown(value as f64).powi(2) / n.max(1) as f64;
            }
        }
        let error = f64::sqrt(squares);
        Self { samples, sum: unit.shown(sum as f64), error, is_exact: of.kind == SampleKind::Goroutines }
    }
}

/// A shown value of a kind, as people read it.
fn figure(of: SampleType, value: f64) -> String {
    match of.row().unit {
        SampleUnit::Nanoseconds => seconds(value),
        SampleUnit::Count => format!("{value:.0}"),
        SampleUnit::Bytes => bytes(value),
    }
}

/// The same, and what it is.
fn amount(of: SampleType, value: f64) -> String {
    let between = if of.row().unit == SampleUnit::Count { " " } else { " of " };
    format!("{}{between}{}", figure(of, value), of.row().quantity)
}

/// A time in a unit that suits it.
fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 || value == 0.0 => format!("{value:.2} s"),
        value if value >= 0.001 => format!("{:.1} ms", value * 1e3),
        value => format!("{:.1} µs", value * 1e6),
    }
}

/// Memory in a unit that suits it.
fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} GB", value / 1e9),
        value if value >= 1e6 => format!("{:.1} MB", value / 1e6),
        value if value >= 1e3 => format!("{:.1} kB", value / 1e3),
        value => format!("{value:.0} B"),
    }
}

#[cfg(test)]
mod tests;
