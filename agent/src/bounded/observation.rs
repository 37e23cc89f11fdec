//! What is observed while a memory profile of bounded cost is recorded, and what its estimate is made from.

/// When something was observed: nanoseconds of the kernel's `CLOCK_MONOTONIC`, which records of the BPF programs have,
/// too.
pub type Nanos = u64;

/// What a memory profile says has allocated: a Lua function at a line, a C function, a trace. Numbered from 0 in the
/// order of appearance; sources of different VMs are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// What a sample of CPU time showed running: its innermost Lua function, or what ran in place of one. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivityId(pub u32);

/// The counters of the garbage collectors of all VMs together, read from outside while the target runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// When they were read.
    pub at: Nanos,
    /// Bytes that were allocated since the first reading, less those that were freed or given back explicitly (not by a
    /// sweep of the collector). Never falls.
    pub net: u64,
    /// Bytes that were allocated since the first reading, where the VM counts them (Tarantool's `gc.allocated`).
    pub gross: Option<u64>,
    /// Collection cycles that were begun since the first reading.
    pub cycles: u64,
}

/// A sample of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// When it was taken.
    pub at: Nanos,
    /// What ran.
    pub activity: ActivityId,
}

/// A window in which every call of the allocator was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// When the probes began to see calls.
    pub opened: Nanos,
    /// When they ceased to.
    pub closed: Nanos,
    /// How many calls were seen, those that free included.
    pub events: u64,
    /// Bytes that were freed or given back explicitly: by calls that the collector's sweep does not make.
    pub freed: u64,
    /// What was allocated, by source; each source once.
    pub made: Vec<Made>,
}

/// What a source has allocated in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Who.
    pub source: SourceId,
    /// The sizes of new blocks, and of those that were reallocated to a new size.
    pub bytes: u64,
    /// How many such calls.
    pub count: u64,
}
