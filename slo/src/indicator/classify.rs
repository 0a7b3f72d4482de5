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
    /// The verdict depends on the status itself; it depends on whether that is an error.
    needs_status: bool,
    needs_outcome: bool,
    queue_wait: QueueWait,
    total_numbers: Numbers,
    counted_numbers: Numbers,
}

/// The conditions of a selector that compare no text, ready to be compared without a branch for each.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// First and last duration in nanoseconds that matches.
    fastest: u64,
    slowest: u64,
    /// Whether an event that is no error, or one, matches.
    outcomes: [bool; 2],
    /// Whether an event that does not stream, or one that does, matches.
    streaming: [bool; 2],
}

impl Numbers {
    fn new(selector: &Selector) -> Self {
        let (fastest, slowest) = match selector.duration {
            None => (0, u64::MAX),
            Some(condition) => {
                let limit = u64::try_from(condition.limit.as_nanos()).unwrap_or(u64::MAX);
                match condition.operator {
                    Operator::Lte => (0, limit),
                    Operator::Gte => (limit, u64::MAX),
                    // Nothing is below zero or above the end: an empty range.
                    Operator::Lt => limit.checked_sub(1).map_or((1, 0), |last| (0, last)),
                    Operator::Gt => limit.checked_add(1).map_or((1, 0), |first| (first, u64::MAX)),
                }
            }
        };
        Self {
            fastest,
            slowest,
            outcomes: [selector.outcome != Some(Outcome::Bad), selector.outcome != Some(Outcome::Good)],
            streaming: [selector.streaming != Streaming::Only, selector.streaming != Streaming::Exclude],
        }
    }

    fn matches(&self, duration: u64, error: bool, streaming: bool) -> bool {
        (self.fastest <= duration)
            & (duration <= self.slowest)
            & self.outcomes[usize::from(error)]
            & self.streaming[usize::from(streaming)]
    }
}

impl Classifier {
    /// Prepares an indicator.
    pub fn new(indicator: &EventIndicator) -> Self {
        let errors = &indicator.errors;
        let (total, counted) = (&indicator.total, &indicator.counted);
        let own_errors = !(errors.ignored.is_empty() && errors.bad.is_empty() && errors.good.is_empty());
        let needs_outcome = total.outcome.is_some() || counted.outcome.is_some();
        // A list of ignored statuses decides whether the event counts, whatever else is asked.
        let needs_list = own_errors && (needs_outcome || !errors.ignored.is_empty());
        Self {
            own_errors,
            needs_status: total.status.is_some() || counted.status.is_some() || needs_list,
            needs_outcome,
            own_texts: has_texts(&indicator.counted),
            total_numbers: Numbers::new(&indicator.total),
            counted_numbers: Numbers::new(&indicator.counted),
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

    /// Whether the verdict depends on the event's duration. If not, events with the same texts, error and streaming
    /// have the same.
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
        if matches!(subject.status, Status::Unknown)
            && (self.needs_status || (self.needs_outcome && !subject.error))
        {
            return None;
        }
        let error = if self.own_errors { self.error(subject)? } else { subject.error };
        let duration = match self.queue_wait {
            QueueWait::Included => subject.duration_ns,
            QueueWait::Excluded => subject.duration_ns.saturating_sub(subject.queue_wait_ns),
        };
        if !self.total_numbers.matches(duration, error, subject.streaming) {
            return None;
        }
        let counted = self.counted_numbers.matches(duration, error, subject.streaming)
            && self.counted.kind.is_none_or(|kind| kind == subject.kind)
            && (!self.own_texts || texts_match(&self.counted, subject));
        Some(if counted { self.counted_is } else { self.counted_is.other() })
    }

    /// Whether it is an error by the objective's own rule; `None` when it is ignored.
    fn error(&self, subject: &Subject<'_>) -> Option<bool> {
        let among =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| status_matches(pattern, subject.status));
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

fn status_matches(pattern: &Pattern, status: Status<'_>) -> bool {
    let mut text = [0; 5];
    match status {
        Status::None => pattern.matches(""),
        Status::Unknown => false,
        Status::Code(code) => pattern.matches(digits(code, &mut text)),
        Status::Rpc { name, number } => {
            pattern.matches(name) || pattern.exact() == Some(digits(number, &mut text))
        }
    }
}

/// A number in decimal digits.
fn digits(mut number: u16, text: &mut [u8; 5]) -> &str {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + u8::try_from(number % 10).expect("a digit is below ten");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&text[at..]).expect("digits are ASCII")
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{DurationCondition, ErrorDefinition};
    use super::*;

    fn subject() -> Subject<'static> {
        Subject {
            service: "shop",
            kind: Kind::Server,
            route: "/cart/{id}",
            method: "GET",
            status: Status::Code(200),
            peer: "10.0.0.7",
            duration_ns: 300_000_000,
            queue_wait_ns: 100_000_000,
            error: false,
            streaming: false,
            attributes: &(),
        }
    }

