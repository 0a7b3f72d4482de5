//! Durations of a service along time: how many took how long, and examples to open.
//!
//! In: the last hour of a service, recent spans, its alerts. Out: a picture. Refuses to count.
//!
//! Each cell is as dark as many requests were in it. On them lie spans that are held: a circle is one that went well,
//! a cross one that failed; each opens its trace's span. A line stands where an alert began to fire.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::figures::Row;
use super::lately::course;
use super::parameter::Range;
use super::trace::is_error;
use super::{link, text};
use crate::clock::Clock;
use crate::objective::view::AlertView;
use crate::red::history::{SLOT, Tally};
use crate::red::{Past, seconds};
use crate::span::Span;
use crate::span_store::Stored;

/// Columns.
const COLUMNS: u64 = 60;
/// Parts of the axis between two times.
const TICKS: u64 = 5;
/// Steps of darkness.
const STEPS: usize = 6;
/// Examples of a column: failed ones, and slow ones.
const EXAMPLES: usize = 2;
/// Size of a cell.
const WIDE: f64 = 16.0;
const TALL: f64 = 11.0;
/// Room for the names of rows.
const LEFT: f64 = 64.0;

/// What is drawn.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) row: &'a Row,
    pub(super) past: &'a Past,
    pub(super) range: Range,
    pub(super) spans: &'a [Stored],
    /// Those of its objectives.
    pub(super) alerts: &'a [&'a AlertView],
}

/// The picture's measures.
#[derive(Debug)]
struct Grid {
    /// So many columns are over before anything is known.
    unknown: usize,
    /// First slot, and slots of a column.
    first: u64,
    each: f64,
    /// Lowest and highest bucket.
    low: i8,
    high: i8,
    /// Wall clock less the registry's, ns.
    ahead: u64,
}

impl Grid {
    fn width(&self) -> f64 {
        LEFT + COLUMNS as f64 * WIDE
    }

    fn height(&self) -> f64 {
        f64::from(i16::from(self.high) - i16::from(self.low) + 1) * TALL
    }

    fn column(&self, nth: u64) -> u64 {
        (((nth.saturating_sub(self.first)) as f64 / self.each) as u64).min(COLUMNS - 1)
    }

    /// Where a bucket begins from the top.
    fn top(&self, bucket: i8) -> f64 {
        f64::from(i16::from(self.high) - i16::from(bucket)) * TALL
    }

    /// Where a moment of the wall clock stands, in columns; `None` before the first and behind the last.
    fn along(&self, time: u64) -> Option<f64> {
        let at = time.checked_sub(self.ahead)? as f64 / SLOT as f64 - self.first as f64;
        Some(at / self.each).filter(|x| (0.0..COLUMNS as f64).contains(x))
    }

    /// When a column begins, seconds since the Unix epoch.
    fn second(&self, column: u64) -> u64 {
        let slots = self.first as f64 + column as f64 * self.each;
        self.ahead.saturating_add((slots * SLOT as f64) as u64) / 1_000_000_000
    }

    /// Where a span stands that ended then and took so long; `None` outside.
    fn place(&self, span: &Span) -> Option<(f64, f64)> {
        let x = self.along(span.end)?;
        let bucket = 2.0 * seconds(span.end.saturating_sub(span.start).max(1)).log2();
        let y = f64::from(self.high) - bucket;
        let rows = self.height() / TALL;
        (0.0..rows).contains(&y).then_some((LEFT + x * WIDE, y * TALL))
    }
}

/// Nothing where there is nothing to draw.
pub(super) fn picture(shown: &Shown<'_>) -> Markup {
    let Some(slots) = shown.range.slots() else { return html! {} };
    let (first, _) = shown.past.window(slots);
    let mut columns = BTreeMap::<u64, Tally>::new();
    let each = slots as f64 / COLUMNS as f64;
    for (nth, tally) in course(shown.past, shown.row).into_iter().flat_map(|course| course.since(first)) {
        let column = (((nth - first) as f64 / each) as u64).min(COLUMNS - 1);
        columns.entry(column).or_default().join(&tally);
    }
    let cells: Vec<(u64, i8, u64)> = columns
        .iter()
        .flat_map(|(column, tally)| tally.cells().map(|(cell, n)| (*column, cell.max(LOWEST), n)))
        .collect();
    let (Some(low), Some(high)) =
        (cells.iter().map(|cell| cell.1).min(), cells.iter().map(|cell| cell.1).max())
    else {
        return html! {};
    };
    let ahead = Clock::now().unix(0);
    let unknown = ((shown.past.known / SLOT).saturating_sub(first) as f64 / each) as usize;
    let (low, high) = (low.saturating_sub(1), high.saturating_add(1));
    let grid = Grid { unknown: unknown.min(COLUMNS as usize), first, each, low, high, ahead };
    drawn(shown, &grid, &cells)
}

/// Clock times along the axis, with the first and the last of them.
fn ticks(grid: &Grid) -> Vec<u64> {
    let columns = |nth: u64| COLUMNS as f64 * nth as f64 / TICKS as f64;
    let slot = |nth| grid.first as f64 + columns(nth) * grid.each;
    (0..=TICKS).map(|nth| grid.ahead.saturating_add((slot(nth) * SLOT as f64) as u64)).collect()
}

