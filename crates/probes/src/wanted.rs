//! Which of the programs a recording needs.

use super::mechanism::Mechanism;

/// Which of the programs a recording needs. The others are not loaded, and their buffers stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The CPU sampler.
    pub cpu: bool,
    /// Time off the CPU.
    pub off_cpu: bool,
    /// Turns of event loops: samples and waits count only in those.
    pub turns: bool,
    /// The allocation probes.
    pub memory: bool,
    /// Every how many allocations one carries its stack; 0 for none.
    pub stack_every: u32,
    /// Whether samples include the kernel's frames.
    pub kernel_frames: bool,
    /// How the kernel inserts the allocation probes.
    pub mechanism: Mechanism,
    /// The light sampler, which only records what runs.
    pub activity: bool,
    /// The probe at the end of requests.
    pub ended_requests: bool,
    /// How many processes are recorded at once: they share the memory for buffers.
    pub processes: u32,
}

impl Wanted {
    /// No programs, for one process.
    pub fn nothing() -> Self {
        Self {
            cpu: false,
            off_cpu: false,
            turns: false,
            memory: false,
            stack_every: 0,
            kernel_frames: false,
            mechanism: Mechanism::detect(),
            activity: false,
            ended_requests: false,
            processes: 1,
        }
    }

    /// Whether a process can share the programs with others: it wants only samples of the clock and waits.
    pub fn may_share(self) -> bool {
        (self.cpu || self.off_cpu) && !self.memory && !self.activity && self.stack_every == 0
    }

    /// The size of a ring buffer, in bytes.
    pub(super) fn buffer(self) -> u32 {
        /// The size in the object file: for one process, or for all processes that share the buffer.
        const ONE: u32 = 16 << 20;
        const LEAST: u32 = 1 << 20;
        if self.may_share() {
            return ONE;
        }
        (ONE / self.processes.max(1).next_power_of_two()).max(LEAST)
    }
}
