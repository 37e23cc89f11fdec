//! Progress while a heap is read.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lj_trace_probes::journal::{Priority, say};
use lj_trace_text::bytes;

use lj_trace_heap::Stage;

/// A shorter read shows no progress.
const SHORT: Duration = Duration::from_secs(1);

/// How often to write a line if standard error is not a terminal.
const LINE: Duration = Duration::from_secs(10);

/// A line that is updated on a terminal; elsewhere, a plain line now and then.
pub struct HeapProgress {
    bar: ProgressBar,
    next_line: Instant,
}

impl HeapProgress {
    /// A progress display without output so far.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { bar, next_line: Instant::now() + SHORT }
    }

    /// Shows the current stage.
    pub fn update(&mut self, stage: Stage) {
        if !self.bar.is_hidden() {
            self.bar.set_message(message(stage));
            self.bar.tick();
        } else if Instant::now() >= self.next_line {
            say(Priority::Info, &message(stage));
            self.next_line = Instant::now() + LINE;
        }
    }
}

impl Drop for HeapProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn message(stage: Stage) -> String {
    match stage {
        Stage::Copying { done, all } => format!("copying the heap: {} of {}", bytes(done), bytes(all)),
        Stage::Walking { objects } => format!("looking through the copy: {objects} objects"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_far_it_is() {
        assert!(message(Stage::Copying { done: 5 << 20, all: 10 << 20 }).contains(" of "));
        assert!(message(Stage::Walking { objects: 77 }).contains("77 objects"));
    }
}
