//! The one table that a benchmark prints.
//!
//! In: figures. Out: aligned Markdown. Refuses to know where figures come from.

use std::fmt;

/// One line.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    value: String,
    bar: String,
}

impl Row {
    /// A figure with three significant digits.
    pub(crate) fn new(what: &str, value: f64, unit: &str, bar: &str) -> Self {
        Self::text(what, format!("{} {unit}", significant(value)), bar)
    }

    /// The median of some ratios, and the range around it.
    pub(crate) fn spread(what: &str, values: &[f64], bar: &str) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let text = format!("{:.2} ({least:.2}–{most:.2}, {} pairs)", median(values), values.len());
        Self::text(what, text, bar)
    }

    /// The median of what was measured several times, and the range around it.
    pub(crate) fn spread_of(what: &str, values: &[f64], unit: &str, bar: &str) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let [median, least, most] = [median(values), least, most].map(significant);
        Self::text(what, format!("{median} {unit} ({least}–{most}, {} times)", values.len()), bar)
    }

    /// Anything else.
    pub(crate) fn text(what: &str, value: String, bar: &str) -> Self {
        Self { what: what.to_owned(), value, bar: bar.to_owned() }
    }
}

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    /// Adds a line.
    pub(crate) fn add(&mut self, row: Row) {
        self.0.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = Row::text("what", "measured".into(), "bar");
        let rows = || std::iter::once(&heading).chain(&self.0);
        let width = |cell: fn(&Row) -> &str| rows().map(|row| cell(row).chars().count()).max().unwrap_or(0);
        let widths = [width(|row| &row.what), width(|row| &row.value), width(|row| &row.bar)];
        for (index, row) in rows().enumerate() {
            let [what, value, bar] = widths;
            writeln!(formatter, "| {:what$} | {:value$} | {:bar$} |", row.what, row.value, row.bar)?;
            if index == 0 {
                let rule = |width: usize| "-".repeat(width + 2);
                writeln!(formatter, "|{}|{}|{}|", rule(what), rule(value), rule(bar))?;
            }
        }
        Ok(())
    }
}

/// The middle of `values`; the mean of both middles when their number is even; 0 for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

fn significant(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
