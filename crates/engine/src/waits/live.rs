//! Waits of one process, for somebody who only looks on.

use std::time::{Duration, Instant};

use lj_trace_profile::WaitProfile;
use lj_trace_profile::waits::{WaitLook, WaitPlace};

use super::process_looks::ProcessLooks;
use crate::target::RecordTarget;

/// A look stands for no longer: nobody has looked on meanwhile.
const LONGEST: Duration = Duration::from_secs(5);

/// Looks at the coroutines of a process when it is asked to, and sums up where they wait.
pub struct LiveWaits {
    looks: ProcessLooks,
    profile: WaitProfile,
    looked: Option<Instant>,
}

impl LiveWaits {
    /// Those of a target. Nothing was seen yet.
    pub fn new(target: &RecordTarget) -> Self {
        let looks = ProcessLooks::new(target, false, Instant::now());
        Self { looks, profile: WaitProfile::default(), looked: None }
    }

    /// Looks at all coroutines; gives the places where they wait, the one with most of the time first.
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

    /// Forgets what was summed up.
    pub fn clear(&mut self) {
        self.profile.begin_anew();
    }
}
