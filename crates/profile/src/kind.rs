//! Kinds of profiles.

use std::fmt;

/// What a profile is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfileKind {
    /// Where CPU time goes.
    Cpu,
    /// Which code allocates memory.
    Allocations,
    /// Where threads are while they are off the CPU.
    OffCpu,
    /// All of a thread's time: on the CPU and off it.
    Wall,
    /// Where coroutines wait.
    Waits,
}

impl ProfileKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Allocations, Self::OffCpu, Self::Wall, Self::Waits];

    /// Whether it measures the time of threads.
    pub fn is_time(self) -> bool {
        matches!(self, Self::Cpu | Self::OffCpu | Self::Wall)
    }

    /// Whether a stream format for it exists.
    pub fn has_stream(self) -> bool {
        matches!(self, Self::Cpu | Self::Allocations)
    }

    /// The name of its stream format, as Tarantool has it: `sysprof` or `memprof`. File names contain it. Kinds without
    /// a stream use their name in file names only.
    pub fn stream(self) -> &'static str {
        match self {
            Self::Cpu => "sysprof",
            Self::Allocations => "memprof",
            Self::OffCpu => "offcpu",
            Self::Wall => "wall",
            Self::Waits => "waits",
        }
    }
}

impl fmt::Display for ProfileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU time",
            Self::Allocations => "allocations",
            Self::OffCpu => "time off the CPU",
            Self::Wall => "wall-clock time",
            Self::Waits => "waits of coroutines",
        })
    }
}
