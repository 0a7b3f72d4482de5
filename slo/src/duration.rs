//! Durations as people write them.
//!
//! In: `5m`, `28d`, `1M` (OpenSLO), `300ms` (thresholds). Out: numbers, and text back. Refuses fractions of a unit
//! where OpenSLO does.

use std::fmt;
use std::time::Duration;

use crate::window::Unit;

/// OpenSLO's duration shorthand: a positive integer and one letter of `mhdwMQY`. `None` for anything else.
pub fn parse_shorthand(text: &str) -> Option<(u32, Unit)> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "m" => Unit::Minute,
        "h" => Unit::Hour,
        "d" => Unit::Day,
        "w" => Unit::Week,
        "M" => Unit::Month,
        "Q" => Unit::Quarter,
        "Y" => Unit::Year,
        _ => return None,
    };
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let count = number.parse().ok().filter(|count| plain && *count > 0)?;
    Some((count, unit))
}

/// A threshold such as `300ms`, `1.5s`, `250us`, `2m`: a decimal number and one of `ns us ms s m h`.
pub fn parse_threshold(text: &str) -> Option<Duration> {
    let at = text.find(|character: char| character.is_ascii_alphabetic() || character == 'µ')?;
    let (number, unit) = text.split_at(at);
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let number = crate::ratio::Ratio::parse(number)?;
    let nanos = u128::from(number.numerator()) * scale / u128::from(number.denominator());
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

/// Shows a duration in the largest unit of `w d h m s ms` that divides it: `28d`, `90m`, `10s`.
///
/// Weeks are shown as days, as Prometheus and Alertmanager users expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short(pub Duration);

impl fmt::Display for Short {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let units: [(u128, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1, "ns"),
        ];
        let fitting = units.iter().find(|(size, _)| nanos > 0 && nanos.is_multiple_of(*size));
        let (size, unit) = fitting.copied().unwrap_or((1_000_000_000, "s"));
        write!(out, "{}{unit}", nanos / size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorthands_of_the_specification() {
        let check =
            |text: &str, expected: Option<(u32, Unit)>| assert_eq!(parse_shorthand(text), expected, "{text}");
        check("12h", Some((12, Unit::Hour)));
        check("4w", Some((4, Unit::Week)));
        check("1M", Some((1, Unit::Month)));
        check("1Q", Some((1, Unit::Quarter)));
        check("365d", Some((365, Unit::Day)));
        check("1Y", Some((1, Unit::Year)));
        check("5m", Some((5, Unit::Minute)));
        for wrong in ["", "m", "0m", "-1d", "+1d", "1.5h", "1 d", "1s", "d1", "1dd", "99999999999d", "1µ"] {
            check(wrong, None);
        }
    }

    #[test]
    fn thresholds_are_exact() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse_threshold(text), expected.map(Duration::from_nanos), "{text}");
        };
        check("300ms", Some(300_000_000));
        check("0.3s", Some(300_000_000));
        check("250us", Some(250_000));
        check("1m", Some(60_000_000_000));
        check("1", None);
        check("ms", None);
        check("-1ms", None);
        check("1 ms", None);
        check("1d", None);
    }

    #[test]
    fn the_largest_fitting_unit_is_shown() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(Short(Duration::from_secs(seconds)).to_string(), expected);
        };
        check(28 * 86_400, "28d");
        check(5400, "90m");
        check(7200, "2h");
        check(10, "10s");
        check(0, "0s");
    }
}
