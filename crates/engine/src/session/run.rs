//! The main loop of a session: it drains buffers, limits the sizes of files, and adds new processes until something ends
//! it.

use std::time::{Duration, Instant};

use lj_trace_probes::journal::{Priority, say};
use tokio::signal::unix::Signal;

use super::children::NewChildren;
use super::memory_limit::MemoryLimit;
use super::stopping::Stopping;
use super::{Observer, Session};
use crate::error::EngineError;
use crate::recording::stop::Stop;
use crate::recording::{Recording, poll_interval};

/// The interval between two looks for exited and for new children.
const CHILDREN_INTERVAL: Duration = Duration::from_millis(200);

/// The interval between two checks of the memory left and of file sizes. If every allocation is kept, tables grow by about
/// 50 MB per second.
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// The same if only CPU time is recorded and file sizes have no limit. Tables then grow with the number of stacks.
const CPU_MEMORY_INTERVAL: Duration = Duration::from_millis(500);

/// The signals that control a running session.
pub struct SessionControl {
    /// What ends the session.
    pub stopping: Stopping,
    /// Someone asks for the outputs so far.
    pub interim: Signal,
}

impl Session<'_> {
    /// Records until something ends the session. Adds new processes from `children` as they come.
    ///
    /// # Errors
    /// An output cannot be written any more.
    pub async fn run(
        &mut self,
        SessionControl { mut stopping, mut interim }: SessionControl,
        children: Option<&NewChildren>,
        observer: &dyn Observer,
    ) -> Result<Stop, EngineError> {
        let options = self.options;
        let began = Instant::now();
        let deadline = self.deadline();
        let mut ticks = poll_interval::ticks();
        let mut next_look = began;
        let mut next_memory = began;
        let mut next_piece = options.rotate.and_then(|time| began.checked_add(time));
        let mut has_parent = true;
        loop {
            tokio::select! {
                // Check for the end first, however much other work there is.
                biased;
                reason = stopping.next(deadline) => match reason {
                    // The children may continue without their parent.
                    Stop::TargetExited if children.is_some() => {
                        has_parent = false;
                        stopping.ignore_exits();
                    }
                    reason => break Ok(reason),
                },
                _ = interim.recv() => self.write_interim()?,
                _ = ticks.tick() => {
                    self.drain()?;
                    poll_interval::relax(&mut ticks, self.interval());
                    if self.is_over() && children.is_none() {
                        break Ok(Stop::OverBudget);
                    }
                    observer.update(self, began.elapsed());
                    self.look_after_targets();
                    self.follow()?;
                    if children.is_none() && self.is_replaced() {
                        break Ok(Stop::TargetReplaced);
                    }
                }
            }
            if Instant::now() >= next_memory {
                let grows_fast = options.kinds.allocations || options.max_size.is_some() || options.rotate.is_some();
                next_memory = Instant::now() + if grows_fast { MEMORY_INTERVAL } else { CPU_MEMORY_INTERVAL };
                let size = self.recordings().map(Recording::largest_stream).max().unwrap_or(0);
                let is_large = options.max_size.is_some_and(|most| size >= most);
                match options.rotate {
                    None if is_large => break Ok(Stop::TooLarge),
                    // If it is too early for a new file name, the next look tries again.
                    Some(time)
                        if (is_large || next_piece.is_some_and(|due| Instant::now() >= due)) && self.rotate()? =>
                    {
                        next_piece = Instant::now().checked_add(time);
                    }
                    _ => {}
                }
                // The limit may have changed, so read it again.
                if let Some(memory) = MemoryLimit::of_this_process().filter(|limit| limit.is_near(self.next_growth())) {
                    let megabytes = memory.bytes() >> 20;
                    let text = format!(
                        "lj-trace: the memory limit of {megabytes} MB (MemoryMax=, or the container's) is nearly reached: \
                     stopped, what was recorded is kept"
                    );
                    say(Priority::Warning, &text);
                    break Ok(Stop::OutOfMemory);
                }
            }
            if let Some(children) = children.filter(|_| Instant::now() >= next_look) {
                next_look = Instant::now() + CHILDREN_INTERVAL;
                self.end_over();
                children.take(options).for_each(|target| self.add(target, observer));
                if !has_parent && !self.is_running() {
                    break Ok(Stop::TargetExited);
                }
            }
        }
    }
}
