//! What a recording of bounded cost tells, held against itself: two figures of it cannot contradict each other, whatever the
//! truth is.

use anyhow::Result;
use lj_trace_profile::estimated::AboutEstimate;

use crate::bounded_run::told_cost;

/// What lj-trace said at its end.
#[derive(Clone, Debug)]
pub struct Told {
    text: String,
    /// What it has cost the program, in percent of its CPU time.
    pub cost: f64,
}

impl Told {
    /// That of a summary.
    ///
    /// # Errors
    /// If it tells no cost.
    pub fn of(summary: &str) -> Result<Self> {
        Ok(Self { text: summary.to_owned(), cost: told_cost(summary)? })
    }
}

/// All that cannot be.
pub fn contradictions(about: &AboutEstimate, told: &Told) -> Vec<String> {
    let mut found = Vec::new();
    if let (true, Some(net), Some(gross)) = (about.has_bytes(), about.net, about.gross) {
        let error = net.error.unwrap_or(0.0) + gross.error.unwrap_or(0.0);
        // Counters and probes begin and end some milliseconds apart.
        if net.value > gross.value * 1.03 + error + 65_536.0 {
            found.push(format!("{net:?} is left of {gross:?}"));
        }
        if net.value < 0.0 || gross.value < 0.0 {
            found.push(format!("{net:?}, {gross:?}: less than nothing"));
        }
    }
    if about.covered > about.recorded * 1.001 {
        found.push(format!("windows were open for {} of {} s", about.covered, about.recorded));
    }
    if about.events > 0 && about.windows == 0 {
        found.push(format!("{} events in no window", about.events));
    }
    let line = told.text.lines().find(|line| line.contains("rose -") || line.contains("NaN") || line.contains(" inf"));
    found.extend(line.map(str::to_owned));
    found
}
