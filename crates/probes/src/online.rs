//! Which CPUs are online, and whether that changes.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The numbers of the CPUs that are online.
///
/// # Errors
/// There is no `/sys`, or the file has another format.
pub fn online() -> io::Result<Vec<u32>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_list(list.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The same, up to a second old: with many recorded processes, each of them asks.
///
/// # Errors
/// As [`online`].
pub fn online_lately() -> io::Result<Arc<[u32]>> {
    const AGE: Duration = Duration::from_secs(1);
    static LAST: Mutex<Option<(Instant, Arc<[u32]>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, cpus)) = last.as_ref().filter(|(read, _)| read.elapsed() < AGE) {
        return Ok(Arc::clone(cpus));
    }
    let cpus: Arc<[u32]> = online()?.into();
    *last = Some((Instant::now(), Arc::clone(&cpus)));
    Ok(cpus)
}

/// Reads a list such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// The CPUs that have events. A CPU that goes offline loses its event for good (`perf_event_exit_cpu` in Linux's
/// `kernel/events/core.c`), and a new event needs privileges, which lj-trace may have given up by then.
#[derive(Debug)]
pub struct Coverage {
    covered: BTreeSet<u32>,
    told: BTreeSet<u32>,
}

impl Coverage {
    /// These CPUs have events.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> Self {
        Self { covered: cpus.into_iter().collect(), told: BTreeSet::new() }
    }

    /// A CPU has a new event.
    pub fn cover(&mut self, cpu: u32) {
        self.covered.insert(cpu);
        self.told.remove(&cpu);
    }

    /// A CPU has lost its event, though it is online.
    pub fn lose(&mut self, cpu: u32) {
        self.covered.remove(&cpu);
    }

    /// All CPUs may have lost their events.
    pub fn lose_all(&mut self) {
        self.covered.clear();
    }

    /// How many CPUs have events.
    pub fn count(&self) -> usize {
        self.covered.len()
    }

    /// The CPUs that are online now and have no events, except those that an earlier call has returned.
    pub fn look(&mut self, online: &[u32]) -> Vec<u32> {
        self.covered.retain(|cpu| online.contains(cpu));
        let without = online.iter().copied().filter(|cpu| !self.covered.contains(cpu));
        without.filter(|cpu| self.told.insert(*cpu)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_have_ranges() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse_list(""), None);
        assert!(!online().unwrap().is_empty());
        assert_eq!(online_lately().unwrap().to_vec(), online().unwrap());
    }

    #[test]
    fn what_is_switched_on_later_has_no_event() {
        let mut coverage = Coverage::of([0, 1, 2]);
        assert!(coverage.look(&[0, 1, 2]).is_empty());
        assert!(coverage.look(&[0, 2]).is_empty(), "nothing runs there");
        assert_eq!(coverage.look(&[0, 1, 2, 3]), [1, 3]);
        assert!(coverage.look(&[0, 1, 2, 3]).is_empty(), "that was told");
        assert_eq!(coverage.count(), 2);
        coverage.cover(1);
        assert!(coverage.look(&[0, 1, 2, 3]).is_empty(), "it has an event again");
        coverage.lose(1);
        assert_eq!(coverage.look(&[0, 1, 2, 3]), [1], "and has lost it again");
        coverage.lose_all();
        assert_eq!(coverage.look(&[0, 1, 2, 3]), [0, 2]);
    }
}
