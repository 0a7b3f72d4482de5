//! Exact ratios: targets are decimal numbers in a text, and stay that.
//!
//! In: `0.999` or `99.9` per cent. Out: two integers, and comparisons of counts without rounding. Refuses to compare
//! through floating point.

use std::fmt;

/// Digits after the point that are kept; more are refused.
const DIGITS: u32 = 12;

/// A fraction of two integers, as written: `0.999` is 999/1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// `numerator / denominator`; `None` when the denominator is zero.
    pub const fn new(numerator: u64, denominator: u64) -> Option<Self> {
        if denominator == 0 { None } else { Some(Self { numerator, denominator }) }
    }

    /// From a decimal number such as `0.999`; `None` when it is none, negative, or has more than 12 decimals.
    pub fn parse(text: &str) -> Option<Self> {
        Self::decimal(text, 0)
    }

    /// From a decimal number of per cent such as `99.9`.
    pub fn parse_percent(text: &str) -> Option<Self> {
        Self::decimal(text, 2)
    }

    fn decimal(text: &str, shift: u32) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let fraction = fraction.trim_end_matches('0');
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let decimals = u32::try_from(fraction.len()).ok().filter(|decimals| *decimals <= DIGITS)?;
        if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
            return None;
        }
        let denominator = 10_u64.checked_pow(decimals + shift)?;
        let numerator = format!("{whole}{fraction}").parse().ok()?;
        Some(Self { numerator, denominator })
    }

    /// The number over the line.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The number under the line.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// The nearest floating-point number: for showing, and where a burn rate is computed.
    pub fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// What is missing to one; zero when this is more than one. The error budget of a target.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self { numerator: self.denominator.saturating_sub(self.numerator), denominator: self.denominator }
    }

    /// Whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.numerator == 0
    }

    /// Whether this is less than one.
    pub const fn is_below_one(self) -> bool {
        self.numerator < self.denominator
    }

    /// Whether `part` of `whole` reaches this ratio, exactly. Nothing of nothing reaches every ratio.
    pub const fn is_reached(self, part: u64, whole: u64) -> bool {
        part as u128 * self.denominator as u128 >= whole as u128 * self.numerator as u128
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_kept_as_written() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            let parsed = Ratio::parse(text).map(|ratio| (ratio.numerator(), ratio.denominator()));
            assert_eq!(parsed, expected, "{text}");
        };
        check("0.999", Some((999, 1000)));
        check("0.9990", Some((999, 1000)));
        check("0", Some((0, 1)));
        check("1", Some((1, 1)));
        check(".5", Some((5, 10)));
        check("0.999999999999", Some((999_999_999_999, 1_000_000_000_000)));
        check("0.9999999999999", None);
        check("-0.5", None);
        check("", None);
        check(".", None);
        check("0.9x", None);
        check("1e-3", None);
        check("99999999999999999999", None);
        assert_eq!(Ratio::parse_percent("99.95"), Ratio::new(9995, 10_000));
    }

    #[test]
    fn comparisons_do_not_round() {
        let three_nines = Ratio::parse("0.999").expect("a ratio");
        assert!(three_nines.is_reached(999, 1000));
        assert!(!three_nines.is_reached(998, 1000));
        assert!(three_nines.is_reached(u64::MAX, u64::MAX));
        assert!(!three_nines.is_reached(u64::MAX / 1000 * 999 - 1, u64::MAX / 1000 * 1000));
        assert!(three_nines.is_reached(0, 0));
    }
}
