//! What a dashboard is made of, as plain values.
//!
//! In: nothing. Out: types. Refuses to know metrics and JSON.

/// One file.
pub(crate) struct Dashboard {
    /// Never changes, so that links hold; also the file's name, behind `obi-`.
    pub(crate) uid: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    /// Beside the data source and the agent's page.
    pub(crate) variables: Vec<Variable>,
    pub(crate) rows: Vec<Row>,
}

/// Chosen at the head of a dashboard.
pub(crate) enum Variable {
    /// Values of a label; all of them unless some are chosen.
    Label { name: &'static str, label: &'static str, selector: &'static str, help: &'static str },
    /// The same, of which exactly one is shown.
    One { name: &'static str, label: &'static str, selector: &'static str, help: &'static str },
    /// Values of a label of what an expression gives; one, or all. Not shown: the first, as a pattern.
    Computed {
        name: &'static str,
        label: &'static str,
        expression: String,
        help: &'static str,
        is_shown: bool,
    },
    /// A data source of another kind.
    Source { name: &'static str, plugin: &'static str, help: &'static str },
}

/// A line with panels below it.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    /// Opened by hand; asks for nothing before.
    pub(crate) is_collapsed: bool,
    pub(crate) panels: Vec<Panel>,
}

/// How a panel shows what it asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lines,
    /// Lines on top of each other: their sum means something.
    Stacked,
    Number,
    /// Its targets are columns, joined by their labels.
    Table,
    Heatmap,
    Text,
    /// Of Pyroscope.
    Flame,
}

/// By their names in Grafana.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    PerSecond,
    PerHour,
    Share,
    /// A share that can be overdrawn.
    Budget,
    Seconds,
    /// Seconds in each second.
    Processors,
    Bytes,
    Count,
    Times,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "reqps",
            Self::PerHour => "suffix: /h",
            Self::Share | Self::Budget => "percentunit",
            Self::Seconds => "s",
            Self::Processors => "suffix: CPU",
            Self::Bytes => "bytes",
            Self::Count => "short",
            Self::Times => "suffix:×",
        }
    }
}

/// One question.
pub(crate) struct Target {
    pub(crate) expression: String,
    /// Of a line; of a column its title.
    pub(crate) legend: &'static str,
    /// Of a column, where it is not the panel's.
    pub(crate) unit: Option<Unit>,
    /// Whether dots lead to traces.
    pub(crate) has_exemplars: bool,
}

/// Where a click leads.
pub(crate) struct Link {
    pub(crate) title: &'static str,
    pub(crate) url: &'static str,
}

/// One picture.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    /// Of 24.
    pub(crate) width: u32,
    pub(crate) targets: Vec<Target>,
    pub(crate) links: Vec<Link>,
}

impl Panel {
    pub(crate) fn links_to(mut self, links: impl IntoIterator<Item = Link>) -> Self {
        self.links.extend(links);
        self
    }
}

pub(crate) fn row(title: &'static str, panels: impl IntoIterator<Item = Panel>) -> Row {
    Row { title, is_collapsed: false, panels: panels.into_iter().collect() }
}

pub(crate) fn collapsed(title: &'static str, panels: impl IntoIterator<Item = Panel>) -> Row {
    Row { is_collapsed: true, ..row(title, panels) }
}

/// A panel's title and description.
pub(crate) type Words = (&'static str, &'static str);

fn panel(kind: Kind, (title, description): Words, (unit, width): (Unit, u32), targets: Vec<Target>) -> Panel {
    Panel { title, description, kind, unit, width, targets, links: Vec::new() }
}

pub(crate) fn lines<const N: usize>(words: Words, shape: (Unit, u32), targets: [Target; N]) -> Panel {
    panel(Kind::Lines, words, shape, targets.into())
}

pub(crate) fn stacked<const N: usize>(words: Words, shape: (Unit, u32), targets: [Target; N]) -> Panel {
    panel(Kind::Stacked, words, shape, targets.into())
}

pub(crate) fn number(words: Words, shape: (Unit, u32), expression: String) -> Panel {
    panel(Kind::Number, words, shape, vec![line(expression, "")])
}

pub(crate) fn table<const N: usize>(words: Words, columns: [Target; N]) -> Panel {
    panel(Kind::Table, words, (Unit::Count, 24), columns.into())
}

pub(crate) fn heatmap(words: Words, shape: (Unit, u32), expressions: [String; 2]) -> Panel {
    panel(Kind::Heatmap, words, shape, expressions.map(|expression| line(expression, "{{le}}")).into())
}

pub(crate) fn text(words: Words, width: u32) -> Panel {
    panel(Kind::Text, words, (Unit::Count, width), Vec::new())
}

pub(crate) fn flame(words: Words, selector: &str) -> Panel {
    panel(Kind::Flame, words, (Unit::Seconds, 24), vec![line(selector.to_owned(), "")])
}

pub(crate) fn line(expression: String, legend: &'static str) -> Target {
    Target { expression, legend, unit: None, has_exemplars: false }
}

/// Dots of single requests beside the line.
pub(crate) fn with_exemplars(expression: String, legend: &'static str) -> Target {
    Target { has_exemplars: true, ..line(expression, legend) }
}

pub(crate) fn column(title: &'static str, unit: Unit, expression: String) -> Target {
    Target { unit: Some(unit), ..line(expression, title) }
}