    fn indicator(total: Selector, counted: Selector, counted_is: Outcome) -> EventIndicator {
        EventIndicator {
            total,
            counted,
            counted_is,
            errors: ErrorDefinition::default(),
            queue_wait: QueueWait::Included,
        }
    }

    fn check(indicator: &EventIndicator, subject: &Subject<'_>, expected: Option<Outcome>) {
        assert_eq!(Classifier::new(indicator).classify(subject), expected, "{indicator:?} on {subject:?}");
    }

    const UNAVAILABLE: Status<'static> = Status::Rpc { name: "UNAVAILABLE", number: 14 };

    fn pattern(text: &str) -> Option<Pattern> {
        Some(Pattern::new(text))
    }

    fn good() -> Selector {
        Selector { outcome: Some(Outcome::Good), ..Selector::default() }
    }

    #[test]
    fn total_says_what_counts() {
        let select = |total: Selector, subject: &Subject<'_>, counts: bool| {
            check(&indicator(total, good(), Outcome::Good), subject, counts.then_some(Outcome::Good));
        };
        let all = Selector::default;
        select(all(), &subject(), true);
        select(Selector { service: pattern("shop"), ..all() }, &subject(), true);
        select(Selector { service: pattern("bank"), ..all() }, &subject(), false);
        select(Selector { kind: Some(Kind::Client), ..all() }, &subject(), false);
        select(Selector { route: pattern("/cart/*"), ..all() }, &subject(), true);
        select(Selector { method: pattern("POST"), ..all() }, &subject(), false);
        select(Selector { status: pattern("2*"), ..all() }, &subject(), true);
        select(Selector { status: pattern("UNAVAILABLE"), ..all() }, &subject(), false);
        select(
            Selector { status: pattern("UNAVAIL*"), ..all() },
            &Subject { status: UNAVAILABLE, ..subject() },
            true,
        );
        select(
            Selector { status: pattern("14"), ..all() },
            &Subject { status: UNAVAILABLE, ..subject() },
            true,
        );
        // Of HTTP.
        for http in ["1*", "1?", "5*", "4"] {
            select(
                Selector { status: pattern(http), ..all() },
                &Subject { status: UNAVAILABLE, ..subject() },
                false,
            );
        }
        select(
            Selector { status: pattern("*"), ..all() },
            &Subject { status: Status::Unknown, ..subject() },
            false,
        );
        select(
            Selector { status: pattern("?*"), ..all() },
            &Subject { status: Status::None, ..subject() },
            false,
        );
        select(Selector { peer: pattern("10.*"), ..all() }, &subject(), true);
        let streams = Subject { streaming: true, ..subject() };
        select(Selector { streaming: Streaming::Exclude, ..all() }, &streams, false);
        select(Selector { streaming: Streaming::Only, ..all() }, &streams, true);
        select(Selector { streaming: Streaming::Only, ..all() }, &subject(), false);
        let tenant = Selector { attributes: vec![("tenant".to_owned(), Pattern::new("gold"))], ..all() };
        let attributes: &[(&str, &str)] = &[("tenant", "gold")];
        select(tenant.clone(), &subject(), false);
        select(tenant, &Subject { attributes: &attributes, ..subject() }, true);
    }

    #[test]
    fn the_rest_is_the_opposite() {
        let failed = Subject { error: true, ..subject() };
        let ratio = indicator(Selector::default(), good(), Outcome::Good);
        check(&ratio, &subject(), Some(Outcome::Good));
        check(&ratio, &failed, Some(Outcome::Bad));
        let bad = Selector { status: pattern("5*"), ..Selector::default() };
        let ratio = indicator(Selector::default(), bad, Outcome::Bad);
        check(&ratio, &subject(), Some(Outcome::Good));
        check(&ratio, &Subject { status: Status::Code(503), ..subject() }, Some(Outcome::Bad));
    }

    #[test]
    fn durations_are_compared_in_nanoseconds() {
        let limit = |nanos: u64| {
            let duration =
                Some(DurationCondition { operator: Operator::Lte, limit: Duration::from_nanos(nanos) });
            indicator(Selector::default(), Selector { duration, ..Selector::default() }, Outcome::Good)
        };
        check(&limit(300_000_000), &subject(), Some(Outcome::Good));
        check(&limit(299_999_999), &subject(), Some(Outcome::Bad));
        let without_wait = EventIndicator { queue_wait: QueueWait::Excluded, ..limit(200_000_000) };
        check(&without_wait, &subject(), Some(Outcome::Good));
    }

    #[test]
    fn an_objective_may_have_its_own_errors() {
        let mut ratio = indicator(Selector::default(), good(), Outcome::Good);
        ratio.errors = ErrorDefinition {
            ignored: vec![Pattern::new("499")],
            bad: vec![Pattern::new("429"), Pattern::new("499")],
            good: vec![Pattern::new("501"), Pattern::new("4*")],
        };
        let with = |code: u16, error: bool| Subject { status: Status::Code(code), error, ..subject() };
        check(&ratio, &with(499, false), None);
        check(&ratio, &with(429, false), Some(Outcome::Bad));
        check(&ratio, &with(501, true), Some(Outcome::Good));
        check(&ratio, &with(502, true), Some(Outcome::Bad));
        check(&ratio, &with(404, false), Some(Outcome::Good));
        check(&ratio, &Subject { status: Status::None, error: true, ..subject() }, Some(Outcome::Bad));
    }

    #[test]
    fn statuses_of_calls_may_be_errors_of_an_objective() {
        let mut ratio = indicator(Selector::default(), good(), Outcome::Good);
        ratio.errors = ErrorDefinition {
            ignored: vec![Pattern::new("CANCELLED")],
            bad: vec![Pattern::new("RESOURCE_EXHAUSTED"), Pattern::new("9")],
            good: vec![Pattern::new("UN*")],
        };
        let with = |name, number, error| Subject { status: Status::Rpc { name, number }, error, ..subject() };
        check(&ratio, &with("CANCELLED", 1, true), None);
        check(&ratio, &with("RESOURCE_EXHAUSTED", 8, false), Some(Outcome::Bad));
        check(&ratio, &with("FAILED_PRECONDITION", 9, false), Some(Outcome::Bad));
        check(&ratio, &with("UNAVAILABLE", 14, true), Some(Outcome::Good));
        check(&ratio, &with("INTERNAL", 13, true), Some(Outcome::Bad));
        check(&ratio, &with("OK", 0, false), Some(Outcome::Good));
    }

    #[test]
    fn what_depends_on_an_unknown_status_does_not_count() {
        let unknown = Subject { status: Status::Unknown, ..subject() };
        let broken = Subject { error: true, ..unknown };
        let all = Selector::default;
        let fast = DurationCondition { operator: Operator::Lte, limit: Duration::from_secs(1) };
        let fast = Selector { duration: Some(fast), ..all() };
        let by_status = Selector { status: pattern("5*"), ..all() };
        let of =
            |total: &Selector, counted: &Selector| indicator(total.clone(), counted.clone(), Outcome::Good);
        let ignoring = |mut indicator: EventIndicator| {
            indicator.errors.ignored.push(Pattern::new("499"));
            indicator
        };
        check(&of(&all(), &good()), &unknown, None);
        // What broke is an error with any status.
        check(&of(&all(), &good()), &broken, Some(Outcome::Bad));
        check(&of(&all(), &fast), &unknown, Some(Outcome::Good));
        check(&of(&good(), &fast), &unknown, None);
        check(&of(&all(), &by_status), &unknown, None);
        check(&of(&by_status, &fast), &unknown, None);
        check(&ignoring(of(&all(), &fast)), &unknown, None);
        check(&ignoring(of(&all(), &good())), &broken, None);
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for (number, text) in [(0, "0"), (7, "7"), (200, "200"), (65_535, "65535")] {
            assert_eq!(digits(number, &mut [0; 5]), text);
        }
    }
}