fn tick(nth: usize, at: &u64, height: f64) -> Markup {
    let x = LEFT + COLUMNS as f64 * WIDE * nth as f64 / TICKS as f64;
    html! {
        line.axis x1=(x) x2=(x) y1=(height) y2=(height + 4.0) {}
        (text::clock(*at, (x, height + 18.0), nth == 0))
    }
}

/// A microsecond; what is shorter stands with it.
const LOWEST: i8 = -40;

fn drawn(shown: &Shown<'_>, grid: &Grid, cells: &[(u64, i8, u64)]) -> Markup {
    let (width, height) = (grid.width(), grid.height());
    let most = cells.iter().map(|cell| cell.2).max().unwrap_or(1);
    let columns_of_slot = (1.0 / grid.each).max(1.0);
    let mut steps = vec![String::new(); STEPS];
    for (column, bucket, n) in cells {
        let (x, y) = (LEFT + *column as f64 * WIDE, grid.top(*bucket));
        let wide = WIDE * columns_of_slot;
        steps[step(*n, most)].push_str(&format!("M{x:.0} {y:.0}h{wide:.0}v{TALL:.0}h-{wide:.0}z"));
    }
    let examples = examples(shown, grid);
    let starts = starts(shown, grid);
    let of = [("service", &*shown.row.service.name), ("kind", shown.row.kind.name())];
    // A name may be too long to be asked for.
    let spans = Some(link::with("spans", &of)).filter(|link| link.contains('?'));
    html! {
        figure.heat {
            div.wide tabindex="0" {
                svg viewBox={ "0 0 " (width + 24.0) " " (height + 26.0) } role="group" aria-label="Durations along time; circles and crosses are spans to be opened" data-spans=[spans] data-high=(grid.high) data-tall=(TALL)
                    data-from=(grid.second(0)) data-to=(grid.second(COLUMNS)) data-left=(LEFT) data-wide=(WIDE * COLUMNS as f64) {
                    @for bucket in (grid.low..=grid.high).filter(|bucket| bucket.rem_euclid(4) == 0) { (mark(grid, bucket)) }
                    @for (nth, path) in steps.iter().enumerate().filter(|(_, path)| !path.is_empty()) { path class={ "h" (nth) } d=(path) {} }
                    @if grid.unknown > 0 { (unknown(grid)) }
                    line.axis x1=(LEFT) x2=(width) y1=(height) y2=(height) {}
                    @for (x, alert) in &starts { (start(*x, alert, height)) }
                    @for span in &examples { (example(span, grid)) }
                    @for (nth, at) in ticks(grid).iter().enumerate() { (tick(nth, at, height)) }
                }
            }
            figcaption.quiet {
                "How long requests took in the last " (shown.range.name()) "; darker cells are more requests, at most " (text::count(most)) ". "
                @if !examples.is_empty() { "Open one: ○ went well, " span.bad { "×" } " failed. " }
                @if grid.unknown > 0 { "The grey part is not known: this agent had not begun, or it is not held any more. " }
                @if !starts.is_empty() { span.bad { "┊" } " where an alert began to fire." }
            }
        }
    }
}

/// Logarithmic, as durations are: one request in a cell is to be seen beside a thousand.
fn step(n: u64, most: u64) -> usize {
    let share = (n as f64).ln_1p() / (most as f64).ln_1p();
    ((share * STEPS as f64).ceil() as usize).clamp(1, STEPS) - 1
}

/// A line, and how long that is.
fn mark(grid: &Grid, bucket: i8) -> Markup {
    let y = grid.top(bucket);
    let bound = (f64::from(bucket) / 2.0).exp2();
    html! {
        line.grid x1=(LEFT) x2=(grid.width()) y1=(y) y2=(y) {}
        text x=(LEFT - 6.0) y=(y + 4.0) text-anchor="end" { (text::duration(bound)) }
    }
}

/// Alerts that began within the picture, and where; a ticket that begins with its page says nothing new.
fn starts<'a>(shown: &Shown<'a>, grid: &Grid) -> Vec<(f64, &'a AlertView)> {
    let mut starts: Vec<(f64, &AlertView)> = Vec::new();
    for alert in shown.alerts {
        let Some(x) = text::unix_of(&alert.starts_at).and_then(|time| grid.along(time)) else { continue };
        let slo = |alert: &AlertView| alert.labels.get("slo").cloned();
        let is_new = |(at, other): &(f64, &AlertView)| (at - x).abs() > 0.5 || slo(other) != slo(alert);
        if starts.iter().all(is_new) {
            starts.push((x, alert));
        }
    }
    starts
}

/// Where nothing is known, grey and with a word.
fn unknown(grid: &Grid) -> Markup {
    let wide = WIDE * grid.unknown as f64;
    html! {
        rect.unknown x=(LEFT) y="0" width=(wide) height=(grid.height()) {}
        @if grid.unknown >= 6 { text x=(LEFT + wide / 2.0) y=(grid.height() / 2.0 + 4.0) text-anchor="middle" { "not known" } }
    }
}

