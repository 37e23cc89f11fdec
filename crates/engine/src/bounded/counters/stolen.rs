//! How much of the CPU time of a virtual machine its host takes away. Where it does, two CPUs of the machine may share one of the
//! host: whoever runs on one of them then slows down what runs on the other, and so does a burst of readings.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// The time over which the share is taken. The kernel counts in hundredths of a second, and many CPUs make the file long.
const OVER: Duration = Duration::from_secs(1);

/// Reads the time that the host has taken.
#[derive(Debug)]
pub struct StolenTime {
    stat: Option<File>,
    last: Option<Ticks>,
    looked: Instant,
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
    /// Begins now.
    pub fn new() -> Self {
        let mut new = Self { stat: File::open("/proc/stat").ok(), last: None, looked: Instant::now() };
        new.last = new.read();
        new
    }

    /// The share of the time that CPUs had work for which the host has taken away since the last share, if that is long enough ago, or
    /// if this is the `last` one.
    pub fn share(&mut self, last: bool) -> Option<f64> {
        if self.looked.elapsed() < OVER && !last {
            return None;
        }
        self.looked = Instant::now();
        let now = self.read();
        let before = std::mem::replace(&mut self.last, now);
        Some(now.zip(before).map_or(0.0, |(now, before)| {
            let (busy, stolen) = ((now.busy - before.busy).max(0.0), (now.stolen - before.stolen).max(0.0));
            stolen / (busy + stolen).max(1.0)
        }))
    }

    fn read(&self) -> Option<Ticks> {
        let mut bytes = [0; 256];
        let length = self.stat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let (line, _) = std::str::from_utf8(bytes.get(..length)?).ok()?.split_once('\n')?;
        Ticks::parse(line)
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
        assert!(own.last.is_some());
        assert_eq!(own.share(false), None);
        assert!((0.0..=1.0).contains(&own.share(true).unwrap()));
    }
}
