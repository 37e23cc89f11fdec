//! Whether something that is measured again and again grows: a straight line through it, and how far that may be off.

/// A line through values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// How much the values grow in a unit of time.
    pub per_time: f64,
    /// Its standard error, from what is left of the values without the line.
    pub error: f64,
}

impl Slope {
    /// The line with the least squares through values, each with its time; [`None`] if there are fewer than four.
    ///
    /// Neighbours are alike where a value keeps what it was for long: as many fewer of them count, by how much each is like the
    /// one before (Bartlett's formula for a first-order autoregression).
    pub fn of(values: &[(f64, f64)]) -> Option<Self> {
        if values.len() < 4 {
            return None;
        }
        let count = values.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| values.iter().map(of).sum::<f64>() / count;
        let (time, value) = (mean(|value| value.0), mean(|value| value.1));
        let spread: f64 = values.iter().map(|(at, _)| (at - time).powi(2)).sum();
        let per_time = values.iter().map(|(at, own)| (at - time) * (own - value)).sum::<f64>() / spread;
        let left: Vec<f64> = values.iter().map(|(at, own)| own - value - per_time * (at - time)).collect();
        let squares: f64 = left.iter().map(|left| left * left).sum();
        let neighbours: f64 = left.windows(2).map(|pair| pair[0] * pair[1]).sum();
        let alike = if squares > 0.0 { (neighbours / squares).clamp(0.0, 0.99) } else { 0.0 };
        let variance = squares / (count - 2.0) * (1.0 + alike) / (1.0 - alike);
        Some(Self { per_time, error: (variance / spread).sqrt() })
    }

    /// Whether it may be that nothing grows: zero is within two standard errors, or the growth is less than `negligible`.
    pub fn may_be_flat(self, negligible: f64) -> bool {
        self.per_time <= (2.0 * self.error).max(negligible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..360).map(|at| (f64::from(at), of(f64::from(at)))).collect()
    }

    /// Always the same, and without a trend.
    fn noise(at: f64) -> f64 {
        (at * 12.9898).sin() * 43758.547 % 1.0
    }

    #[test]
    fn growth_is_told_from_noise() {
        let flat = Slope::of(&series(|at| 100.0 + noise(at))).unwrap();
        assert!(flat.may_be_flat(0.0) && flat.error > 0.0, "{flat:?}");
        let growing = Slope::of(&series(|at| 100.0 + noise(at) + 0.01 * at)).unwrap();
        assert!((growing.per_time - 0.01).abs() < 3.0 * growing.error, "{growing:?}");
        assert!(!growing.may_be_flat(0.0), "{growing:?}");
        assert!(growing.may_be_flat(0.02));
    }

    #[test]
    fn what_stays_the_same_is_flat() {
        let same = Slope::of(&series(|_| 7.0)).unwrap();
        assert!(same.per_time.abs() < 1e-9 && same.may_be_flat(1e-9), "{same:?}");
        assert_eq!(Slope::of(&[(0.0, 1.0); 3]), None);
    }

    #[test]
    fn a_table_that_fills_and_is_emptied_is_flat_and_one_that_only_fills_is_not() {
        let saw = Slope::of(&series(|at| at % 60.0)).unwrap();
        assert!(saw.may_be_flat(0.0), "{saw:?}");
        let steps = Slope::of(&series(|at| (at / 60.0).floor())).unwrap();
        assert!(!steps.may_be_flat(0.0), "{steps:?}");
    }
}
