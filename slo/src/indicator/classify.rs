//! Verdicts: which events an indicator counts, and as what.
//!
//! In: a [`Subject`]. Out: good, bad, or not counted. Refuses to allocate, and to look at strings before the cheap
//! conditions held.

use super::{Attributes, EventIndicator, Kind, Pattern, QueueWait, Selector, Status, Streaming, Subject};
use crate::openslo::Operator;

/// What an event is for an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// As promised.
    Good,
    /// Uses up error budget.
    Bad,
}

impl Outcome {
    /// `good` or `bad`, the label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Good => Self::Bad,
            Self::Bad => Self::Good,
        }
    }
}

/// An [`EventIndicator`] made ready: conditions in order of cost.
///
/// A verdict has two halves. Who the event belongs to ([`Self::selects`]) depends on texts that a caller may have seen
/// together before, and can be remembered for them; what it is then ([`Self::judge`]) also depends on duration and
/// error.
#[derive(Clone, Debug)]
pub struct Classifier {
    total: Selector,
    counted: Selector,
    counted_is: Outcome,
    ignored: Vec<Pattern>,
    bad: Vec<Pattern>,
    good: Vec<Pattern>,
    own_errors: bool,
    own_texts: bool,
    queue_wait: QueueWait,
}

impl Classifier {
    /// Prepares an indicator.
    pub fn new(indicator: &EventIndicator) -> Self {
        let errors = &indicator.errors;
        Self {
            own_errors: !(errors.ignored.is_empty() && errors.bad.is_empty() && errors.good.is_empty()),
            own_texts: has_texts(&indicator.counted),
            total: indicator.total.clone(),
            counted: indicator.counted.clone(),
            counted_is: indicator.counted_is,
            ignored: errors.ignored.clone(),
            bad: errors.bad.clone(),
            good: errors.good.clone(),
            queue_wait: indicator.queue_wait,
        }
    }

    /// The only service whose events it counts, if it names one.
    pub fn service(&self) -> Option<&str> {
        self.total.service.as_ref().and_then(Pattern::exact)
    }

    /// Whether the verdict depends on the event's duration. If not, events with the same texts, error and streaming have
    /// the same.
    pub fn uses_duration(&self) -> bool {
        self.total.duration.is_some() || self.counted.duration.is_some()
    }

    /// Names of the attributes that the verdict depends on.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.total.attributes.iter().chain(&self.counted.attributes).map(|(name, _)| name.as_str())
    }

    /// The whole verdict; `None` when the event does not count.
    pub fn classify(&self, subject: &Subject<'_>) -> Option<Outcome> {
        if self.selects(subject) { self.judge(subject) } else { None }
    }

    /// Whether side and texts are those of events that count. Depends on nothing else of the subject, but for status
    /// and attributes only as far as [`Self::total`](EventIndicator::total) names them.
    pub fn selects(&self, subject: &Subject<'_>) -> bool {
        self.total.kind.is_none_or(|kind| kind == subject.kind) && texts_match(&self.total, subject)
    }

    /// The verdict over an event that [`Self::selects`] selected.
    pub fn judge(&self, subject: &Subject<'_>) -> Option<Outcome> {
        let error = if self.own_errors { self.error(subject)? } else { subject.error };
        let duration = match self.queue_wait {
            QueueWait::Included => subject.duration_ns,
            QueueWait::Excluded => subject.duration_ns.saturating_sub(subject.queue_wait_ns),
        };
        if !numbers_match(&self.total, subject, error, duration) {
            return None;
        }
        let counted = numbers_match(&self.counted, subject, error, duration)
            && self.counted.kind.is_none_or(|kind| kind == subject.kind)
            && (!self.own_texts || texts_match(&self.counted, subject));
        Some(if counted { self.counted_is } else { self.counted_is.other() })
    }

    /// Whether it is an error by the objective's own rule; `None` when it is ignored.
    fn error(&self, subject: &Subject<'_>) -> Option<bool> {
        let mut digits = [0; 5];
        let status = status_text(subject.status, &mut digits);
        let among = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(status));
        if among(&self.ignored) {
            None
        } else if among(&self.bad) {
            Some(true)
        } else {
            Some(subject.error && !among(&self.good))
        }
    }
}

/// Whether any of its conditions compares text.
fn has_texts(selector: &Selector) -> bool {
    selector.service.is_some()
        || selector.route.is_some()
        || selector.method.is_some()
        || selector.status.is_some()
        || selector.peer.is_some()
        || !selector.attributes.is_empty()
}

fn texts_match(selector: &Selector, subject: &Subject<'_>) -> bool {
    let matches =
        |pattern: &Option<Pattern>, text: &str| pattern.as_ref().is_none_or(|pattern| pattern.matches(text));
    matches(&selector.service, subject.service)
        && matches(&selector.method, subject.method)
        && matches(&selector.route, subject.route)
        && selector.status.as_ref().is_none_or(|pattern| status_matches(pattern, subject.status))
        && matches(&selector.peer, subject.peer)
        && attributes_match(&selector.attributes, subject.attributes)
}

fn attributes_match(wanted: &[(String, Pattern)], attributes: &dyn Attributes) -> bool {
    wanted.iter().all(|(name, pattern)| attributes.get(name).is_some_and(|value| pattern.matches(value)))
}

fn numbers_match(selector: &Selector, subject: &Subject<'_>, error: bool, duration: u64) -> bool {
    let outcome = selector.outcome.is_none_or(|outcome| (outcome == Outcome::Bad) == error);
    let streaming = match selector.streaming {
        Streaming::Include => true,
        Streaming::Exclude => !subject.streaming,
        Streaming::Only => subject.streaming,
    };
    let in_time = selector.duration.is_none_or(|condition| {
        let limit = u64::try_from(condition.limit.as_nanos()).unwrap_or(u64::MAX);
        condition.operator.holds(&duration, &limit)
    });
    outcome && streaming && in_time
}

fn status_matches(pattern: &Pattern, status: Status<'_>) -> bool {
    let mut digits = [0; 5];
    pattern.matches(status_text(status, &mut digits))
}

/// The status as text; empty when there is none.
fn status_text<'a>(status: Status<'a>, digits: &'a mut [u8; 5]) -> &'a str {
    match status {
        Status::None => "",
        Status::Name(name) => name,
        Status::Code(mut code) => {
            let mut at = digits.len();
            loop {
                at -= 1;
                digits[at] = b'0' + u8::try_from(code % 10).expect("a digit is below ten");
                code /= 10;
                if code == 0 {
                    break;
                }
            }
            std::str::from_utf8(&digits[at..]).expect("digits are ASCII")
        }
    }
}

impl Kind {
    /// `server`, `client` or `other`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Other => "other",
        }
    }
}

impl Operator {
    /// `left` operator `right`.
    pub fn holds<T: PartialOrd>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Lt => left < right,
            Self::Lte => left <= right,
            Self::Gt => left > right,
            Self::Gte => left >= right,
        }
    }
}
