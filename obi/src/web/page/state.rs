//! How an objective is doing, in a word.
//!
//! In: its numbers. Out: a [`State`]. Refuses to decide what is an alert: that is the crate `slo`.

use maud::{Markup, html};

use crate::objective::view::{ObjectiveView, View};

/// Worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// An alert fires.
    Burning,
    /// The budget of the period is gone.
    Spent,
    /// The last minutes use up budget faster than it lasts, the last hour did not.
    Increasing,
    /// The last hour did, the last minutes do not.
    Recovering,
    Fine,
    /// No event in the period.
    Unknown,
}

impl State {
    pub(super) fn of(objective: &ObjectiveView) -> Self {
        let burns = |nth: usize| objective.burn_rates.get(nth).is_some_and(|rate| rate.burn_rate > 1.0);
        let (short, long) = (burns(0), burns(objective.burn_rates.len().saturating_sub(1).min(2)));
        if objective.alerts.iter().any(|alert| alert.is_firing) {
            Self::Burning
        } else if objective.good + objective.bad == 0 {
            Self::Unknown
        } else if objective.error_budget_remaining_ratio <= 0.0 {
            Self::Spent
        } else if short {
            Self::Increasing
        } else if long {
            Self::Recovering
        } else {
            Self::Fine
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Burning => "burning",
            Self::Spent => "budget spent",
            Self::Increasing => "increasing",
            Self::Recovering => "recovering",
            Self::Fine => "fine",
            Self::Unknown => "no events",
        }
    }

    /// Shape, colour and word.
    pub(super) fn badge(self) -> Markup {
        let (class, mark) = match self {
            Self::Burning => ("bad", "✖"),
            Self::Spent => ("bad", "▼"),
            Self::Increasing => ("warn", "▲"),
            Self::Recovering => ("warn", "◆"),
            Self::Fine => ("good", "●"),
            Self::Unknown => ("quiet", "○"),
        };
        html! { span class={ "badge " (class) } { span aria-hidden="true" { (mark) } " " (self.word()) } }
    }
}

/// Objectives, the worst first.
pub(super) fn sorted(view: &View) -> Vec<(State, &ObjectiveView)> {
    let mut list: Vec<_> = view.objectives.iter().map(|it| (State::of(it), it)).collect();
    list.sort_by(|(a, one), (b, other)| {
        let left = |it: &ObjectiveView| it.error_budget_remaining_ratio;
        a.cmp(b).then(left(one).total_cmp(&left(other))).then_with(|| one.name.cmp(&other.name))
    });
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::view::BurnRateView;
    use crate::objective::view::tests::objective;

    #[test]
    fn words() {
        let check = |firing: bool, events: u64, left: f64, burn: [f64; 3], expected: State| {
            let mut it = objective("o");
            it.alerts[0].is_firing = firing;
            (it.good, it.bad, it.error_budget_remaining_ratio) = (events, 0, left);
            let rate =
                |burn_rate| BurnRateView { window: String::new(), burn_rate, good: 1, bad: 0, coverage: 1.0 };
            it.burn_rates = burn.map(rate).to_vec();
            assert_eq!(State::of(&it), expected);
        };
        check(true, 0, 1.0, [0.0; 3], State::Burning);
        check(false, 0, 1.0, [0.0; 3], State::Unknown);
        check(false, 9, 0.0, [0.0; 3], State::Spent);
        check(false, 9, 0.5, [2.0, 1.0, 0.5], State::Increasing);
        check(false, 9, 0.5, [0.5, 1.0, 2.0], State::Recovering);
        check(false, 9, 0.5, [1.0, 1.0, 1.0], State::Fine);
    }
}
