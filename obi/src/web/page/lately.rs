//! Rate, errors and durations of the last minutes, with lines along time.
//!
//! In: the last two hours by service. Out: figures of a range, small pictures. Refuses to count.

use maud::{Markup, html};

use super::figures::{Figures, Row};
use super::parameter::Range;
use super::text;
use crate::red::Past;
use crate::red::history::{Course, SLOT, Tally};

/// Points of a line.
const POINTS: u64 = 30;

/// How it went lately.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lately {
    /// How long that is, seconds.
    pub(super) seconds: f64,
    /// Requests and errors along time.
    pub(super) points: Vec<(u64, u64)>,
    /// So many of the points are over before the agent began, or are not held any more.
    pub(super) unknown: usize,
    /// The same time an hour before; `None` if nothing of it is known.
    pub(super) before: Option<Before>,
}

/// How it went an hour before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Before {
    pub(super) figures: Figures,
    /// How much of that time is known, seconds.
    pub(super) seconds: f64,
    /// As [`Lately::points`].
    pub(super) points: Vec<(u64, u64)>,
    /// So many of the points are not known.
    pub(super) unknown: usize,
}

/// The course of a row.
pub(super) fn course<'a>(past: &'a Past, row: &Row) -> Option<&'a Course> {
    past.lines.iter().find(|course| course.kind == row.kind && course.service().id == row.service.id)
}

/// Puts the figures of a range into rows; without a history, or if all is wanted, they stay what they are.
pub(super) fn apply(rows: &mut [Row], past: &Past, range: Range) {
    let Some(slots) = range.slots().filter(|_| past.now > 0) else { return };
    let (first, seconds) = past.window(slots);
    let unknown = past.unknown(first, slots / POINTS, POINTS as usize);
    for row in rows {
        let (figures, points) = within(course(past, row), first, slots);
        let before = past.window_before(slots).map(|(first, seconds)| {
            let (figures, points) = within(course(past, row), first, slots);
            let each = (slots / POINTS * SLOT / 1_000_000_000) as f64;
            // A point that is known in part is not known.
            let unknown = POINTS as usize - (seconds / each).floor() as usize;
            Before { figures, seconds, points, unknown }
        });
        (row.figures, row.lately) = (figures, Some(Lately { seconds, points, unknown, before }));
    }
}

/// The figures of so many slots, and their points.
fn within(course: Option<&Course>, first: u64, slots: u64) -> (Figures, Vec<(u64, u64)>) {
    let (mut sum, mut points) = (Tally::default(), vec![(0, 0); POINTS as usize]);
    let counted = course.into_iter().flat_map(|course| course.since(first));
    for (nth, tally) in counted.filter(|(nth, _)| *nth < first + slots) {
        sum.join(&tally);
        let place = usize::try_from((nth - first) / (slots / POINTS)).unwrap_or(usize::MAX);
        if let Some((requests, errors)) = points.get_mut(place) {
            *requests += tally.requests;
            *errors += tally.errors;
        }
    }
    let (requests, errors, spread) = (sum.requests, sum.errors, sum.spread());
    (Figures { requests, errors, spread, ..Figures::default() }, points)
}

/// Requests of a row: a rate with its line, or their number.
pub(super) fn requests(row: &Row) -> Markup {
    let n = row.figures.requests;
    html! {
        @match &row.lately {
            Some(lately) => {
                (line(&lately.points, lately.unknown)) " "
                span.per title=(text::counted(n, "request", "requests")) { (text::rate(n as f64 / lately.seconds)) }
            },
            None => span data-is="requests" { (text::count(n)) },
        }
    }
}

/// Requests of a row beside those of the hour before, the lines of one height.
pub(super) fn compared(row: &Row) -> Markup {
    let Some(Lately { seconds, points, unknown, before: Some(before) }) = &row.lately else {
        return requests(row);
    };
    let highest = |points: &[(u64, u64)]| points.iter().map(|(requests, _)| *requests).max().unwrap_or(0);
    let top = highest(points).max(highest(&before.points));
    let shown = |n: u64, seconds: f64, word: &str| {
        html! { span.per data-is=(word) title=(text::counted(n, "request", "requests")) { (text::rate(n as f64 / seconds)) } }
    };
    html! {
        (drawn(points, *unknown, top)) " " (shown(row.figures.requests, *seconds, "now"))
        div.before {
            (drawn(&before.points, before.unknown, top)) " "
            (shown(before.figures.requests, before.seconds, "before")) " " (EARLIER)
        }
    }
}

/// So many times as long as an hour before is marked: both are up to 19 % off, which is 1.4 times at the worst.
const SLOWER: f64 = 2.0;
/// Requests on both sides without which a quantile is chance.
const ENOUGH: u64 = 20;

