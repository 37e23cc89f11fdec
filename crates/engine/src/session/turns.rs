//! How often each of many processes has its turn with what has to be looked after in all of them: the more there are, the less
//! often, so that looking costs the same however many there are.

use std::time::Duration;

/// What one more process adds to the interval: one of them is looked at fifty times a second.
const EACH: Duration = Duration::from_millis(20);

/// So many processes are looked at as often as one.
const FEW: usize = 8;

/// No process waits longer than this.
const LONGEST: Duration = Duration::from_secs(5);

/// The interval for each of so many processes; `shortest` is that of a few.
pub fn interval(processes: usize, shortest: Duration) -> Duration {
    match u32::try_from(processes) {
        Ok(some) if processes > FEW => (EACH * some).clamp(shortest, LONGEST),
        Ok(_) => shortest,
        Err(_) => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_looked_at_as_often_as_few_together() {
        let shortest = Duration::from_millis(20);
        let of = |processes| interval(processes, shortest).as_millis();
        assert_eq!([1, 8, 9, 50, 500, 5000].map(of), [20, 20, 180, 1000, 5000, 5000]);
    }
}
