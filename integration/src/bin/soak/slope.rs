//! Whether something grows: a straight line through the lower edge of a sawtooth.
//!
//! In: values at equal distances. Out: minima of windows; slope with standard error. What memory a minute leaves, the
//! next one finds: values are not independent, and an error for independent ones is too small. So it is that of as many
//! independent values as say as much (B. D. Santer et al., J. Geophys. Res. 105, 2000, section 3). Refuses to know units.

/// A line by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Line {
    /// Per step.
    pub(crate) slope: f64,
    /// Standard error of the slope; infinite where the values say nothing of it.
    pub(crate) error: f64,
}

/// The least value of each window; what fills no window is left out.
pub(crate) fn lower_edge(values: &[f64], window: usize) -> Vec<f64> {
    values.chunks_exact(window).map(|chunk| chunk.iter().copied().fold(f64::INFINITY, f64::min)).collect()
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
        let rests: Vec<f64> = steps().map(|(step, value)| value - slope * step).collect();
        let rest: f64 = rests.iter().map(|rest| rest * rest).sum();
        let freedom = independent(&rests, rest) - 2.0;
        let error = if freedom > 0.0 { (rest / freedom / spread).sqrt() } else { f64::INFINITY };
        Some(Self { slope, error })
    }

    /// Zero within two standard errors.
    pub(crate) fn is_level(self) -> bool {
        self.slope.abs() <= 2.0 * self.error + f64::EPSILON
    }
}

/// How many independent values say as much as these, whose squares have this sum: by how much each is like the next.
fn independent(rests: &[f64], squares: f64) -> f64 {
    let n = rests.len() as f64;
    let like: f64 = rests.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let alike = if squares > f64::EPSILON * n { (like / squares).clamp(0.0, 1.0) } else { 0.0 };
    n * (1.0 - alike) / (1.0 + alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_minima_of_whole_windows() {
        let check = |values: &[f64], window: usize, expected: &[f64]| {
            assert_eq!(lower_edge(values, window), expected, "{values:?} {window}");
        };
        check(&[], 3, &[]);
        check(&[3.0, 1.0, 2.0, 9.0, 7.0, 8.0, 0.0], 3, &[1.0, 7.0]);
        check(&[3.0, 1.0], 1, &[3.0, 1.0]);
    }

    #[test]
    fn slopes_come_with_their_errors() {
        let check = |values: &[f64], slope: f64, error: f64, is_level: bool| {
            let line = Line::through(values).unwrap();
            assert!((line.slope - slope).abs() < 1e-9 && (line.error - error).abs() < 1e-9, "{line:?}");
            assert_eq!(line.is_level(), is_level, "{line:?}");
        };
        check(&[5.0; 9], 0.0, 0.0, true);
        check(&[1.0, 2.0, 3.0, 4.0], 1.0, 0.0, false);
        // By hand: the rest is 2/3 on one degree of freedom, the spread is 2.
        check(&[0.0, 1.0, 0.0], 0.0, (1.0_f64 / 3.0).sqrt(), true);
        check(&[0.0, 1.0, 2.0, 3.5, 4.0, 5.0], 1.014_285_714_286, 0.054_084_841_389, false);
        assert_eq!(Line::through(&[1.0, 2.0]), None);
    }

    /// A walk by chance has no slope of its own: by an error for independent values half of them would be said to grow.
    #[test]
    fn a_walk_by_chance_is_no_growth() {
        let n_level = |lean: f64| {
            let mut random = fastrand::Rng::with_seed(17);
            let mut walk = || {
                let mut at = 0.0;
                let mut next = || {
                    at = 0.8 * at + random.f64() - 0.5;
                    at
                };
                let values: Vec<f64> = (0..40).map(|minute| lean * f64::from(minute) + next()).collect();
                Line::through(&values).unwrap().is_level()
            };
            (0..1_000).filter(|_| walk()).count()
        };
        let (still, leaning) = (n_level(0.0), n_level(0.2));
        assert!(still > 750 && leaning < 50, "{still} {leaning}");
    }
}