/// What stands beside numbers of the hour before.
const EARLIER: &str = "an hour before";

/// A number of the hour before; nothing where it is not known.
pub(super) fn earlier(row: &Row, shown: impl Fn(&Figures) -> Markup) -> Markup {
    let before = row.lately.as_ref().and_then(|lately| lately.before.as_ref());
    html! { @if let Some(before) = before { div.before { (shown(&before.figures)) " " (EARLIER) } } }
}

/// What so many took no longer than; marked where it is far more than in the hour before.
pub(super) fn quantile(row: &Row, ratio: f64) -> Markup {
    let now = row.figures.spread.quantile(ratio);
    let before = row.lately.as_ref().and_then(|lately| lately.before.as_ref()).map(|before| &before.figures);
    let is_known = |figures: &&Figures| figures.spread.count() >= ENOUGH;
    let usual = before.filter(is_known).filter(|_| is_known(&&row.figures));
    let usual = usual.and_then(|before| before.spread.quantile(ratio));
    match (now, usual) {
        (Some(now), Some(usual)) if now > SLOWER * usual => html! {
            b.warn data-is="slower" title={ (text::near_duration(Some(usual))) " " (EARLIER) } { "▲ " (text::near_duration(Some(now))) }
        },
        _ if row.lately.is_some() => html! { (text::near_duration(now)) },
        _ => html! { (text::maybe_duration(now)) },
    }
}

/// What is to be said of the hour before.
pub(super) fn known(row: &Row, range: Range) -> Markup {
    let (Some(slots), Some(lately)) = (range.slots(), &row.lately) else { return html! {} };
    let whole = (slots * SLOT / 1_000_000_000) as f64;
    html! {
        @match &lately.before {
            None => p.quiet { "The hour before is not known: it is not held, or this agent did not run." },
            Some(before) if before.seconds < whole => {
                p.quiet { "Of the hour before " (text::duration(before.seconds)) " of " (text::duration(whole)) " are known." }
            },
            Some(_) => {},
        }
    }
}

/// Requests as an area, errors as bars within it. The last point is the one that goes on: it is left out.
pub(super) fn line(points: &[(u64, u64)], unknown: usize) -> Markup {
    let points = &points[..points.len().saturating_sub(1)];
    drawn(points, unknown, points.iter().map(|(requests, _)| *requests).max().unwrap_or(0))
}

/// Those that are not known are left out.
fn drawn(points: &[(u64, u64)], unknown: usize, top: u64) -> Markup {
    let top = top.max(1) as f64;
    let (mut area, mut bars) = (format!("M{} 20", 2 * unknown), String::new());
    for (nth, (requests, errors)) in points.iter().enumerate().skip(unknown) {
        let y = 20.0 - 19.0 * *requests as f64 / top;
        area.push_str(&format!("V{y:.1}H{}", 2 * (nth + 1)));
        if *errors > 0 {
            // One error of many is seen, too.
            let tall = (19.0 * *errors as f64 / top).max(2.0);
            bars.push_str(&format!("M{} 20v-{tall:.1}h2v{tall:.1}", 2 * nth));
        }
    }
    area.push_str("V20Z");
    html! {
        svg.spark viewBox={ "0 0 " (2 * points.len()) " 20" } preserveAspectRatio="none" aria-hidden="true" {
            path.all d=(area) {}
            @if !bars.is_empty() { path.failed d=(bars) {} }
        }
    }
}

