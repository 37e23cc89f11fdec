//! The waits of one process, for the live view.

use std::time::{Duration, Instant};

use lj_trace_profile::WaitProfile;
use lj_trace_profile::waits::{WaitLook, WaitPlace};

use super::process_looks::ProcessLooks;
use crate::target::RecordTarget;

/// The longest time that a look counts for: before that, the user was not watching.
const LONGEST: Duration = Duration::from_secs(5);

/// Looks at the coroutines of a process on request, and adds up where they wait.
pub struct LiveWaits {
    looks: ProcessLooks,
    profile: WaitProfile,
    looked: Option<Instant>,
}

impl LiveWaits {
    /// The waits of a target. Nothing has been seen yet.
    pub fn new(target: &RecordTarget) -> Self {
        let looks = ProcessLooks::new(target, false, Instant::now());
        Self { looks, profile: WaitProfile::default(), looked: None }
    }

    /// Looks at all coroutines; returns the places where they wait, the one with most of the time first.
    pub fn look(&mut self) -> Vec<WaitPlace> {
        let now = Instant::now();
        let since = self.looked.map_or(Duration::from_secs(1), |looked| now.saturating_duration_since(looked));
        self.looked = Some(now);
        self.looks.look(&mut self.profile);
        let mut look = WaitLook { stretch: since.min(LONGEST), ..WaitLook::default() };
        self.looks.take(&mut look);
        self.profile.add(&look);
        if let Some(moved) = self.profile.keep_within_room() {
            self.looks.renumber(&moved);
        }
        self.profile.places()
    }

    /// Forgets the sums.
    pub fn clear(&mut self) {
        self.profile.begin_anew();
    }
}
