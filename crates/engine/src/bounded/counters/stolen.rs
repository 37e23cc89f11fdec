//! How much of the CPU time of a virtual machine its host takes away. Where it does, two CPUs of the machine may share one of the
//! host: whoever runs on one of them then slows down what runs on the other, and so does a burst of readings.

use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

/// The time over which the share is taken. The kernel counts in hundredths of a second, and many CPUs make the file long.
const OVER: Duration = Duration::from_secs(1);

/// Reads the time that the host has taken.
#[derive(Debug)]
pub struct StolenTime {
    last: Option<Ticks>,
    /// When that was read. [`None`] at first.
    looked: Option<Instant>,
}

/// `/proc/stat`, in ticks, of all CPUs since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    /// How long the CPUs worked.
    busy: f64,
    /// How long they had work and could not run.
    stolen: f64,
}

impl Ticks {
    fn read() -> Option<Self> {
        let mut bytes = [0; 256];
        let length = File::open("/proc/stat").ok()?.read(&mut bytes).ok()?;
        let (line, _) = std::str::from_utf8(bytes.get(..length)?).ok()?.split_once('\n')?;
        Self::parse(line)
    }

    /// The first line of the file, `proc_stat(5)`.
    fn parse(stat: &str) -> Option<Self> {
        let mut numbers = stat.strip_prefix("cpu ")?.split_ascii_whitespace().map_while(|number| number.parse().ok());
        let mut next = || numbers.next();
        let (user, nice, system, _idle, _waiting): (f64, f64, f64, f64, f64) =
            (next()?, next()?, next()?, next()?, next()?);
        let (interrupts, soft) = (next()?, next()?);
        Some(Self { busy: user + nice + system + interrupts + soft, stolen: next()? })
    }
}

impl StolenTime {
    /// Nothing is read before it [begins](Self::begin).
    pub fn new() -> Self {
        Self { last: None, looked: None }
    }

    /// Begins now, if the last share is long ago.
    pub fn begin(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= OVER) {
            (self.last, self.looked) = (Ticks::read(), Some(Instant::now()));
        }
    }

    /// The share of the time that CPUs had work for which the host has taken away since the last share, if that is long enough ago, or
    /// if this is the `last` one.
    pub fn share(&mut self, last: bool) -> Option<f64> {
        if self.looked.is_some_and(|looked| looked.elapsed() < OVER) && !last {
            return None;
        }
        self.looked = Some(Instant::now());
        let now = Ticks::read();
        let before = std::mem::replace(&mut self.last, now);
        Some(now.zip(before).map_or(0.0, |(now, before)| {
            let (busy, stolen) = ((now.busy - before.busy).max(0.0), (now.stolen - before.stolen).max(0.0));
            stolen / (busy + stolen).max(1.0)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_all_cpus() {
        let line = "cpu  100 20 30 4000 500 6 7 8 9 10";
        assert_eq!(Ticks::parse(line), Some(Ticks { busy: 163.0, stolen: 8.0 }));
        assert_eq!(Ticks::parse("cpu0 100 20 30 4000 500 6 7 8"), None);
        assert_eq!(Ticks::parse("cpu  100 20 30 4000"), None);
        let mut own = StolenTime::new();
        own.begin();
        assert!(own.last.is_some());
        assert_eq!(own.share(false), None);
        assert!((0.0..=1.0).contains(&own.share(true).unwrap()));
    }
}
