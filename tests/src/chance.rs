//! How far what is counted at random may be off.

/// Standard errors that are tolerated: chance exceeds them once in two million cases, and a run of all tests has some thousand.
pub const ERRORS: f64 = 5.0;

/// By how much a number of events may be off whose variance is this.
///
/// Rare events are lopsided: so many standard errors are exceeded more often than those of a normal distribution, by as much as the
/// second term makes up for (Cornish and Fisher).
pub fn of_variance(variance: f64) -> f64 {
    ERRORS * variance.max(0.0).sqrt() + (ERRORS * ERRORS - 1.0) / 6.0
}

/// By how much a number of events may be off of which so many are expected, each at random (Poisson).
pub fn of_count(expected: f64) -> f64 {
    of_variance(expected)
}

/// The same if each event counts as `weight`, as samples do at a lowered rate.
pub fn of_weighted_count(expected: f64, weight: f64) -> f64 {
    weight * of_count(expected / weight)
}

/// By how much a share, from 0 to 1, may be off in so many samples that do not depend on each other (binomial).
pub fn of_share(share: f64, samples: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    if samples > 0.0 { of_variance(samples * share * (1.0 - share)) / samples } else { 1.0 }
}

/// The same in percent.
pub fn of_percent(percent: f64, samples: f64) -> f64 {
    100.0 * of_share(percent / 100.0, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_alone_stays_within_and_a_fault_does_not() {
        let mut random = fastrand::Rng::with_seed(1);
        for (share, samples) in [(0.5, 120), (0.1, 1000), (0.005, 600), (0.001, 8000)] {
            let tolerance = of_share(share, f64::from(samples));
            for _ in 0..2000 {
                let seen = (0..samples).filter(|_| random.f64() < share).count();
                let seen = seen as f64 / f64::from(samples);
                assert!((seen - share).abs() <= tolerance, "{seen} of {share} in {samples}: {tolerance}");
            }
        }
        assert!(of_percent(50.0, 10_000.0) < 2.6 && of_percent(0.5, 600.0) < 2.2);
        assert_eq!(of_share(0.5, 0.0), 1.0);
    }
}
