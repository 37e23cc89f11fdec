//! Finds out which coroutines are on the C stack of a thread, so that they run or have called what runs, and which are on a
//! C stack that no thread uses: the stack of a fiber that is switched out.

use lj_trace_process::{Maps, Process};

use crate::coroutines::threads::ThreadPlace;

/// The most threads to look at. A process may have more, but the threads that run Lua are mostly among the first.
const MAX_THREADS: usize = 256;
/// By how many bytes the stack of the first thread may grow (`ulimit -s`).
const MAY_GROW: u64 = 8 << 20;
/// The most address ranges of C stacks to remember.
const MAX_RANGES: usize = 512;

/// The known address ranges of the C stacks of a process's threads.
#[derive(Clone, Debug, Default)]
pub struct CStacks {
    /// Mappings that contained stack pointers. A process with ten thousand fibers has as many mappings, so they are not
    /// read again for each look.
    ranges: Vec<(u64, u64)>,
}

/// The used parts of C stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedStacks {
    /// The address of each thread's innermost frame, and the end of its stack.
    used: Vec<(u64, u64)>,
    /// Whether a thread runs, so that its place is not known.
    has_running: bool,
}

impl CStacks {
    /// Looks at the threads of a process. It reads a file for each.
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
            // A running thread is mostly on the stack with which the first thread started.
            let range = self.find(process.stack_start(), process, &mut maps);
            // That stack may have grown since, into the gap that the kernel leaves below it.
            stacks.used.extend(range.map(|(start, end)| (start.saturating_sub(MAY_GROW), end)));
        }
        stacks
    }

    /// The mapping that contains an address.
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
    /// Whether a C frame is on a used part of a stack. `is_current` says whether it belongs to the coroutine that its VM
    /// ran last.
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
        // The looking thread is in a system call at that moment.
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
