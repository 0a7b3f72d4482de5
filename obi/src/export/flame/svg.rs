//! The picture.
//!
//! In: a tree. Out: SVG. Positions are whole numbers wherever they can be, so that the text is the same everywhere.
//! Refuses to know samples, and what browsers allow it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::look::View;
use super::paint::{self, Colour};
use super::style;
use super::tree::{Key, Kind, Node, Tree};
use super::{amount, figure};
use crate::profile::{Fidelity, Runtime};

/// Sizes in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: usize = 17;
/// Of the widest among the fonts named below at 12 pixels: SF Mono has 7.42, DejaVu Sans Mono 7.22. As in `script.js`.
const LETTER: f64 = 7.5;
/// Of the line above the graph that says what a bar is.
const DETAILS: usize = 18;
/// Frames lower than this have no room on a page that can be scrolled.
const DEPTH: usize = 700;

/// Room of the field and the button that the script shows.
const CONTROLS: f64 = 350.0;
/// Text of the script's element, byte for byte: browsers run it where they are given its hash.
pub const SCRIPT: &str = concat!("\n", include_str!("script.js"));

/// What is drawn.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    /// Lines below it.
    pub(super) subtitle: String,
    /// Of a difference: what both sides are called.
    pub(super) sides: Option<[&'a str; 2]>,
    pub(super) view: View,
    pub(super) tree: &'a Tree,
}

/// A bar's place, in shares of the whole width.
#[derive(Debug, Clone, Copy)]
struct Bar {
    node: usize,
    depth: usize,
    left: f64,
    width: f64,
}

