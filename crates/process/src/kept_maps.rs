//! Caches mappings that took long to read, for a moment.
//!
//! A process may have tens of thousands of mappings, and to read them takes the kernel and us some tenths of a
//! millisecond for each thousand. Many parts of this program want to know them, one right after the other.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::maps::Maps;

/// What is read sooner is not kept: it is read anew each time.
const SLOW: Duration = Duration::from_millis(4);
/// How old what is kept may be, as a multiple of the time that it took to read. Its first lines were as old as that
/// time when the last one was read, so whoever reads it has to live with changes in any case.
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
    /// What is kept, or what `read` gives.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get<E>(&self, read: impl FnOnce() -> Result<Maps, E>) -> Result<Maps, E> {
        // Whoever comes meanwhile waits for what is being read. Nothing panics while it is.
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
        // A machine that has no time for us may have made one of these slow.
        assert!((0..100).map(|_| get(Duration::ZERO)).max() >= Some(50));
    }
}
