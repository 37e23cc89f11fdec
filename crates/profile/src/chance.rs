//! Whether a difference between two profiles may be chance: its standard error, from the numbers of samples.
//!
//! This treats samples as independent: each falls into a function with a probability that is the function's share (the
//! binomial distribution). That holds for programs that do the same all the time. A program that changes what it does
//! every few seconds is sampled in clusters, and its shares vary more between recordings than these errors say. Two
//! recordings cannot show that, so the outputs say it beside the figures.

/// A share of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Samples that count for the share.
    pub hits: u64,
    /// All samples.
    pub all: u64,
}

impl Sampled {
    /// The variance of the share. One hit and one miss are added (Agresti and Coull: *Approximate is better than
    /// "exact" for interval estimation of binomial proportions*, 1998), because a share that was seen never or always
    /// is not certain.
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

/// How many standard errors a change must have to be believed. If `compared` changes are all chance, one of them is as
/// large as this in only one of 20 comparisons (Bonferroni's correction of the 95% interval).
pub fn limit(compared: usize) -> f64 {
    // Both tails together have this probability, so each has half of it.
    let tail = 0.05 / 2.0 / compared.max(1) as f64;
    // Abramowitz and Stegun: *Handbook of Mathematical Functions*, 26.2.23; off by less than 0.00045.
    let t = (-2.0 * tail.ln()).sqrt();
    t - (2.515_517 + 0.802_853 * t + 0.010_328 * t * t)
        / (1.0 + 1.432_788 * t + 0.189_269 * t * t + 0.001_308 * t * t * t)
}

/// Whether the first of `compared` counts is really larger than the second, by the sign test: if both had the same
/// share, each sample of either would be a coin toss. The probability of as many heads or more gets Bonferroni's
/// correction, as in [`limit`], since any of the counts could have come first.
pub fn leads(first: u64, second: u64, compared: usize) -> bool {
    let (first, second) = (first as f64, second as f64);
    let tosses = first + second;
    if first <= second {
        return false;
    }
    let tail = 0.05 / 2.0 / compared.max(1) as f64;
    /// From here on the normal distribution is close enough, with a correction of half a toss.
    const MANY: f64 = 200.0;
    if tosses >= MANY {
        return (first - second - 1.0) / tosses.sqrt() > limit(compared);
    }
    // The largest probability first: C(n, k) / 2^n.
    let (mut chance, mut sum, mut heads) = (0.5_f64.powf(tosses), 0.0, tosses);
    while heads >= first {
        sum += chance;
        chance *= heads / (tosses - heads + 1.0);
        heads -= 1.0;
    }
    sum < tail
}

/// The largest error of a share of this many samples, in 19 of 20 cases: a share of one half is the least certain.
pub fn largest_error(samples: u64) -> f64 {
    let half = Sampled { hits: samples / 2, all: samples };
    (limit(1) * half.variance().sqrt()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leads_by_chance_does_not_lead() {
        for (first, second, compared, expected) in [
            (5, 0, 1, false),
            (6, 0, 1, true),
            (6, 0, 10, false),
            (9, 0, 10, true),
            (3, 3, 1, false),
            (60, 40, 1, false),
            (62, 38, 1, true),
            (600, 500, 2, true),
            (540, 500, 2, false),
            (0, 0, 1, false),
            (u64::MAX, 1, 100, true),
        ] {
            assert_eq!(leads(first, second, compared), expected, "{first} and {second} of {compared}");
        }
    }

    #[test]
    fn errors_fall_with_the_number_of_samples() {
        assert!((largest_error(10_000) - 0.0098).abs() < 0.0002, "{}", largest_error(10_000));
        assert!((largest_error(495) - 0.044).abs() < 0.001, "{}", largest_error(495));
        assert!(largest_error(0) > 0.5 && largest_error(0) <= 1.0);
    }

    /// All functions have the same share: the test may name a leader in at most one of 20 recordings.
    #[test]
    fn equals_rarely_lead() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for (functions, samples) in [(2, 40), (2, 500), (10, 60), (30, 1000)] {
            const RUNS: usize = 400;
            let mut wrong = 0;
            for _ in 0..RUNS {
                let mut hits = vec![0_u64; functions];
                (0..samples).for_each(|_| hits[random() % functions] += 1);
                hits.sort_unstable();
                wrong += usize::from(leads(hits[functions - 1], hits[functions - 2], functions));
            }
            // 33: see `chance_is_rarely_taken_for_a_change`.
            assert!(wrong <= 33, "{wrong} of {RUNS} with {functions} functions and {samples} samples");
        }
    }

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

    /// Two recordings of the same program: in at most one of 20 cases may a difference be called a change.
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
