//! How often lj-trace attends to each of many processes. The more processes there are, the less often each has its turn, so
//! that the total cost stays the same.

use std::time::Duration;

/// How much each process adds to the interval: lj-trace looks at fifty processes per second.
const EACH: Duration = Duration::from_millis(20);

/// Up to this number of processes, each is looked at as often as a single one.
const FEW: usize = 8;

/// The longest interval for one process.
const LONGEST: Duration = Duration::from_secs(5);

/// The interval for each of `processes`; `shortest` is the interval if there are few.
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
