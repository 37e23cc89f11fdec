//! Ends sampling on time, however busy lj-trace is: on a loaded machine, one pass over the records may take seconds.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use lj_trace_process::privileges;

/// Something that ends at a certain moment. Dropping this cancels it.
pub struct Timely {
    _wanted: Sender<()>,
}

impl Timely {
    /// Calls `end` at `when`, on a thread of its own without privileges.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn at(when: Instant, end: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (wanted, called_off) = mpsc::channel::<()>();
        let wait = move || {
            // The thread starts with all of lj-trace's privileges, and `end` needs none of them.
            let _ = privileges::give_up_all();
            let left = when.saturating_duration_since(Instant::now());
            if called_off.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                end();
            }
        };
        thread::Builder::new().name("deadline".to_owned()).spawn(wait)?;
        Ok(Self { _wanted: wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_ends_in_time_or_not_at_all() {
        let (tell, told) = mpsc::channel();
        let began = Instant::now();
        let again = tell.clone();
        let never = Timely::at(began + Duration::from_millis(20), move || again.send("never").unwrap()).unwrap();
        drop(never);
        let _timely = Timely::at(began + Duration::from_millis(40), move || tell.send("in time").unwrap()).unwrap();
        assert_eq!(told.recv(), Ok("in time"));
        assert!(began.elapsed() >= Duration::from_millis(40));
    }
}
