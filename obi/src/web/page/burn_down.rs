//! What was left of an objective's budget along its period.
//!
//! In: moments of the period. Out: a picture, and the same numbers as a table. Refuses to draw what was not observed as
//! if it was: there the line is missing.

use maud::{Markup, html};

use super::text;
use crate::objective::view::{MomentView, ObjectiveView};

const LEFT: f64 = 46.0;
const WIDTH: f64 = 900.0;
/// Room for the half of the last moment's dot.
const RIGHT: f64 = 6.0;
const HEIGHT: f64 = 120.0;
/// What is spent beyond the budget is drawn up to as much again.
const LOWEST: f64 = -1.0;
/// Rows of the table.
const ROWS: usize = 12;

/// Nothing where nothing is known.
pub(super) fn section(objective: &ObjectiveView) -> Markup {
    let moments = &objective.burn_down;
    if objective.good + objective.bad == 0 || moments.is_empty() {
        return html! {};
    }
    let last = moments.last().map(|last| last.error_budget_remaining_ratio);
    let low = last.filter(|last| !last.is_nan()).unwrap_or(0.0).clamp(LOWEST, 0.0);
    let y = |left: f64| HEIGHT * (1.0 - left.clamp(low, 1.0)) / (1.0 - low);
    html! {
        section aria-labelledby="burn-down" {
            h2 #burn-down { "Budget left" }
            figure.heat.budget {
                div.wide tabindex="0" { (picture(objective, &y)) }
                figcaption.quiet { (caption(objective)) }
            }
            details { summary { "As numbers" } (numbers(moments)) }
        }
    }
}

fn caption(objective: &ObjectiveView) -> Markup {
    let unseen = objective.burn_down.iter().any(|moment| moment.coverage <= 0.0);
    html! {
        @if objective.window.is_rolling { "Of the budget of all events of the last " (objective.window.duration) "; what was spent comes back when it is older than that. " }
        @else { "Of the budget of all events of the period so far. The dashed line spends it evenly. " }
        @if unseen { "No line where this agent did not count." }
    }
}

fn picture(objective: &ObjectiveView, y: &impl Fn(f64) -> f64) -> Markup {
    let (moments, window) = (&objective.burn_down, &objective.window);
    let now = moments.last().map_or(1.0, |last| last.elapsed_ratio);
    let left = objective.error_budget_remaining_ratio;
    html! {
        svg viewBox={ "0 0 " (LEFT + WIDTH + RIGHT) " " (HEIGHT + 30.0) } role="img" aria-label={ "Budget left: " (text::percent(left)) } {
            @for (mark, word) in [(1.0, "100 %"), (0.5, "50 %"), (0.0, "0 %")] {
                line.grid x1=(LEFT) x2=(LEFT + WIDTH) y1=(at(y(mark) + 8.0)) y2=(at(y(mark) + 8.0)) {}
                text x=(LEFT - 6.0) y=(at(y(mark) + 12.0)) text-anchor="end" { (word) }
            }
            @if !window.is_rolling { line.even x1=(LEFT) y1="8" x2=(LEFT + WIDTH) y2=(at(y(0.0) + 8.0)) {} }
            path.left d=(line(moments, y)) {}
            circle cx=(at(LEFT + now * WIDTH)) cy=(at(y(left) + 8.0)) r="4" {}
            text x=(LEFT) y=(HEIGHT + 26.0) { (text::day(&window.start)) }
            text x=(LEFT + WIDTH) y=(HEIGHT + 26.0) text-anchor="end" { @if window.is_rolling { "now" } @else { (text::day(&window.end)) } }
        }
    }
}

/// From moment to moment, where the time between them was observed.
fn line(moments: &[MomentView], y: &impl Fn(f64) -> f64) -> String {
    let (mut path, mut is_drawn) = (String::new(), false);
    let mut before = (0.0, 1.0);
    for moment in moments {
        let here = (moment.elapsed_ratio, moment.error_budget_remaining_ratio);
        let point =
            |(elapsed, left): (f64, f64)| format!("{} {}", at(LEFT + elapsed * WIDTH), at(y(left) + 8.0));
        if moment.coverage > 0.0 {
            if !is_drawn {
                path.push_str(&format!("M{}", point(before)));
            }
            path.push_str(&format!("L{}", point(here)));
        }
        is_drawn = moment.coverage > 0.0;
        before = here;
    }
    path
}

fn at(place: f64) -> String {
    format!("{place:.1}")
}

/// Some of the moments, the last among them.
fn numbers(moments: &[MomentView]) -> Markup {
    let each = moments.len().div_ceil(ROWS).max(1);
    let rows: Vec<_> = moments.iter().rev().step_by(each).collect();
    html! {
        div.wide tabindex="0" { table {
            caption.unseen { "Budget left along the period" }
            thead { tr { th scope="col" { "Until" } th.n scope="col" { "Left" } th.n scope="col" { "Observed of the time before" } } }
            tbody { @for moment in rows.iter().rev() {
                tr {
                    th scope="row" { (text::moment_of(&moment.at)) }
                    td.n data-is="left" { (text::percent(moment.error_budget_remaining_ratio)) }
                    td.n { (text::percent(moment.coverage)) }
                }
            } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(elapsed_ratio: f64, left: f64, coverage: f64) -> MomentView {
        MomentView { at: String::new(), elapsed_ratio, error_budget_remaining_ratio: left, coverage }
    }

    #[test]
    fn there_is_no_line_where_nothing_was_observed() {
        let y = |left: f64| 100.0 * (1.0 - left);
        let moments =
            [moment(0.25, 0.9, 1.0), moment(0.5, 0.9, 0.0), moment(0.75, 0.5, 0.2), moment(1.0, 0.4, 1.0)];
        assert_eq!(line(&moments, &y), "M46.0 8.0L271.0 18.0M496.0 18.0L721.0 58.0L946.0 68.0");
        assert_eq!(line(&moments[1..2], &y), "");
    }
}
