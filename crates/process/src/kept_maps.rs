//! Caches for a moment the mappings of processes where reading them takes long.
//!
//! A process may have tens of thousands of mappings, and reading them takes the kernel and lj-trace some tenths of a
//! millisecond for each thousand. Many parts of lj-trace need them, one right after the other.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::maps::Maps;

/// If reading takes less than this, the result is not cached.
const SLOW: Duration = Duration::from_millis(4);
/// How long a result is cached, as a multiple of the time that reading it took. When the last line was read, the first
/// lines were already as old as that time, so every caller has to live with changes in any case.
const AGE: u32 = 4;

/// The mappings of a process as they were a moment ago, if it took long to read them.
#[derive(Debug, Default)]
pub struct KeptMaps(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    maps: Maps,
    until: Instant,
}

impl KeptMaps {
    /// The cached mappings, or the result of `read`.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn get<E>(&self, read: impl FnOnce() -> Result<Maps, E>) -> Result<Maps, E> {
        // A caller that comes while another one reads waits for that result. No code panics while the lock is held.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Kept { maps, until }) = &*kept
            && Instant::now() < *until
        {
            return Ok(maps.clone());
        }
        *kept = None;
        let began = Instant::now();
        let maps = read()?;
        let (took, now) = (began.elapsed(), Instant::now());
        if took >= SLOW {
            *kept = Some(Kept { maps: maps.clone(), until: now + took * AGE });
        }
        Ok(maps)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn only_what_takes_long_is_kept_and_not_for_long() {
        let (kept, reads) = (KeptMaps::default(), Cell::new(0));
        let get = |wait: Duration| {
            let read = || {
                sleep(wait);
                reads.set(reads.get() + 1);
                Ok::<_, ()>(Maps::default())
            };
            assert_eq!(kept.get(read), Ok(Maps::default()));
            reads.get()
        };
        get(SLOW * 8);
        assert_eq!(get(Duration::ZERO), 1);
        sleep(SLOW * 8 * AGE * 2);
        assert_eq!(get(Duration::ZERO), 2);
        // A busy machine may have made one of these calls slow.
        assert!((0..100).map(|_| get(Duration::ZERO)).max() >= Some(50));
    }
}