impl Picture<'_> {
    pub(super) fn write(&self) -> String {
        let mut out = String::new();
        self.write_to(&mut out).expect("writing to a string cannot fail");
        out
    }

    fn write_to(&self, out: &mut String) -> fmt::Result {
        let bars = self.bars();
        let depth = bars.iter().map(|bar| bar.depth).max().unwrap_or(0) + 1;
        let notes: Vec<&str> = self.subtitle.lines().chain(self.view.note()).collect();
        let legend = self.legend();
        let legend_y = 46 + 16 * notes.len() + 4;
        let legend_rows = legend.last().map_or(0, |entry| entry.row);
        let head = legend_y + ROW * legend_rows + 22 + if self.view.grows_down() { DETAILS } else { 0 };
        let height = head + depth * ROW + 34;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" \
             font-size=\"12\">"
        )?;
        out.push_str(style::STYLE);
        writeln!(out, "<rect class=\"page\" width=\"100%\" height=\"100%\"/>")?;
        writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"26\">{}</text>", Escaped(self.title))?;
        for (index, line) in notes.into_iter().enumerate() {
            let y = 46 + 16 * index;
            writeln!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", Escaped(line))?;
        }
        write_controls(out, legend_y - 17)?;
        write_legend(out, &legend, legend_y)?;
        if self.tree.nodes[0].values == [0; 2] {
            writeln!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{head}\">no samples</text>")?;
        }
        writeln!(out, "<g id=\"graph\" transform=\"translate({MARGIN} {head})\">")?;
        let mut colours: BTreeSet<Colour> = legend.iter().map(|entry| entry.colour).collect();
        for bar in &bars {
            let row = if self.view.grows_down() { bar.depth } else { depth - 1 - bar.depth };
            colours.insert(self.colour(&self.tree.nodes[bar.node]));
            self.write_bar(out, bar, row * ROW)?;
        }
        writeln!(out, "</g>")?;
        // Beside the root.
        let y = if self.view.grows_down() { head - 8 } else { height - 14 };
        write!(out, "<text id=\"details\" class=\"note\" x=\"{MARGIN}\" y=\"{y}\">")?;
        if self.tree.left_out > 0 {
            write!(out, "{} frames too narrow to be drawn", self.tree.left_out)?;
        }
        writeln!(out, "</text>")?;
        style::write_dark(out, &colours)?;
        writeln!(out, "<script><![CDATA[{SCRIPT}]]></script>\n</svg>")
    }

    /// Parents before their children.
    fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut open = vec![Bar { node: 0, depth: 0, left: 0.0, width: 1.0 }];
        while let Some(bar) = open.pop() {
            let mut left = bar.left;
            let first = open.len();
            for child in &self.tree.nodes[bar.node].children {
                let width = self.share(&self.tree.nodes[*child]);
                if bar.depth < DEPTH {
                    open.push(Bar { node: *child, depth: bar.depth + 1, left, width });
                }
                left += width;
            }
            open[first..].reverse();
            bars.push(bar);
        }
        bars
    }

    /// Of the whole width.
    fn share(&self, node: &Node) -> f64 {
        let shares = [0, 1].map(|selection| self.tree.share(node, selection));
        let totals = self.tree.nodes[0].values;
        match self.sides.is_some() && totals[0] > 0 && totals[1] > 0 {
            true => f64::midpoint(shares[0], shares[1]),
            false => shares[0].max(shares[1]),
        }
    }

    fn write_bar(&self, out: &mut String, bar: &Bar, y: usize) -> fmt::Result {
        let node = &self.tree.nodes[bar.node];
        let inner = WIDTH - 2.0 * MARGIN;
        let (x, width) = (bar.left * inner, bar.width * inner);
        let colour = self.colour(node);
        let class = if is_dark(&node.key) { " class=\"dark\"" } else { "" };
        // One stop of the Tab key for all of them; the script moves it.
        let stop = if bar.depth == 0 { " tabindex=\"0\" role=\"button\"" } else { "" };
        write!(out, "<g{class}{stop}><title>{}</title>", Escaped(&self.details(node)))?;
        write!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" fill=\"{colour}\"/>",
            ROW - 1
        )?;
        let text = fit(&node.key.name, width);
        if !text.is_empty() {
            write!(out, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 3.0, y + 12, Escaped(&text))?;
        }
        writeln!(out, "</g>")
    }

    fn colour(&self, node: &Node) -> Colour {
        match (self.sides, node.key.kind) {
            (Some(_), Kind::Code(_, fidelity)) if fidelity != Fidelity::Marker => self.colour_of_change(node),
            _ => paint::of(&node.key),
        }
    }

    fn colour_of_change(&self, node: &Node) -> Colour {
        let [before, now] = [0, 1].map(|selection| self.tree.share(node, selection));
        match self.is_chance(node) {
            true => paint::of_change(1.0, 1.0),
            false => paint::of_change(before, now),
        }
    }

    fn is_chance(&self, node: &Node) -> bool {
        paint::is_chance(self.tree.counts(node, 0), self.tree.counts(node, 1))
    }

    /// What a bar says when it is pointed at; its first line is its name.
    fn details(&self, node: &Node) -> String {
        let mut text = node.key.name.to_string();
        let _ = write!(text, "\n{}", kind_words(&node.key));
        if let Some([old, new]) = self.sides {
            let [before, now] = [0, 1].map(|selection| 100.0 * self.tree.share(node, selection));
            let _ = write!(text, "\n{before:.2} % {old}, {now:.2} % {new} ({:+.2})", now - before);
            if self.is_chance(node) && before != now {
                text.push_str(", within the standard error");
            }
        } else {
            let of = self.tree.types[0];
            let shown = |value: u64| of.row().unit.shown(value as f64);
            let share = 100.0 * self.tree.share(node, 0);
            let _ = write!(text, "\n{share:.2} %, {}", amount(of, shown(node.values[0])));
            if of.kind.has_clock() {
                // Each period is a sample, or none.
                let error = (node.values[0] as f64 * of.period as f64).sqrt();
                let _ = write!(text, " ± {}", figure(of, of.row().unit.shown(error)));
            }
            if self.view != View::Callers {
                let _ = write!(text, "; {} of it in itself", figure(of, shown(node.own[0])));
            }
        }
        text
    }

    /// What colours stand for: of bars that there are.
    fn legend(&self) -> Vec<Entry> {
        let mut entries: Vec<(String, Colour)> = Vec::new();
        if let Some([old, new]) = self.sides {
            let empty = self.tree.nodes[0].values.iter().zip([old, new]).find(|(value, _)| **value == 0);
            if let Some((_, side)) = empty {
                entries
                    .push((format!("no sample {side}: nothing to compare with"), paint::of_change(1.0, 1.0)));
            } else {
                entries.push((format!("larger share {old}"), paint::of_change(2.0, 1.0)));
                entries.push(("no difference beyond chance".to_owned(), paint::of_change(1.0, 1.0)));
                entries.push((format!("larger share {new}"), paint::of_change(1.0, 2.0)));
            }
        } else {
            let nodes = || self.tree.nodes.iter().map(|node| &node.key);
            let waits: BTreeSet<&Arc<str>> = nodes().filter_map(|key| key.wait.as_ref()).collect();
            entries.extend(
                waits.into_iter().map(|reason| (format!("waiting: {reason}"), paint::of_wait(reason))),
            );
            let is_used =
                |kind: Kind| nodes().any(|key| key.wait.is_none() && class(key.kind) == class(kind));
            let used = paint::LEGEND.into_iter().filter(|(_, kind)| is_used(*kind));
            entries.extend(used.map(|(name, kind)| (name.to_owned(), paint::of_kind(kind))));
        }
        placed(entries)
    }
}

