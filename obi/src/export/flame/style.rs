//! The look that all pictures have in common.
//!
//! Out: rules of CSS. Refuses to know what is drawn.

/// Rules of every picture.
pub(super) const STYLE: &str = "\
<style>
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
