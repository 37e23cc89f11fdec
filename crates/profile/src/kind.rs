//! Kinds of profiles.

use std::fmt;

/// What a profile is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfileKind {
    /// Where CPU time goes.
    Cpu,
    /// What allocates memory.
    Allocations,
    /// Where coroutines wait.
    Waits,
}

impl ProfileKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Allocations, Self::Waits];

    /// The name of its stream format, which is in names of files too: `sysprof` or `memprof`, as Tarantool calls them. Waits
    /// have no stream.
    pub fn stream(self) -> &'static str {
        match self {
            Self::Cpu => "sysprof",
            Self::Allocations => "memprof",
            Self::Waits => "waits",
        }
    }
}

impl fmt::Display for ProfileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU time",
            Self::Allocations => "allocations",
            Self::Waits => "waits of coroutines",
        })
    }
}