/// A colour of the legend.
#[derive(Debug)]
struct Entry {
    name: String,
    colour: Colour,
    x: f64,
    row: usize,
}

/// Side by side, and below each other where the controls would be in their way.
fn placed(entries: Vec<(String, Colour)>) -> Vec<Entry> {
    let (mut x, mut row) = (MARGIN, 0);
    let place = |(name, colour): (String, Colour)| {
        let width = 34.0 + LETTER * name.chars().count() as f64;
        if x > MARGIN && x + width > WIDTH - MARGIN - CONTROLS {
            (x, row) = (MARGIN, row + 1);
        }
        let entry = Entry { name, colour, x, row };
        x += width;
        entry
    };
    entries.into_iter().map(place).collect()
}

fn write_legend(out: &mut String, entries: &[Entry], y: usize) -> fmt::Result {
    for Entry { name, colour, x, row } in entries {
        let y = y + ROW * row;
        write!(out, "<rect x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>", y - 10)?;
        writeln!(out, "<text class=\"note\" x=\"{}\" y=\"{y}\">{}</text>", x + 16.0, Escaped(name))?;
    }
    Ok(())
}

/// What the script shows: without it there is nothing to search and to reset.
fn write_controls(out: &mut String, y: usize) -> fmt::Result {
    let x = WIDTH - MARGIN - CONTROLS;
    writeln!(
        out,
        "<foreignObject id=\"controls\" display=\"none\" x=\"{x}\" y=\"{y}\" width=\"{CONTROLS}\" height=\"26\">\
         <div xmlns=\"http://www.w3.org/1999/xhtml\" class=\"controls\"><output id=\"found\"></output>\
         <input id=\"search\" type=\"search\" placeholder=\"search (/)\" aria-label=\"Functions to search for, a \
         regular expression\"/><button id=\"reset\" type=\"button\">reset</button></div></foreignObject>"
    )
}

fn is_dark(key: &Key) -> bool {
    key.wait.is_none() && matches!(key.kind, Kind::Code(_, Fidelity::Marker))
}

/// What has one colour.
fn class(kind: Kind) -> Option<(u8, Runtime)> {
    match kind {
        Kind::Level(_) => None,
        Kind::Code(_, Fidelity::Marker) => Some((2, Runtime::Native)),
        Kind::Code(Runtime::Kernel, _) => Some((0, Runtime::Kernel)),
        Kind::Code(_, Fidelity::Address) => Some((1, Runtime::Native)),
        Kind::Code(runtime, _) => Some((0, runtime)),
    }
}

fn kind_words(key: &Key) -> String {
    let Kind::Code(runtime, fidelity) = key.kind else {
        let Kind::Level(what) = key.kind else { return String::new() };
        return what.to_owned();
    };
    let runtime = match runtime {
        Runtime::Kernel => "kernel",
        Runtime::Native => "native",
        Runtime::Go => "Go",
        Runtime::Rust => "Rust",
        Runtime::V8 => "JavaScript (V8)",
        Runtime::Jvm => "JVM",
        Runtime::Dotnet => ".NET",
        Runtime::Cpython => "Python",
    };
    let fidelity = match fidelity {
        Fidelity::Lines => "named by debug information",
        Fidelity::Function => "named by a symbol table",
        Fidelity::Address => "nothing names it on this machine",
        Fidelity::Marker => {
            return "the walk along the stack ended here; its callers are not known".to_owned();
        }
    };
    let mut words = format!("{runtime}, {fidelity}");
    if key.is_inlined {
        words.push_str(", inlined");
    }
    if !key.module.is_empty() {
        let _ = write!(words, ", in {}", key.module);
    }
    if let Some(reason) = &key.wait {
        let _ = write!(words, "; waiting: {reason}");
    }
    words
}

/// As much of a name as fits.
fn fit(name: &str, width: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a few hundred")]
    let room = ((width - 4.0) / LETTER).max(0.0) as usize;
    let columns = |letter: char| if letter < WIDE { 1 } else { 2 };
    if room < 3 {
        return String::new();
    }
    if name.chars().map(columns).sum::<usize>() <= room {
        return name.to_owned();
    }
    let mut used = 2;
    let fits = |letter: &char| {
        used += columns(*letter);
        used <= room
    };
    name.chars().take_while(fits).chain("..".chars()).collect()
}

/// Letters from here on may take two columns (Hangul, CJK, emoji).
const WIDE: char = '\u{1100}';

/// Text as XML has it; what XML cannot have is replaced.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\n' => out.write_char('\n')?,
                '\u{fffe}' | '\u{ffff}' => out.write_char('\u{fffd}')?,
                letter if letter.is_control() => out.write_char('\u{fffd}')?,
                letter => out.write_char(letter)?,
            }
        }
        Ok(())
    }
}
