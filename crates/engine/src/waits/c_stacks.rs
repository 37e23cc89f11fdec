//! Which coroutines are on the C stack of a thread, so that they run or have called what runs, and which are on one that no
//! thread uses: those of fibers that are switched out.

use lj_trace_process::Process;

use crate::coroutines::threads::ThreadPlace;

/// A process may have more threads; those that run Lua are among the first mostly.
const MAX_THREADS: usize = 256;

/// The parts of C stacks that threads are using.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedStacks {
    /// Where a thread's innermost frame is, and where its stack ends.
    used: Vec<(u64, u64)>,
    /// Whether some thread runs, so that it is not known where it is.
    has_running: bool,
}

impl UsedStacks {
    /// Looks at the threads of a process: reads a file for each, and the list of mappings.
    pub fn read(process: &Process) -> Self {
        let mut stacks = Self::default();
        let mut pointers = Vec::new();
        for tid in process.threads().unwrap_or_default().into_iter().take(MAX_THREADS) {
            match ThreadPlace::read(process.pid(), tid) {
                ThreadPlace::Waiting { sp, .. } => pointers.push(sp),
                ThreadPlace::Running | ThreadPlace::Refused => stacks.has_running = true,
            }
        }
        let Ok(maps) = process.maps() else { return stacks };
        stacks.used = pointers.into_iter().filter_map(|sp| Some((sp, maps.find(sp)?.end))).collect();
        stacks
    }

    /// Whether a C frame is on one of these. `is_current` says whether it is that of the coroutine that its VM ran last.
    pub fn has(&self, cframe: u64, is_current: bool) -> bool {
        self.used.iter().any(|&(start, end)| (start..end).contains(&cframe)) || self.has_running && is_current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_above_a_stack_pointer_is_in_use() {
        let mut stacks = UsedStacks { used: vec![(0x1800, 0x2000)], has_running: false };
        assert!(stacks.has(0x1900, false) && !stacks.has(0x1700, false) && !stacks.has(0x2000, true));
        stacks.has_running = true;
        assert!(stacks.has(0x5000, true) && !stacks.has(0x5000, false));
    }
}