/// Links to the ranges.
pub(super) fn ranges(current: Range, address: impl Fn(Range) -> String) -> Markup {
    html! {
        span.ranges role="group" aria-label="Range" {
            @for range in Range::ALL { a href=(address(range)) aria-current=[(range == current).then_some("true")] { (range.name()) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures;
    use super::*;
    use crate::red::tests::{service, span_with};
    use crate::red::{Limits, Native, Registry, Spread};
    use crate::span::SpanKind;

    const SECOND: u64 = 1_000_000_000;

    /// Rows of five minutes, after these requests: when they came, how many they were, how many of them failed.
    fn row(begun: u64, requests: &[(u64, u64, u64)], now: u64) -> Row {
        let mut registry = Registry::new(Limits::default());
        registry.advance(begun * SECOND);
        for (at, n, failed) in requests {
            registry.advance(at * SECOND);
            for nth in 0..*n {
                registry.record(&span_with(SpanKind::Server, |span| {
                    span.service = service(1);
                    span.end = span.start + 10_000_000;
                    span.error_type = if nth < *failed { "500" } else { "" };
                }));
            }
        }
        registry.advance(now * SECOND);
        let mut rows = figures::rows(&registry.snapshot());
        apply(&mut rows, &registry.past(), Range::Minutes5);
        rows.remove(0)
    }

    #[test]
    fn numbers_stand_beside_those_of_the_hour_before() {
        // At 10,000 s: five minutes from 9,710 s on, and those from 6,110 s to 6,410 s.
        let all =
            [(6_100, 1, 0), (6_200, 6, 1), (6_400, 2, 0), (6_450, 90, 9), (9_705, 50, 5), (9_900, 3, 2)];
        let shown = row(100, &all, 10_000);
        let before = shown.lately.as_ref().unwrap().before.as_ref().unwrap();
        assert_eq!((shown.figures.requests, shown.figures.errors), (3, 2));
        assert_eq!((before.figures.requests, before.figures.errors, before.seconds), (8, 1, 300.0));
        assert_eq!(before.points.iter().map(|(requests, _)| requests).sum::<u64>(), 8);
        let page = compared(&shown).into_string();
        assert!(page.contains("data-is=\"now\" title=\"3 requests\""), "{page}");
        assert!(page.contains("data-is=\"before\" title=\"8 requests\""), "{page}");
        assert_eq!(known(&shown, Range::Minutes5).into_string(), "");
    }

    #[test]
    fn what_is_not_known_of_the_hour_before_is_said() {
        let all = [(6_400, 2, 0), (9_900, 3, 0)];
        let shown = row(6_310, &all, 10_000);
        let before = shown.lately.as_ref().unwrap().before.as_ref().unwrap();
        assert_eq!((before.figures.requests, before.seconds, before.unknown), (2, 100.0, 20));
        let said = known(&shown, Range::Minutes5).into_string();
        assert!(said.contains("are known"), "{said}");
        let shown = row(6_410, &all[1..], 10_000);
        assert_eq!(shown.lately.as_ref().unwrap().before, None);
        assert!(known(&shown, Range::Minutes5).into_string().contains("is not known"));
        assert!(!compared(&shown).into_string().contains("before"));
    }

    #[test]
    fn what_was_before_the_agent_is_no_quiet_time() {
        // Five minutes are 30 points of ten seconds, from 9,710 s on.
        for (begun, unknown) in [(100, 0), (9_700, 0), (9_719, 0), (9_720, 1), (9_950, 24)] {
            let row = row(begun, &[(9_990, 3, 0)], 10_000);
            assert_eq!(row.lately.as_ref().unwrap().unknown, unknown, "{begun}");
            let shown = requests(&row).into_string();
            assert!(
                shown.contains(&format!("d=\"M{} 20V20.0H{}", 2 * unknown, 2 * unknown + 2)),
                "{begun}: {shown}"
            );
        }
    }

    #[test]
    fn quantiles_of_a_range_are_marked_as_near() {
        let mut row = row(100, &[(9_990, 3, 0)], 10_000);
        assert!(quantile(&row, 0.5).into_string().starts_with("≈ "));
        row.lately = None;
        assert!(!quantile(&row, 0.5).into_string().contains('≈'));
    }

    #[test]
    fn what_is_far_slower_than_an_hour_before_is_marked() {
        let figures = |requests: u64, milliseconds: u64| {
            let (mut native, mut spread) = (Native::default(), Spread::default());
            (0..requests).for_each(|_| native.observe(milliseconds * 1_000_000));
            spread.add(&native);
            Figures { requests, spread, ..Figures::default() }
        };
        let check = |now: (u64, u64), before: Option<(u64, u64)>, is_marked: bool| {
            let mut row = row(6_310, &[(9_900, 1, 0)], 10_000);
            row.figures = figures(now.0, now.1);
            let lately = row.lately.as_mut().unwrap();
            lately.before = before.map(|(requests, duration)| {
                let figures = figures(requests, duration);
                Before { figures, seconds: 300.0, points: Vec::new(), unknown: 0 }
            });
            let shown = quantile(&row, 0.95).into_string();
            assert_eq!(shown.contains("▲"), is_marked, "{now:?} {before:?}: {shown}");
        };
        check((20, 500), Some((20, 100)), true);
        check((20, 500), Some((19, 100)), false);
        check((19, 500), Some((20, 100)), false);
        check((20, 500), Some((20, 300)), false);
        check((20, 100), Some((20, 500)), false);
        check((20, 500), None, false);
    }

    #[test]
    fn lines_begin_and_end_on_the_ground() {
        let shown = line(&[(0, 0), (10, 1), (5, 5), (9, 9)], 0).into_string();
        assert!(shown.contains("d=\"M0 20V20.0H2V1.0H4V10.5H6V20Z\""), "{shown}");
        assert!(shown.contains("d=\"M2 20v-2.0h2v2.0M4 20v-9.5h2v9.5\""), "{shown}");
        assert!(!line(&[], 0).into_string().contains("failed"));
    }
}
