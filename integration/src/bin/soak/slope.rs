//! Whether something grows: a straight line through the lower edge of a sawtooth.
//!
//! In: values at equal distances. Out: lower quartiles of windows; slope with standard error. Refuses to know units.

/// A line by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Line {
    /// Per step.
    pub(crate) slope: f64,
    /// Standard error of the slope.
    pub(crate) error: f64,
}

/// The value of each window that a quarter of it lies below; what fills no window is left out. Not the least: right
/// after the agent has let go of pages of its program, once a minute and for less than a second, it is smaller by half,
/// and only in some minutes is that seen.
pub(crate) fn lower_edge(values: &[f64], window: usize) -> Vec<f64> {
    values
        .chunks_exact(window)
        .map(|chunk| {
            let mut sorted = chunk.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted[window / 4]
        })
        .collect()
}

impl Line {
    /// Through values one step apart; none through fewer than three.
    pub(crate) fn through(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        if values.len() < 3 {
            return None;
        }
        let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
        let steps = || values.iter().enumerate().map(|(step, value)| (step as f64 - middle, value - mean));
        let spread: f64 = steps().map(|(step, _)| step * step).sum();
        let slope = steps().map(|(step, value)| step * value).sum::<f64>() / spread;
        let rest: f64 = steps().map(|(step, value)| (value - slope * step).powi(2)).sum();
        Some(Self { slope, error: (rest / (n - 2.0) / spread).sqrt() })
    }

    /// Rises by more than two standard errors. What falls will not do so for ever, but it is no leak.
    pub(crate) fn grows(self) -> bool {
        self.slope > 2.0 * self.error + f64::EPSILON
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_lower_quartiles_of_whole_windows() {
        let check = |values: &[f64], window: usize, expected: &[f64]| {
            assert_eq!(lower_edge(values, window), expected, "{values:?} {window}");
        };
        check(&[], 3, &[]);
        check(&[3.0, 1.0, 2.0, 9.0, 7.0, 8.0, 0.0], 3, &[1.0, 7.0]);
        check(&[3.0, 1.0], 1, &[3.0, 1.0]);
        check(&[4.0, 3.0, 0.0, 5.0, 6.0, 6.0, 2.0, 9.0], 4, &[3.0, 6.0]);
    }

    #[test]
    fn slopes_come_with_their_errors() {
        let check = |values: &[f64], slope: f64, error: f64, grows: bool| {
            let line = Line::through(values).unwrap();
            assert!((line.slope - slope).abs() < 1e-9 && (line.error - error).abs() < 1e-9, "{line:?}");
            assert_eq!(line.grows(), grows, "{line:?}");
        };
        check(&[5.0; 9], 0.0, 0.0, false);
        check(&[1.0, 2.0, 3.0, 4.0], 1.0, 0.0, true);
        check(&[4.0, 3.0, 2.0, 1.0], -1.0, 0.0, false);
        // By hand: the rest is 2/3 on one degree of freedom, the spread is 2.
        check(&[0.0, 1.0, 0.0], 0.0, (1.0_f64 / 3.0).sqrt(), false);
        check(&[0.0, 1.0, 2.0, 3.5, 4.0, 5.0], 1.014_285_714_286, 0.054_084_841_389, true);
        assert_eq!(Line::through(&[1.0, 2.0]), None);
    }
}
