//! The summary of waits at the end of a recording.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use lj_trace_profile::WaitProfile;

use super::vm_found::Doubts;
use crate::output::written;
use crate::resolve::{RequestTally, UNSEARCHED};

/// Reasons why figures are incomplete, in the words of reports.
pub const MOVING: &str = "times that a coroutine moved while it was read: it did not count as waiting then";
pub const STALE: &str = "coroutines that were collected unnoticed: their last waits were taken back";
pub const LATE: &str = "coroutines that were found late, so that their first waits are missing";
pub const TORN: &str = "walks for new coroutines that failed, since the program changed what was walked";
pub const OVER: &str = "coroutines that were new and over before they were read: waits of such short ones are missing";
pub const TOO_MANY: &str = "coroutines that there was no room for";

/// The figures of a recording.
pub struct WaitSummary {
    /// Why the recording ended.
    pub end: &'static str,
    /// The duration of the recording.
    pub duration: Duration,
    /// The final length of the stretches between looks, if they were longer than usual.
    pub slowed_to: Option<Duration>,
    /// CPU time that all looks have cost.
    pub cost: Duration,
    /// The paths of the written files.
    pub files: Vec<PathBuf>,
    /// How many requests were found, and why the others were not, if the options ask for requests.
    pub requests: Option<RequestTally>,
}

impl Doubts {
    /// The losses that a profile reports.
    pub fn losses(&self) -> [(&'static str, u64); 7] {
        [
            (MOVING, self.moving),
            (STALE, self.stale),
            (LATE, self.late),
            (TORN, self.torn),
            (OVER, self.over),
            (TOO_MANY, self.too_many),
            (UNSEARCHED, self.unsearched),
        ]
    }
}

impl WaitSummary {
    /// The summary as text for the user.
    pub fn text(&self, profile: &WaitProfile, doubts: &Doubts, verbose: bool) -> String {
        let mut text = String::new();
        let about = profile.about();
        let seconds = self.duration.as_secs_f64();
        let share = 100.0 * self.cost.as_secs_f64() / seconds.max(1e-9);
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{}: {} looks in {seconds:.1} s, which took {share:.2}% of a CPU", self.end, about.looks);
        if let Some(stretch) = self.slowed_to {
            let _ = writeln!(
                text,
                "looks came every {:.1} s in the end, so that they cost less than 1% of a CPU: waits shorter than that are estimates",
                stretch.as_secs_f64()
            );
        }
        let lost = doubts
            .losses()
            .into_iter()
            .filter(|(reason, count)| *count > 0 && (verbose || [LATE, STALE, TOO_MANY].contains(reason)));
        for (reason, count) in lost {
            let _ = writeln!(text, "LOST: {count} {reason}");
        }
        if let Some(requests) = &self.requests {
            write_requests(&mut text, requests);
        }
        for line in written(&self.files) {
            let _ = writeln!(text, "{line}");
        }
        match profile.sentence() {
            Some(sentence) => {
                let _ = writeln!(text, "{sentence}");
            }
            None => {
                let _ = writeln!(text, "no coroutine was seen to wait");
            }
        }
        text
    }
}

/// The number of waits whose request is known, and of those whose request is not known, with the reasons.
fn write_requests(text: &mut String, requests: &RequestTally) {
    let RequestTally { is_wanted, found, without, unknown, .. } = requests;
    let what = requests.subject();
    let mut parts = vec![format!("{found} with a {what}"), format!("{without} of coroutines with none")];
    parts.extend(unknown.iter().map(|(reason, count)| format!("{count} whose {what} is not known: {reason}")));
    // Writing to a string cannot fail.
    let _ = match is_wanted {
        true => {
            let why = requests.no_fibers.map(|why| format!(" ({why})")).unwrap_or_default();
            writeln!(text, "waits that began: {}{why}", parts.join(", "))
        }
        false => writeln!(text, "no requests: {}", requests.why_none("sample").unwrap_or_default()),
    };
    if let Some(why) = requests.trace_ids.as_ref().filter(|_| *is_wanted).and_then(|ids| ids.why_none("wait")) {
        let _ = writeln!(text, "no trace IDs: {why}");
    }
}
