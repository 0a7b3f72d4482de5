//! Rate, errors and durations of the last minutes, with lines along time.
//!
//! In: the last hour by service. Out: figures of a range, small pictures. Refuses to count.

use maud::{Markup, html};

use super::figures::{Figures, Row};
use super::parameter::Range;
use super::text;
use crate::red::Past;
use crate::red::history::{Course, Tally};

/// Points of a line.
const POINTS: u64 = 30;

/// How it went lately.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lately {
    /// How long that is, seconds.
    pub(super) seconds: f64,
    /// Requests and errors along time.
    pub(super) points: Vec<(u64, u64)>,
}

/// The course of a row.
pub(super) fn course<'a>(past: &'a Past, row: &Row) -> Option<&'a Course> {
    past.lines.iter().find(|course| course.kind == row.kind && course.service().id == row.service.id)
}

/// Puts the figures of a range into rows; without a history, or if all is wanted, they stay what they are.
pub(super) fn apply(rows: &mut [Row], past: &Past, range: Range) {
    let Some(slots) = range.slots().filter(|_| past.now > 0) else { return };
    let (first, seconds) = past.window(slots);
    let each = slots / POINTS;
    for row in rows {
        let mut sum = Tally::default();
        let mut points = vec![(0, 0); POINTS as usize];
        for (nth, tally) in course(past, row).into_iter().flat_map(|course| course.since(first)) {
            sum.join(&tally);
            let place = usize::try_from((nth - first) / each).unwrap_or(usize::MAX);
            if let Some((requests, errors)) = points.get_mut(place) {
                *requests += tally.requests;
                *errors += tally.errors;
            }
        }
        let figures = Figures {
            requests: sum.requests,
            errors: sum.errors,
            spread: sum.spread(),
            ..Figures::default()
        };
        (row.figures, row.lately) = (figures, Some(Lately { seconds, points }));
    }
}

/// Requests of a row: a rate with its line, or their number.
pub(super) fn requests(row: &Row) -> Markup {
    let n = row.figures.requests;
    html! {
        @match &row.lately {
            Some(lately) => {
                (line(&lately.points)) " "
                span.per title=(text::counted(n, "request", "requests")) { (text::rate(n as f64 / lately.seconds)) }
            },
            None => span data-is="requests" { (text::count(n)) },
        }
    }
}

/// Requests as an area, errors as bars within it. The last point is the one that goes on: it is left out.
pub(super) fn line(points: &[(u64, u64)]) -> Markup {
    let points = &points[..points.len().saturating_sub(1)];
    let top = points.iter().map(|(requests, _)| *requests).max().unwrap_or(0).max(1) as f64;
    let (mut area, mut bars) = ("M0 20".to_owned(), String::new());
    for (nth, (requests, errors)) in points.iter().enumerate() {
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
    use super::*;

    #[test]
    fn lines_begin_and_end_on_the_ground() {
        let shown = line(&[(0, 0), (10, 1), (5, 5), (9, 9)]).into_string();
        assert!(shown.contains("d=\"M0 20V20.0H2V1.0H4V10.5H6V20Z\""), "{shown}");
        assert!(shown.contains("d=\"M2 20v-2.0h2v2.0M4 20v-9.5h2v9.5\""), "{shown}");
        assert!(!line(&[]).into_string().contains("failed"));
    }
}
