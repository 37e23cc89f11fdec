//! Shares of what was seen, as shares of all that there is.

use crate::Figure;

/// A share that was found among so many, and its error (Agresti and Coull: *Approximate is better than "exact"*, 1998). The
/// error is also valid if all or none of a few belong to the part.
pub fn proportion(share: f64, among: f64) -> Figure {
    if among == 0.0 {
        return Figure::estimated(0.0, 1.0);
    }
    let middle = (share * among + 2.0) / (among + 4.0);
    let half = 2.0 * (middle * (1.0 - middle) / (among + 4.0)).sqrt();
    Figure::estimated(share, (half + (middle - share).abs()).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_error_of_a_few_holds_the_truth() {
        let mut random = Random::new(5);
        let (mut held, mut checks) = (0.0, 0.0);
        for _ in 0..4000 {
            let (truth, among) = (random.unit(), 1 + random.below(12));
            let found = (0..among).filter(|_| random.unit() < truth).count();
            let figure = proportion(found as f64 / among as f64, among as f64);
            held += f64::from(u8::from((figure.value - truth).abs() <= figure.error.unwrap_or(0.0)));
            checks += 1.0;
        }
        assert!(held >= 0.95 * checks - 3.0 * f64::sqrt(checks * 0.95 * 0.05), "{held} of {checks}");
        assert_eq!(proportion(0.5, 0.0), Figure::estimated(0.0, 1.0));
    }
}
