//! Variances of which it is known how well they are known.

/// A variance that is the sum of others, each of them known from some samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variance {
    sum: f64,
    /// The sum of the squared variances, each divided by its degrees of freedom.
    squares: f64,
}

impl Variance {
    /// Adds a variance that is known with so many degrees of freedom.
    pub fn add(&mut self, variance: f64, freedom: f64) {
        self.sum += variance;
        self.squares += variance * variance / freedom;
    }

    /// How far off the figure may be in 19 of 20 cases, if `seen` samples say anything about it.
    pub fn error(&self, seen: f64) -> f64 {
        let freedom = if self.squares > 0.0 { self.sum * self.sum / self.squares } else { 1.0 };
        self.sum.sqrt() * student(freedom.min(seen))
    }
}

/// The number of standard deviations that hold 19 of 20 cases, if the deviation is known with this many degrees of freedom:
/// Student's t at 97.5%, in powers of one over them (Abramowitz and Stegun: *Handbook of Mathematical Functions*, 26.7.5).
fn student(freedom: f64) -> f64 {
    let n = freedom.max(1.5);
    1.96 + 2.37 / n + 2.82 / (n * n) + 2.56 / (n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_is_that_of_the_tables() {
        for (freedom, expected) in [(2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1e9, 1.96)]
        {
            assert!((student(freedom) / expected - 1.0).abs() < 0.04, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn the_freedom_of_a_sum_is_that_of_its_largest_part() {
        let mut variance = Variance::default();
        variance.add(100.0, 4.0);
        variance.add(0.01, 1.0);
        assert!((variance.error(1e9) / (10.0 * student(4.0)) - 1.0).abs() < 1e-3);
        assert!(variance.error(2.0) > 10.0 * student(2.5));
        assert_eq!(Variance::default().error(9.0), 0.0);
    }
}
