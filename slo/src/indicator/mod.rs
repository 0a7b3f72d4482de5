//! What makes an event good or bad.
//!
//! In: the checked metric sources of an SLI. Out: [`Indicator`], and through [`Classifier`] a verdict per event.
//! Refuses to know where events come from: they are [`Subject`]s of borrowed text and numbers.

mod classify;
mod pattern;
mod subject;

use std::time::Duration;

pub use self::classify::{Classifier, Outcome};
pub use self::pattern::Pattern;
pub use self::subject::{Attributes, Kind, Status, Subject};
use crate::openslo::{MetricSource, Operator};

/// How good is distinguished from bad.
#[derive(Clone, Debug, PartialEq)]
pub enum Indicator {
    /// Events that the agent itself sees: `metricSource.type: obi`.
    Events(EventIndicator),
    /// Queries to some other system, kept as written.
    Queries(Queries),
}

/// An indicator over the agent's own events.
#[derive(Clone, Debug, PartialEq)]
pub struct EventIndicator {
    /// Which events count at all.
    pub total: Selector,
    /// Which of them this is about: the good or the bad ones.
    pub counted: Selector,
    /// What those of `counted` are; all other events of `total` are the opposite.
    pub counted_is: Outcome,
    /// What counts as an error, where that differs from the semantic conventions.
    pub errors: ErrorDefinition,
    /// Whether the wait in the server's receive queue belongs to the duration.
    pub queue_wait: QueueWait,
}

/// Which events are meant; absent conditions hold for every event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Name of the service.
    pub service: Option<Pattern>,
    /// Server or client side; a selector for `total` without one means servers.
    pub kind: Option<Kind>,
    /// Route template, such as `/users/{id}`; empty for RPC.
    pub route: Option<Pattern>,
    /// Request method; for RPC the method called, such as `shop.Cart/Add`.
    pub method: Option<Pattern>,
    /// Status code in digits; for RPC its name, or exactly its number.
    pub status: Option<Pattern>,
    /// Name or address of the other side.
    pub peer: Option<Pattern>,
    /// Attributes that must be present and match.
    pub attributes: Vec<(String, Pattern)>,
    /// Only errors, or only others, by the indicator's [`ErrorDefinition`].
    pub outcome: Option<Outcome>,
    /// A condition on the duration.
    pub duration: Option<DurationCondition>,
    /// Streaming exchanges.
    pub streaming: Streaming,
}

/// A comparison of an event's duration, in nanoseconds, with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationCondition {
    /// `faster_than` is [`Operator::Lte`], so that it counts as a histogram bucket with this bound would.
    pub operator: Operator,
    /// The limit.
    pub limit: Duration,
}

/// What to do with exchanges that stream (server-sent events, gRPC streams, upgraded connections).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// They count like any other.
    #[default]
    Include,
    /// They do not count: their duration says nothing about speed.
    Exclude,
    /// Nothing else counts.
    Only,
}

/// Whether the time that a request waited in the receive queue belongs to its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueWait {
    /// The duration is what the client waited.
    #[default]
    Included,
    /// The duration begins when the program read the request.
    Excluded,
}

/// Exceptions from the semantic conventions' error rule, the first that applies decides:
/// ignored, bad, good.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorDefinition {
    /// Events with these statuses do not count at all.
    pub ignored: Vec<Pattern>,
    /// Events with these statuses are errors.
    pub bad: Vec<Pattern>,
    /// Events with these statuses are none.
    pub good: Vec<Pattern>,
}

/// Metric sources of other systems.
#[derive(Clone, Debug, PartialEq)]
pub enum Queries {
    /// Some events of all events.
    Ratio {
        /// Whether the first are good or bad.
        of: Outcome,
        /// Counts good or bad events.
        counted: MetricSource,
        /// Counts all events.
        total: MetricSource,
        /// Whether these are counters (`true`) or gauges.
        counter: bool,
    },
    /// A ratio that is computed already.
    Raw {
        /// The ratio.
        raw: MetricSource,
        /// Whether it is of good or of bad events.
        of: Outcome,
    },
    /// A measured value, good while the comparison holds.
    Threshold {
        /// The value.
        metric: MetricSource,
        /// The comparison, value first.
        operator: Operator,
        /// What it is compared with.
        value: f64,
    },
}

impl Indicator {
    /// The indicator over events, if it is one.
    pub const fn events(&self) -> Option<&EventIndicator> {
        match self {
            Self::Events(indicator) => Some(indicator),
            Self::Queries(_) => None,
        }
    }
}

impl Indicator {
    /// A text that stays while the indicator means the same.
    pub(crate) fn canonical(&self) -> String {
        match self {
            Self::Queries(queries) => format!("queries {queries:?}"),
            Self::Events(events) => {
                let list = |patterns: &[Pattern]| {
                    let texts: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
                    format!("{texts:?}")
                };
                format!(
                    "events {{{}}} {} {{{}}} ignored {} bad {} good {} {}",
                    events.total.canonical(),
                    events.counted_is.as_str(),
                    events.counted.canonical(),
                    list(&events.errors.ignored),
                    list(&events.errors.bad),
                    list(&events.errors.good),
                    matches!(events.queue_wait, QueueWait::Included),
                )
            }
        }
    }
}

impl Selector {
    fn canonical(&self) -> String {
        let text = |pattern: &Option<Pattern>| format!("{:?}", pattern.as_ref().map(Pattern::as_str));
        let attributes: Vec<_> = self.attributes.iter().map(|(name, value)| (name, value.as_str())).collect();
        format!(
            "{} {} {} {} {} {:?} {attributes:?} {:?} {:?} {}",
            text(&self.service),
            text(&self.route),
            text(&self.method),
            text(&self.status),
            text(&self.peer),
            self.kind.map(Kind::as_str),
            self.outcome.map(Outcome::as_str),
            self.duration.map(|condition| (condition.operator as u8, condition.limit.as_nanos())),
            self.streaming as u8,
        )
    }
}
