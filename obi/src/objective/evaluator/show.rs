//! The engine's numbers in a reader's words.
//!
//! In: the state of everything at one moment. Out: [`View`]. Refuses to know who reads it.

use slo::duration::Short;
use slo::{Account, BudgetingMethod, Counts, Moment, Status, Time, Window};

use super::{Evaluator, Tracked, time};
use crate::objective::alert::Alert;
use crate::objective::view::{
    AlertView, BurnRateView, EventsView, MomentView, ObjectiveView, SeverityView, View, WindowView,
};

/// Of a period.
const MOMENTS: u32 = 48;

impl Evaluator {
    pub(super) fn show(&self, now: u64) -> View {
        let objectives = self.engine.accounts().zip(&self.tracked).enumerate();
        let view = |(index, (account, tracked)): (usize, (&Account, &Tracked))| {
            let status = self.engine.status(index, time(now))?;
            Some(self.objective(index, account, tracked, &status))
        };
        View {
            objectives: objectives.filter_map(view).collect(),
            alerts: self.lifecycle.alerts().map(alert).collect(),
            store: self.writer.view(),
            peers: self.notifier.peers().stats(),
        }
    }

    fn objective(
        &self,
        index: usize,
        account: &Account,
        tracked: &Tracked,
        status: &Status,
    ) -> ObjectiveView {
        let objective = account.objective();
        let Counts { good, bad } = status.budget.burn.counts;
        let events = tracked.labels.iter().enumerate().map(|(part, label)| {
            let Counts { good, bad } = self.total(index, part);
            EventsView { slo: label.clone(), good, bad }
        });
        let moments = account.burn_down(&status.budget, self.engine.coverage(), MOMENTS);
        let burn_rates = status.windows.iter().map(|(window, burn)| BurnRateView {
            window: Short(*window).to_string(),
            burn_rate: burn.rate.unwrap_or(0.0),
            good: burn.counts.good,
            bad: burn.counts.bad,
            coverage: burn.coverage,
        });
        ObjectiveView {
            name: objective.name.clone(),
            service: objective.service.clone(),
            display_name: objective.display_name.clone(),
            description: objective.description.clone(),
            target: objective.target().as_f64(),
            budgeting_method: method(objective.budgeting).to_owned(),
            window: window(&objective.window, status),
            good,
            bad,
            ratio: status.budget.achieved,
            error_budget_remaining_ratio: status.budget.remaining,
            exhausted_in_seconds: status.exhausted_in.map(|left| left.as_secs_f64()),
            burn_down: moments.iter().map(moment).collect(),
            burn_rates: burn_rates.collect(),
            alerts: self.severities(index, account),
            evidence: tracked.exhibit.clone(),
            events: events.collect(),
        }
    }

    /// Each severity once, in the order of the file.
    fn severities(&self, index: usize, account: &Account) -> Vec<SeverityView> {
        let mut severities: Vec<SeverityView> = Vec::new();
        for arm in &account.objective().arms {
            if severities.iter().all(|known| known.severity != arm.severity) {
                let is_firing = self.engine.firing_since(index, &arm.severity).is_some();
                severities.push(SeverityView { severity: arm.severity.clone(), is_firing });
            }
        }
        severities
    }
}

fn method(budgeting: BudgetingMethod) -> &'static str {
    match budgeting {
        BudgetingMethod::Occurrences => "Occurrences",
        BudgetingMethod::Timeslices { .. } => "Timeslices",
        BudgetingMethod::RatioTimeslices { .. } => "RatioTimeslices",
    }
}

fn window(window: &Window, status: &Status) -> WindowView {
    let period = status.budget.period;
    WindowView {
        duration: window.to_string(),
        is_rolling: matches!(window, Window::Rolling(_)),
        start: period.start.to_string(),
        end: period.end.to_string(),
        coverage: status.budget.burn.coverage,
    }
}

fn moment(moment: &Moment) -> MomentView {
    MomentView {
        at: moment.at.to_string(),
        elapsed_ratio: moment.elapsed,
        error_budget_remaining_ratio: moment.remaining,
        coverage: moment.coverage,
    }
}

fn alert(alert: &Alert) -> AlertView {
    let text = |nanos: u64| -> String { Time::to_string(&time(nanos)) };
    AlertView {
        state: if alert.is_firing() { "firing" } else { "resolved" }.to_owned(),
        labels: alert.labels.clone(),
        annotations: alert.annotations.clone(),
        starts_at: text(alert.starts_at),
        resolved_at: alert.resolved_at.map(text),
    }
}
