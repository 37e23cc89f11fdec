//! Which of the programs a recording wants.

use super::mechanism::Mechanism;

/// Which of the programs a recording wants: the others are not loaded, and their buffers stay small.
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
    /// Every allocation of this number carries its stack; 0 for none.
    pub stack_every: u32,
    /// Samples take the kernel's frames along.
    pub kernel_frames: bool,
    /// How the allocation probes are put on instructions.
    pub mechanism: Mechanism,
    /// The light sampler, which says what runs.
    pub activity: bool,
    /// How many processes are recorded at once: they share the memory for buffers.
    pub processes: u32,
}

impl Wanted {
    /// None of them, of one process.
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
            processes: 1,
        }
    }

    /// Whether a process can share the programs with others: there is nothing but samples of the clock and waits.
    pub fn may_share(self) -> bool {
        (self.cpu || self.off_cpu) && !self.memory && !self.activity && self.stack_every == 0
    }

    /// Whether nothing but samples of the clock is wanted.
    pub fn is_cpu_time(self) -> bool {
        self.may_share() && !self.off_cpu && !self.turns
    }

    /// The size of a ring buffer.
    pub(super) fn buffer(self) -> u32 {
        /// What the object file has: for one process, or for all that share it.
        const ONE: u32 = 16 << 20;
        const LEAST: u32 = 1 << 20;
        if self.may_share() {
            return ONE;
        }
        (ONE / self.processes.max(1).next_power_of_two()).max(LEAST)
    }
}
