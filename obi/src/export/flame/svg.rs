//! The picture.
//!
//! In: a tree. Out: SVG. Positions are whole numbers wherever they can be, so that the text is the same everywhere.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::paint;
use super::tree::{Key, Kind, Node, Tree};
use super::{amount, figure};
use crate::profile::{Fidelity, Runtime};

/// Sizes in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: usize = 17;
/// Of the widest among the fonts named below at 12 pixels: SF Mono has 7.42, DejaVu Sans Mono 7.22. As in `script.js`.
const LETTER: f64 = 7.5;
/// Frames lower than this have no room on a page that can be scrolled.
const DEPTH: usize = 700;

/// What is drawn.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    /// Lines below it.
    pub(super) subtitle: String,
    /// Of a difference: what both sides are called.
    pub(super) sides: Option<[&'a str; 2]>,
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
        let head = 46 + 16 * self.subtitle.lines().count() + 26;
        let height = head + depth * ROW + 34;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" \
             font-size=\"12\">"
        )?;
        out.push_str(STYLE);
        writeln!(out, "<rect class=\"page\" width=\"100%\" height=\"100%\"/>")?;
        writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"26\">{}</text>", Escaped(self.title))?;
        for (index, line) in self.subtitle.lines().enumerate() {
            let y = 46 + 16 * index;
            writeln!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", Escaped(line))?;
        }
        self.write_controls(out)?;
        self.write_legend(out, head - 22)?;
        if self.tree.nodes[0].values == [0; 2] {
            writeln!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{head}\">no samples</text>")?;
        }
        writeln!(out, "<g id=\"graph\" transform=\"translate({MARGIN} {head})\">")?;
        for bar in &bars {
            // The root stands below.
            self.write_bar(out, bar, (depth - 1 - bar.depth) * ROW)?;
        }
        writeln!(out, "</g>")?;
        let y = height - 14;
        write!(out, "<text id=\"details\" class=\"note\" x=\"{MARGIN}\" y=\"{y}\">")?;
        if self.tree.left_out > 0 {
            write!(out, "{} frames too narrow to be drawn", self.tree.left_out)?;
        }
        writeln!(out, "</text>")?;
        writeln!(out, "<script><![CDATA[\n{}]]></script>\n</svg>", include_str!("script.js"))
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
        let colour = match (self.sides, node.key.kind) {
            (Some(_), Kind::Code(_, fidelity)) if fidelity != Fidelity::Marker => self.colour_of_change(node),
            _ => paint::of(&node.key),
        };
        let class = if is_dark(&node.key) { " class=\"dark\"" } else { "" };
        write!(out, "<g{class}><title>{}</title>", Escaped(&self.details(node)))?;
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

    fn colour_of_change(&self, node: &Node) -> paint::Colour {
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
            let _ = write!(text, "; {} of it in itself", figure(of, shown(node.own[0])));
        }
        text
    }

    fn write_controls(&self, out: &mut String) -> fmt::Result {
        let right = WIDTH - MARGIN;
        writeln!(out, "<text id=\"search\" class=\"link\" x=\"{right}\" y=\"26\">search</text>")?;
        writeln!(out, "<text id=\"reset\" class=\"link\" x=\"{}\" y=\"26\">reset</text>", right - 60.0)?;
        writeln!(
            out,
            "<text id=\"found\" class=\"note\" text-anchor=\"end\" x=\"{}\" y=\"26\"/>",
            right - 120.0
        )
    }

    fn write_legend(&self, out: &mut String, y: usize) -> fmt::Result {
        let mut entries: Vec<(String, paint::Colour)> = Vec::new();
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
        let mut x = MARGIN;
        for (name, colour) in entries {
            write!(out, "<rect x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>", y - 10)?;
            writeln!(out, "<text class=\"note\" x=\"{}\" y=\"{y}\">{}</text>", x + 16.0, Escaped(&name))?;
            x += 34.0 + LETTER * name.len() as f64;
        }
        Ok(())
    }
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

const STYLE: &str = "\
<style>
text { fill: #1a1a1a; }
.page { fill: #fdfdfb; }
.title { font-size: 16px; font-weight: bold; }
.note { fill: #555; font-size: 12px; }
.link { fill: #0b57a4; cursor: pointer; text-anchor: end; }
#graph text { pointer-events: none; }
#graph rect { cursor: pointer; }
#graph g:hover rect { stroke: #000; stroke-width: 0.7; }
#graph .dark text { fill: #fff; }
#graph .found rect { fill: #e21fd4; }
#graph .beneath { opacity: 0.55; }
</style>
";
