//! Rules of CSS: those that all pictures have in common, and those for who wants a dark ground.
//!
//! In: the colours of a picture. Out: text of `style` elements. Refuses to know what is drawn.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::paint::Colour;

/// Rules of every picture.
pub(super) const STYLE: &str = "\
<style>
:root, svg { color-scheme: light; }
text { fill: #1a1a1a; }
.page { fill: #fdfdfb; }
.title { font-size: 16px; font-weight: bold; }
.note { fill: #555; font-size: 12px; }
.controls { display: flex; justify-content: flex-end; align-items: center; gap: 6px; color: #555; }
.controls input, .controls button { box-sizing: border-box; height: 24px; font: inherit; }
.controls input { width: 170px; }
.controls input::placeholder { color: inherit; opacity: 1; }
#graph text { pointer-events: none; }
#graph rect { cursor: pointer; }
#graph g:hover rect { stroke: #000; stroke-width: 0.7; }
#graph g:focus { outline: none; }
#graph g:focus-visible rect { stroke: #000; stroke-width: 2; }
#graph .dark:not(.found) text { fill: #fff; }
#graph .found rect { fill: #f060e6; }
#graph .beneath rect { opacity: 0.55; }
</style>
";

/// What is no bar, where a dark ground is wanted.
const DARK: &str = "\
:root, svg { color-scheme: dark; }
body { background: #14171c; }
text { fill: #f4f4f4; }
.page { fill: #14171c; }
.note { fill: #a9b1bc; }
.controls { color: #a9b1bc; }
#graph g:hover rect, #graph g:focus-visible rect { stroke: #fff; }
#graph .found rect { fill: #a3159a; }
";

/// The rules for a dark ground: each colour that a picture has is replaced by its like. The script finds them by their
/// name.
pub(super) fn write_dark(out: &mut String, colours: &BTreeSet<Colour>) -> fmt::Result {
    write!(out, "<style id=\"dark\">\n@media (prefers-color-scheme: dark) {{\n{DARK}")?;
    for colour in colours {
        writeln!(out, "rect[fill=\"{colour}\"] {{ fill: {}; }}", colour.on_dark())?;
    }
    writeln!(out, "}}\n</style>")
}