/// A line from top to bottom that leads to the objective.
fn start(x: f64, alert: &AlertView, height: f64) -> Markup {
    let x = LEFT + x * WIDE;
    let slo = alert.labels.get("slo").map_or("", String::as_str);
    let said = format!("{} began to fire", text::short(slo));
    let line = html! {
        title { (said) }
        line.began x1=(format!("{x:.0}")) x2=(format!("{x:.0}")) y1="0" y2=(height) {}
    };
    html! {
        @match link::slo(slo) {
            Some(address) => a href=(address) aria-label=(said) { (line) },
            None => g { (line) },
        }
    }
}

/// Of each column the last that failed, and the slowest.
fn examples<'a>(shown: &'a Shown<'_>, grid: &Grid) -> Vec<&'a Span> {
    let mut columns = BTreeMap::<u64, (Vec<&Span>, Vec<&Span>)>::new();
    let of = |span: &&Span| span.kind == shown.row.kind && span.service.id == shown.row.service.id;
    for span in shown.spans.iter().map(|stored| &*stored.span).filter(of) {
        if grid.place(span).is_some() {
            let slot = span.end.saturating_sub(grid.ahead) / SLOT;
            let (failed, well) = columns.entry(grid.column(slot)).or_default();
            if is_error(span) { failed.push(span) } else { well.push(span) }
        }
    }
    let took = |span: &&Span| std::cmp::Reverse(span.end.saturating_sub(span.start));
    let chosen = columns.into_values().flat_map(|(mut failed, mut well)| {
        well.sort_by_key(took);
        failed.truncate(EXAMPLES);
        well.truncate(1);
        failed.into_iter().chain(well)
    });
    chosen.collect()
}

fn example(span: &Span, grid: &Grid) -> Markup {
    let Some((x, y)) = grid.place(span) else { return html! {} };
    let took = text::duration(seconds(span.end.saturating_sub(span.start)));
    let name = text::short(&span.name().to_string());
    html! {
        a href=(link::span(&span.trace_id, &span.span_id)) aria-label={ (name) ", " (took) @if is_error(span) { ", failed" } } {
            title { (name) ", " (took) @if is_error(span) { ", " (text::short(span.error_type)) } }
            @if is_error(span) { path.cross d=(format!("M{:.0} {:.0}l8 8m0 -8l-8 8", x - 4.0, y - 4.0)) {} }
            @else { circle cx=(format!("{x:.0}")) cy=(format!("{y:.0}")) r="4" {} }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::red::tests::span_with;
    use crate::red::{Limits, Registry};
    use crate::span::SpanKind;

    #[test]
    fn one_of_many_is_seen() {
        assert_eq!((step(1, 1), step(1, 1_000_000), step(1_000_000, 1_000_000)), (5, 0, 5));
        let steps: Vec<_> = [1, 3, 10, 100, 1_000].iter().map(|n| step(*n, 1_000)).collect();
        assert!(steps.is_sorted() && steps[4] == 5, "{steps:?}");
    }

    #[test]
    fn alerts_stand_where_they_began_to_fire() {
        let alert = |slo: &str, severity: &str, starts_at: &str| AlertView {
            state: "firing".to_owned(),
            labels: [("slo", slo), ("severity", severity)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            annotations: BTreeMap::new(),
            starts_at: starts_at.to_owned(),
            resolved_at: None,
        };
        // Five minutes before midnight, a column for each slot of five seconds.
        let begun = "2026-11-26T00:00:00Z".parse::<Timestamp>().unwrap().as_nanosecond();
        let ahead = u64::try_from(begun).unwrap() - 1_000 * SLOT;
        let grid = Grid { unknown: 0, first: 1_000, each: 1.0, low: 0, high: 1, ahead };
        let at = |columns: u64| {
            let time = begun + i128::from(columns * SLOT);
            Timestamp::from_nanosecond(time).unwrap().to_string()
        };
        let all = [
            alert("a", "page", &at(10)),
            alert("a", "ticket", &at(10)),
            alert("b", "page", &at(10)),
            alert("a", "page", &at(59)),
            alert("c", "page", &at(60)),
            alert("c", "page", "2026-11-25T23:59:59Z"),
            alert("c", "page", "lately"),
        ];
        let alerts: Vec<_> = all.iter().collect();
        let mut registry = Registry::new(Limits::default());
        registry.record(&span_with(SpanKind::Server, |_| ()));
        let row = &super::super::figures::rows(&registry.snapshot())[0];
        let past = registry.past();
        let shown = Shown { row, past: &past, range: Range::default(), spans: &[], alerts: &alerts };
        let found: Vec<_> = starts(&shown, &grid)
            .into_iter()
            .map(|(x, alert)| (x.round(), alert.labels["slo"].as_str()))
            .collect();
        assert_eq!(found, [(10.0, "a"), (10.0, "b"), (59.0, "a")]);
        let line = start(10.0, all.first().unwrap(), 22.0).into_string();
        assert!(line.contains("href=\"/slos/a\"") && line.contains("a began to fire"), "{line}");
    }
}
