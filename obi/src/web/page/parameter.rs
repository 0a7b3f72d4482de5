//! Query parameters of lists: what is looked for, in which order. Anything unknown is an error that names it.

use crate::web::Error;

const UNKNOWN: &str = "unknown parameter, expected one of q, errors, sort, range";

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    /// What burns, then what fails, then what is busy.
    #[default]
    Worst,
    Name,
    Requests,
    Errors,
    /// By p50.
    Median,
    /// By p95.
    Slow,
    /// By p99.
    Slowest,
    Queue,
    Cpu,
}

impl Order {
    fn of(word: &str) -> Result<Self, &'static str> {
        let order = Self::ALL.into_iter().find(|order| order.word() == word);
        order.ok_or("expected name, requests, errors, p50, slow, p99, queue or cpu")
    }

    const ALL: [Self; 9] = [
        Self::Worst,
        Self::Name,
        Self::Requests,
        Self::Errors,
        Self::Median,
        Self::Slow,
        Self::Slowest,
        Self::Queue,
        Self::Cpu,
    ];

    /// Of durations, the quantile that it goes by.
    pub(super) fn ratio(self) -> Option<f64> {
        match self {
            Self::Median => Some(0.5),
            Self::Slow => Some(0.95),
            Self::Slowest => Some(0.99),
            _ => None,
        }
    }

    /// For `aria-sort`.
    pub(super) fn direction(self) -> &'static str {
        if self == Self::Name { "ascending" } else { "descending" }
    }

    /// In an address; nothing for the usual one.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Worst => "",
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Errors => "errors",
            Self::Median => "p50",
            Self::Slow => "slow",
            Self::Slowest => "p99",
            Self::Queue => "queue",
            Self::Cpu => "cpu",
        }
    }
}

/// How far back numbers reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Range {
    #[default]
    Minutes5,
    Minutes15,
    Hour,
    /// As long as the series are there.
    All,
}

impl Range {
    pub(super) const ALL: [Self; 4] = [Self::Minutes5, Self::Minutes15, Self::Hour, Self::All];

    /// In an address.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Minutes5 => "5m",
            Self::Minutes15 => "15m",
            Self::Hour => "1h",
            Self::All => "all",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Minutes5 => "5 min",
            Self::Minutes15 => "15 min",
            Self::Hour => "1 h",
            Self::All => "since start",
        }
    }

    /// Of the history; `None` if that is not asked.
    pub(super) fn slots(self) -> Option<u64> {
        match self {
            Self::Minutes5 => Some(30),
            Self::Minutes15 => Some(90),
            Self::Hour => Some(360),
            Self::All => None,
        }
    }

    /// Nothing for the usual one.
    pub(super) fn given(self) -> &'static str {
        if self == Self::default() { "" } else { self.word() }
    }

    pub(super) fn of(word: &str) -> Result<Self, &'static str> {
        Self::ALL.into_iter().find(|range| range.word() == word).ok_or("expected 5m, 15m, 1h or all")
    }
}

/// What a reader wants to see of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    pub(super) text: String,
    pub(super) errors: bool,
    pub(super) order: Order,
    pub(super) range: Range,
}

impl Wanted {
    /// Whether a service of this name is among it.
    pub(super) fn takes(&self, name: &str, namespace: &str, has_errors: bool) -> bool {
        let text = self.text.to_lowercase();
        let fits = |name: &str| name.to_lowercase().contains(&text);
        (fits(name) || fits(namespace)) && (has_errors || !self.errors)
    }
}

/// Reads all parameters. A form sends what was left empty.
pub(super) fn parse(pairs: Vec<(String, String)>) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    for (parameter, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
        let result = match parameter.as_str() {
            "q" => {
                wanted.text.clone_from(&value);
                Ok(())
            }
            "errors" => {
                value.parse().map(|errors| wanted.errors = errors).map_err(|_| "expected true or false")
            }
            "sort" => Order::of(&value).map(|order| wanted.order = order),
            "range" => Range::of(&value).map(|range| wanted.range = range),
            _ => Err(UNKNOWN),
        };
        result.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    Ok(wanted)
}

/// Reads the parameters of the map, whose numbers are those since the start.
pub(super) fn of_map(pairs: Vec<(String, String)>) -> Result<Wanted, Error> {
    let refused = |(parameter, value): &(String, String)| match (parameter.as_str(), value.as_str()) {
        ("range", _) => Some("unknown parameter, expected one of q, errors, sort"),
        ("sort", "queue" | "cpu") => Some("expected name, requests, errors, p50, slow or p99"),
        _ => None,
    };
    match pairs.iter().find_map(|pair| Some((pair, refused(pair)?))) {
        Some(((parameter, value), expected)) => {
            Err(Error::Parameter { parameter: parameter.clone(), value: value.clone(), expected })
        }
        None => parse(pairs),
    }
}

/// Reads the parameters of pages that have tables of a time and no filter.
pub(super) fn of_tables(pairs: Vec<(String, String)>) -> Result<(Order, Range), Error> {
    let (mut order, mut range) = (Order::default(), Range::default());
    for (parameter, value) in pairs {
        let result = match parameter.as_str() {
            // Known of whole services only.
            "sort" if value == "queue" => Err("expected name, requests, errors, p50, slow, p99 or cpu"),
            "sort" => Order::of(&value).map(|given| order = given),
            "range" => Range::of(&value).map(|given| range = given),
            _ => Err("unknown parameter, expected sort or range"),
        };
        result.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    Ok((order, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_pairs(pairs: &[(&str, &str)]) -> Result<Wanted, Error> {
        parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn every_parameter_is_read() {
        let wanted = Wanted { text: "a".to_owned(), errors: true, order: Order::Slow, range: Range::Hour };
        assert_eq!(
            parse_pairs(&[("q", "a"), ("errors", "true"), ("sort", "slow"), ("range", "1h")]),
            Ok(wanted.clone())
        );
        assert_eq!(parse_pairs(&[("q", ""), ("sort", "")]), Ok(Wanted::default()));
        for (name, value) in [("errors", "yes"), ("sort", "up"), ("range", "2h"), ("x", "1")] {
            let error = parse_pairs(&[(name, value)]).expect_err(name).to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        }
        assert!(wanted.takes("Cart", "", true) && wanted.takes("x", "prod-a", true));
        assert!(!wanted.takes("Cart", "", false) && !wanted.takes("shop", "x", true));
    }
}
