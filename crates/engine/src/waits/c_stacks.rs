//! Which coroutines are on the C stack of a thread, so that they run or have called what runs, and which are on one that no
//! thread uses: those of fibers that are switched out.

use lj_trace_process::{Maps, Process};

use crate::coroutines::threads::ThreadPlace;

/// A process may have more threads; those that run Lua are among the first mostly.
const MAX_THREADS: usize = 256;
/// The stack of the first thread may grow by so much (`ulimit -s`).
const MAY_GROW: u64 = 8 << 20;
/// C stacks whose places are remembered.
const MAX_RANGES: usize = 512;

/// Where the C stacks of a process's threads are, as far as that was found out.
#[derive(Clone, Debug, Default)]
pub struct CStacks {
    /// Mappings that stack pointers were in: a process with ten thousand fibers has as many mappings, which are not read
    /// anew for each look.
    ranges: Vec<(u64, u64)>,
}

/// The parts of C stacks that threads are using.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedStacks {
    /// Where a thread's innermost frame is, and where its stack ends.
    used: Vec<(u64, u64)>,
    /// Whether some thread runs, so that it is not known where it is.
    has_running: bool,
}

impl CStacks {
    /// Looks at the threads of a process: reads a file for each.
    pub fn look(&mut self, process: &Process) -> UsedStacks {
        let mut stacks = UsedStacks::default();
        let mut maps = None;
        for tid in process.threads().unwrap_or_default().into_iter().take(MAX_THREADS) {
            match ThreadPlace::read(process.pid(), tid) {
                ThreadPlace::Waiting { sp, .. } => {
                    stacks.used.extend(self.find(sp, process, &mut maps).map(|(_, end)| (sp, end)));
                }
                ThreadPlace::Running | ThreadPlace::Refused => stacks.has_running = true,
            }
        }
        if stacks.has_running {
            // A thread that runs is mostly somewhere on the stack that the first one was started with.
            let range = self.find(process.stack_start(), process, &mut maps);
            // It may have grown since, into the gap that the kernel leaves below it.
            stacks.used.extend(range.map(|(start, end)| (start.saturating_sub(MAY_GROW), end)));
        }
        stacks
    }

    /// The mapping that an address is in.
    fn find(&mut self, address: u64, process: &Process, maps: &mut Option<Maps>) -> Option<(u64, u64)> {
        let has = |range: &&(u64, u64)| (range.0..range.1).contains(&address);
        if let Some(known) = self.ranges.iter().find(has) {
            return Some(*known);
        }
        if maps.is_none() {
            *maps = process.maps().ok();
        }
        let mapping = maps.as_ref()?.find(address)?;
        if self.ranges.len() >= MAX_RANGES {
            self.ranges.clear();
        }
        self.ranges.push((mapping.start, mapping.end));
        Some((mapping.start, mapping.end))
    }
}

impl UsedStacks {
    /// Whether a C frame is on one of these. `is_current` says whether it is that of the coroutine that its VM ran last.
    pub fn has(&self, cframe: u64, is_current: bool) -> bool {
        self.used.iter().any(|&(start, end)| (start..end).contains(&cframe)) || self.has_running && is_current
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{hint, thread};

    use super::*;

    #[test]
    fn only_what_is_above_a_stack_pointer_is_in_use() {
        let mut stacks = UsedStacks { used: vec![(0x1800, 0x2000)], has_running: false };
        assert!(stacks.has(0x1900, false) && !stacks.has(0x1700, false) && !stacks.has(0x2000, true));
        stacks.has_running = true;
        assert!(stacks.has(0x5000, true) && !stacks.has(0x5000, false));
    }

    #[test]
    fn the_stack_of_the_first_thread_is_in_use_while_it_runs() {
        let process = Process::open(std::process::id()).unwrap();
        let mut stacks = CStacks::default();
        // The thread that looks is in a system call at that moment.
        let is_over = AtomicBool::new(false);
        let used = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
            let used = stacks.look(&process);
            is_over.store(true, Ordering::Relaxed);
            used
        });
        assert!(used.has_running && used.has(process.stack_start() - 64, false) && !used.has(0x1000, false));
        assert!(!stacks.ranges.is_empty());
    }
}
