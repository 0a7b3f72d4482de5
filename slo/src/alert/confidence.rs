//! How sure a ratio is.
//!
//! In: counts. Out: bounds of Wilson's score interval, one-sided. Refuses to compute with less than one event.

/// The number of standard deviations that a normal value stays below with this probability: 1.645 for 0.95.
///
/// Acklam's approximation of the inverse normal distribution; its relative error is below 1.2e-9.
pub fn quantile(confidence: f64) -> f64 {
    const A: [f64; 6] = [
        -39.696_830_286_653_76,
        220.946_098_424_520_5,
        -275.928_510_446_968_7,
        138.357_751_867_269,
        -30.664_798_066_147_16,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -54.476_098_798_224_06,
        161.585_836_858_040_9,
        -155.698_979_859_886_6,
        66.801_311_887_719_72,
        -13.280_681_552_885_72,
    ];
    const C: [f64; 6] = [
        -0.007_784_894_002_430_293,
        -0.322_396_458_041_136_5,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [0.007_784_695_709_041_462, 0.322_467_129_070_039_8, 2.445_134_137_142_996, 3.754_408_661_907_416];
    const TAIL: f64 = 0.024_25;
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let p = confidence.clamp(1e-12, 1.0 - 1e-12);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&[D[0], D[1], D[2], D[3], 1.0], q)
    };
    if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / polynomial(&[B[0], B[1], B[2], B[3], B[4], 1.0], r)
    }
}

/// What the true ratio is at least and at most, each with the probability that `z` stands for.
///
/// `bad` of `total`, which may be fractions of slices. Without events anything is possible: 0 and 1.
pub fn wilson(bad: f64, total: f64, z: f64) -> (f64, f64) {
    if total <= 0.0 {
        return (0.0, 1.0);
    }
    let ratio = (bad / total).clamp(0.0, 1.0);
    let z2 = z * z;
    let centre = ratio + z2 / (2.0 * total);
    let spread = z * (ratio * (1.0 - ratio) / total + z2 / (4.0 * total * total)).sqrt();
    let scale = 1.0 + z2 / total;
    (((centre - spread) / scale).max(0.0), ((centre + spread) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        // Tables of the standard normal distribution.
        let check = |confidence: f64, expected: f64| {
            assert!((quantile(confidence) - expected).abs() < 1e-6, "{confidence}: {}", quantile(confidence));
        };
        check(0.5, 0.0);
        check(0.9, 1.281_551_6);
        check(0.95, 1.644_853_6);
        check(0.99, 2.326_347_9);
        check(0.999, 3.090_232_3);
        check(0.01, -2.326_347_9);
    }

    #[test]
    fn bounds_of_known_samples() {
        // 95 % two-sided intervals (z = 1.96) of 0/10, 1/10 and 50/100, from the literature on binomial intervals.
        let check = |bad: f64, total: f64, expected: (f64, f64)| {
            let (lower, upper) = wilson(bad, total, 1.959_964);
            assert!(
                (lower - expected.0).abs() < 1e-4 && (upper - expected.1).abs() < 1e-4,
                "{lower} {upper}"
            );
        };
        check(0.0, 10.0, (0.0, 0.2775));
        check(1.0, 10.0, (0.0179, 0.4042));
        check(50.0, 100.0, (0.4038, 0.5962));
        check(0.0, 0.0, (0.0, 1.0));
    }
}
