//! Prometheus and OpenMetrics text, read back.
//!
//! In: an exposition. Out: samples with labels and exemplars. Refuses to know what the metrics mean.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// One line of an exposition.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name with its suffix (`_total`, `_bucket`, …).
    pub name: String,
    /// Labels.
    pub labels: Labels,
    /// Value.
    pub value: f64,
    /// Labels and value of the exemplar, if any.
    pub exemplar: Option<(Labels, f64)>,
}

/// All samples of one scrape.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exposition {
    /// Samples in the order of the text.
    pub samples: Vec<Sample>,
}

impl Exposition {
    /// Reads a whole exposition.
    ///
    /// # Errors
    /// When a line is malformed, with the line.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples: anyhow::Result<_> =
            lines.map(|line| sample(line).with_context(|| format!("line {line:?}"))).collect();
        Ok(Self { samples: samples? })
    }

    /// Samples called `name` that have at least `labels`.
    pub fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(name, value)| sample.labels.get(*name).is_some_and(|found| found == value))
        })
    }

    /// Sum of the samples called `name` that have at least `labels`; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        // `Sum` of nothing is -0.0.
        self.matching(name, labels).fold(0.0, |sum, sample| sum + sample.value)
    }
}

fn sample(line: &str) -> anyhow::Result<Sample> {
    let end = line.find(['{', ' ']).context("no value")?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = labels(rest)?;
    // Labels are cut off already: the mark cannot be inside one.
    let (numbers, exemplar) =
        rest.split_once(" # ").map_or((rest, None), |(numbers, tail)| (numbers, Some(tail)));
    let value = first_number(numbers)?;
    let exemplar = match exemplar {
        None => None,
        Some(text) => {
            let (labels, rest) = self::labels(text)?;
            Some((labels, first_number(rest)?))
        }
    };
    Ok(Sample { name: name.to_owned(), labels, value, exemplar })
}

fn first_number(text: &str) -> anyhow::Result<f64> {
    let word = text.split_whitespace().next().context("no value")?;
    word.parse().with_context(|| format!("value {word:?}"))
}

/// `{a="b",…}` and what follows; no braces are no labels.
fn labels(text: &str) -> anyhow::Result<(Labels, &str)> {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return Ok((labels, text));
    };
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, tail) = rest.split_once("=\"").context("label without value")?;
        let (value, tail) = quoted(tail)?;
        if labels.insert(name.to_owned(), value).is_some() {
            bail!("label {name} twice");
        }
        rest = tail;
    }
}

/// A quoted value from behind its opening quote, and what follows its closing one.
fn quoted(text: &str) -> anyhow::Result<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match characters.next().context("escape at the end")?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    bail!("value without closing quote")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, name: &str, labels: &[(&str, &str)], value: f64, exemplar: Option<f64>) {
        let sample = Exposition::parse(line).expect("line parses").samples.remove(0);
        let expected: Labels =
            labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        assert_eq!((sample.name.as_str(), &sample.labels, sample.value), (name, &expected, value));
        assert_eq!(sample.exemplar.map(|(_, value)| value), exemplar);
    }

    #[test]
    fn lines() {
        check("up 1", "up", &[], 1.0, None);
        check("up{} 1 123", "up", &[], 1.0, None);
        check(
            r#"a_bucket{le="+Inf",x="q\"\\\n,}"} +Inf"#,
            "a_bucket",
            &[("le", "+Inf"), ("x", "q\"\\\n,}")],
            f64::INFINITY,
            None,
        );
        check(r#"a{b="c # d"} 2 # {trace_id="1"} 0.5 1.2"#, "a", &[("b", "c # d")], 2.0, Some(0.5));
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in ["a", "a{b} 1", "a{b=\"c} 1", "a x", "a{b=\"1\",b=\"2\"} 1"] {
            assert!(Exposition::parse(line).is_err(), "{line}");
        }
    }
}
