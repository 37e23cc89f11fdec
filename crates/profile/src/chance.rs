//! Whether a difference of two profiles may be chance: its standard error, from the numbers of samples.
//!
//! Samples are taken for independent, each in a function with that function's share as the probability: the binomial
//! distribution. That holds for programs that do the same all the time. One that changes what it does every few seconds is
//! sampled in clusters, and its shares vary more from one recording to the next than this says: that cannot be told from
//! two recordings, so it is said beside the figures.

/// A share of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Samples that show it.
    pub hits: u64,
    /// All samples.
    pub all: u64,
}

impl Sampled {
    /// The variance of the share. One hit and one miss are added (Agresti and Coull: *Approximate is better than "exact"
    /// for interval estimation of binomial proportions*, 1998): what was seen never or always is not certain.
    fn variance(self) -> f64 {
        let all = self.all as f64 + 2.0;
        let share = (self.hits as f64 + 1.0) / all;
        share * (1.0 - share) / all
    }

    /// The standard error of the difference of two shares.
    pub fn error_of_change(self, other: Self) -> f64 {
        (self.variance() + other.variance()).sqrt()
    }
}

/// How many standard errors a change must have, so that among so many that are all chance one is as large in one of 20
/// comparisons (Bonferroni's correction of the 95% interval).
pub fn limit(compared: usize) -> f64 {
    // Of both sides together, each has half.
    let tail = 0.05 / 2.0 / compared.max(1) as f64;
    // Abramowitz and Stegun: *Handbook of Mathematical Functions*, 26.2.23; off by less than 0.00045.
    let t = (-2.0 * tail.ln()).sqrt();
    t - (2.515_517 + 0.802_853 * t + 0.010_328 * t * t)
        / (1.0 + 1.432_788 * t + 0.189_269 * t * t + 0.001_308 * t * t * t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_tables() {
        for (compared, expected) in [(1, 1.960), (5, 2.576), (50, 3.291)] {
            assert!((limit(compared) - expected).abs() < 0.001, "{compared}: {}", limit(compared));
        }
    }

    #[test]
    fn small_recordings_have_large_errors() {
        let of = |hits, all| Sampled { hits, all };
        let error = of(52, 104).error_of_change(of(39, 78));
        assert!((error - 0.0742).abs() < 0.001, "{error}");
        assert!(of(0, 10).error_of_change(of(0, 10)) > 0.1);
        let long = of(5000, 10_000).error_of_change(of(5000, 10_000));
        assert!((long - 0.00707).abs() < 0.0001, "{long}");
    }

    /// Two recordings of the same program: what is called a change is one in at most one of 20 cases.
    #[test]
    fn chance_is_rarely_taken_for_a_change() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        const FUNCTIONS: usize = 20;
        const RUNS: usize = 400;
        let mut wrong = 0;
        for _ in 0..RUNS {
            let mut record = |samples: u64| {
                let mut hits = [0; FUNCTIONS];
                // Some functions are in many samples, most in few.
                (0..samples).for_each(|_| hits[(random() % FUNCTIONS).min(random() % FUNCTIONS)] += 1);
                hits.map(|hits| Sampled { hits, all: samples })
            };
            let (old, new) = (record(104), record(78));
            let is_change = |(old, new): (&Sampled, &Sampled)| {
                let change = new.hits as f64 / new.all as f64 - old.hits as f64 / old.all as f64;
                change.abs() > limit(FUNCTIONS) * old.error_of_change(*new)
            };
            wrong += usize::from(old.iter().zip(&new).any(is_change));
        }
        // 5% of 400 are 20; with three deviations of the binomial distribution, 33.
        assert!(wrong <= 33, "{wrong} of {RUNS}");
    }
}
