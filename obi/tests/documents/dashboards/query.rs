//! The questions that panels ask, each shape of PromQL once.
//!
//! In: metrics of the table of families and of the agent, selectors, labels. Out: expressions. Refuses to know panels.
//!
//! Histograms are asked for natively first and by classic buckets where there are no native ones. Nothing gives `NaN`
//! on an idle machine: a quantile of nothing and a share of nothing are left out.

use super::name::{Metric, metric};
use obi::red::Instrument;

/// Some series of a histogram.
pub(crate) struct Histogram {
    name: &'static str,
    selector: String,
}

/// Series of `name` that match `selector`, which is text such as `service_name="$service"`.
pub(crate) fn histogram(name: &'static str, selector: &str) -> Histogram {
    assert_eq!(metric(name).instrument, Instrument::Histogram, "{name}");
    Histogram { name, selector: selector.to_owned() }
}

impl Histogram {
    /// The same with one more condition.
    pub(crate) fn and(&self, condition: &str) -> Self {
        let selector = [self.selector.as_str(), condition].map(str::to_owned);
        let selector: Vec<String> = selector.into_iter().filter(|part| !part.is_empty()).collect();
        Self { name: self.name, selector: selector.join(",") }
    }

    fn rates(&self, suffix: &str, by: &str) -> String {
        let Self { name, selector } = self;
        format!("sum by ({by}) (rate({name}{suffix}{{{selector}}}[$__rate_interval]))")
    }

    /// Below which a part of the values lies.
    pub(crate) fn quantile(&self, q: f64, by: &str) -> String {
        let with_bound = if by.is_empty() { "le".to_owned() } else { format!("le, {by}") };
        let [native, classic] = [self.rates("", by), self.rates("_bucket", &with_bound)];
        format!("(histogram_quantile({q}, {native}) or histogram_quantile({q}, {classic})) >= 0")
    }

    /// How many a second.
    pub(crate) fn rate(&self, by: &str) -> String {
        format!("(histogram_count({}) or {})", self.rates("", by), self.rates("_count", by))
    }

    /// How much each comes to.
    pub(crate) fn average(&self, by: &str) -> String {
        let sum = format!("(histogram_sum({}) or {})", self.rates("", by), self.rates("_sum", by));
        ratio(&sum, &self.rate(by))
    }

    /// Which part of them meets a condition.
    pub(crate) fn share(&self, condition: &str, by: &str) -> String {
        part(&self.and(condition).rate(by), &self.rate(by))
    }

    /// Which part of them has failed: `error_type` is the rule of the conventions.
    pub(crate) fn errors(&self, by: &str) -> String {
        self.share("error_type!=\"\"", by)
    }

    /// Native buckets, and classic ones where there are no native ones.
    pub(crate) fn heatmap(&self) -> [String; 2] {
        let native = self.rates("", "");
        let classic = self.rates("_bucket", "le");
        [native.clone(), format!("{classic} unless on () {native}")]
    }
}

/// How much a counter gains a second.
pub(crate) fn rate(name: &'static str, selector: &str, by: &str) -> String {
    let Metric { instrument, .. } = metric(name);
    assert_eq!(instrument, Instrument::Counter, "{name}");
    format!("sum by ({by}) (rate({name}{{{selector}}}[$__rate_interval]))")
}

/// How much a counter has gained in the time that is shown.
pub(crate) fn gained(name: &'static str, selector: &str, by: &str) -> String {
    assert_eq!(metric(name).instrument, Instrument::Counter, "{name}");
    format!("sum by ({by}) (increase({name}{{{selector}}}[$__range]))")
}

/// A gauge, summed.
pub(crate) fn sum(name: &'static str, selector: &str, by: &str) -> String {
    aggregated("sum", name, selector, by)
}

/// A gauge: its largest or smallest, or how many there are.
pub(crate) fn aggregated(how: &str, name: &'static str, selector: &str, by: &str) -> String {
    assert_eq!(metric(name).instrument, Instrument::Gauge, "{name}");
    format!("{how} by ({by}) ({name}{{{selector}}})")
}

/// `a` for each of `b`, where there is any `b`.
pub(crate) fn ratio(a: &str, b: &str) -> String {
    format!("{a} / ({b} > 0)")
}

/// Which part of `whole` is `part`; series of it that are not there are zero.
pub(crate) fn part(part: &str, whole: &str) -> String {
    format!("({part} or 0 * {whole}) / ({whole} > 0)")
}

/// Zero where there is no series: only for what is counted from the first time on that it happens.
pub(crate) fn or_zero(expression: &str) -> String {
    format!("{expression} or vector(0)")
}

/// The largest ten.
pub(crate) fn top(expression: &str) -> String {
    format!("topk(10, {expression})")
}

/// With the namespace as addresses of pages and of [`super::link::SERVICE`] have it: `-` where there is none.
pub(crate) fn addressed(expression: &str) -> String {
    addressed_by(expression, "service_namespace")
}

/// The same of a namespace in another label.
pub(crate) fn addressed_by(expression: &str, label: &str) -> String {
    format!("label_replace({expression}, \"{label}\", \"-\", \"{label}\", \"\")")
}

/// A regular expression, as label `within`, for the namespace that the variable `namespace` has: nothing for `-`.
pub(crate) fn within() -> String {
    let chosen = "label_replace(vector(1), \"within\", \"$namespace\", \"within\", \"\")";
    format!("label_replace({chosen}, \"within\", \"()\", \"within\", \"-\")")
}
