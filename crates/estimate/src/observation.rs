//! The observations of a memory profile of bounded cost, from which its estimate is made.
//!
//! LuaJIT's sources: [`lj_str_resize`].
//!
//! [`lj_str_resize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L129-L215

/// The time of an observation, in nanoseconds of the kernel's `CLOCK_MONOTONIC`. Records of the BPF programs use the same
/// clock.
pub type Nanos = u64;

/// A source of allocations in a memory profile: a Lua function at a line, a C function, or a trace. Sources are numbered
/// from 0 in the order of appearance; different VMs have different sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// What a sample of CPU time showed running: its innermost Lua function, or what ran in its place. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivityId(pub u32);

/// What is uncertain about a sum, since the beginning of its recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Doubt {
    /// The part that is extrapolated: the true value of this part is between zero and twice that. If a cycle ended between
    /// two readings and the second came late, the bytes swept meanwhile are not known.
    pub guessed: f64,
    /// The variance of what comes from samples of the counters: if cycles are too fast for readings one by one, they come in
    /// bursts.
    pub variance: f64,
}

impl Doubt {
    /// The sum of two independent figures has the doubts of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { guessed: self.guessed + other.guessed, variance: self.variance + other.variance }
    }

    /// By how much the rise of the sum since an earlier moment may be off, in 19 of 20 cases.
    pub fn error_since(&self, earlier: &Self) -> f64 {
        (self.guessed - earlier.guessed).max(0.0) + 2.0 * (self.variance - earlier.variance).max(0.0).sqrt()
    }
}

/// The counters of the garbage collectors of all VMs together, read from outside while the target runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The time of the reading.
    pub at: Nanos,
    /// Bytes allocated since the first reading, less bytes freed or given back explicitly (not by a sweep of the
    /// collector). Never falls.
    pub net: u64,
    /// Bytes allocated since the first reading, if the VM counts them (Tarantool's `gc.allocated`).
    pub gross: Option<u64>,
    /// Collection cycles that have begun since the first reading.
    pub cycles: u64,
    /// The part of all these bytes that string tables have taken since the first reading.
    pub tables: Tables,
    /// What is uncertain about `net`, in bytes.
    pub net_doubt: Doubt,
    /// What is uncertain about `cycles`.
    pub cycles_doubt: Doubt,
    /// How often a counter that should only rise has fallen.
    pub fallen: u64,
}

/// The string tables of all VMs (`lj_str_resize`, `lj_str.c`). A table is sometimes resized to twice or half its size,
/// which its mask shows. String tables are the largest blocks of many programs, and rare, so hardly any window sees one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Bytes of tables that were allocated because there were more strings.
    pub grown: u64,
    /// The number of such tables.
    pub growths: u64,
    /// Bytes of tables that the collector has allocated because there were fewer strings.
    pub shrunk: u64,
    /// Bytes of the tables that these have replaced.
    pub freed: u64,
}

impl Tables {
    /// Bytes that were allocated for tables.
    pub fn made(&self) -> u64 {
        self.grown + self.shrunk
    }

    /// The difference to the earlier state `other`.
    pub fn since(&self, other: &Self) -> Self {
        Self {
            grown: self.grown.saturating_sub(other.grown),
            growths: self.growths.saturating_sub(other.growths),
            shrunk: self.shrunk.saturating_sub(other.shrunk),
            freed: self.freed.saturating_sub(other.freed),
        }
    }

    /// Adds the tables of another VM.
    pub fn add(&mut self, other: &Self) {
        self.grown += other.grown;
        self.growths += other.growths;
        self.shrunk += other.shrunk;
        self.freed += other.freed;
    }

    /// Notes that a table of `from` bytes has become one of `to` bytes, both powers of two, in as many steps as that takes.
    pub fn resize(&mut self, from: u64, to: u64) {
        let mut size = from;
        while size != to && size != 0 {
            self.freed += size;
            if size < to {
                size *= 2;
                self.grown += size;
                self.growths += 1;
            } else {
                size /= 2;
                self.shrunk += size;
            }
        }
    }
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// When the probes began to see calls.
    pub opened: Nanos,
    /// When the probes stopped seeing calls.
    pub closed: Nanos,
    /// The number of calls that were seen, including frees.
    pub events: u64,
    /// What the probes have cost the program, approximately, in nanoseconds of its CPU time.
    pub cost: f64,
    /// Bytes that were freed or given back explicitly: by other calls than those of the collector's sweep.
    pub freed: u64,
    /// The allocations by source. Each source appears once.
    pub made: Vec<Made>,
    /// The allocations, weighted as a sample of what happens around the window.
    pub sample: WindowSample,
    /// Those blocks that may be string tables.
    pub blocks: Vec<TableBlock>,
}

/// What a window says about the time around it. A window opens at a random moment of the program's time. Usually nothing is
/// allocated at that moment, so code that follows such moments is overrepresented at the beginning of windows. To correct
/// that, the first calls count less: each further call counts more, up to a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowSample {
    /// Bytes that were freed or given back explicitly, weighted by call.
    pub freed: f64,
    /// The weighted allocations, sorted by source.
    pub parts: Vec<Part>,
}

/// The part of one source in some windows, weighted by call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The source.
    pub source: SourceId,
    /// The sum of block sizes.
    pub bytes: f64,
    /// The number of calls.
    pub count: f64,
}

/// A block that may be a string table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableBlock {
    /// The source that has allocated or freed the block.
    pub source: SourceId,
    /// The size of the block in bytes, a power of two.
    pub size: u64,
    /// Whether the block was allocated, rather than freed explicitly.
    pub is_made: bool,
    /// The weight of the call in the sample.
    pub weight: f64,
}

impl Window {
    /// Uses everything that was seen as the sample, with equal weights.
    pub fn sampled_alike(mut self) -> Self {
        let part = |made: &Made| Part { source: made.source, bytes: made.bytes as f64, count: made.count as f64 };
        let mut parts: Vec<Part> = self.made.iter().map(part).collect();
        parts.sort_unstable_by_key(|part| part.source);
        self.sample = WindowSample { freed: self.freed as f64, parts };
        self
    }
}

/// The allocations of a source in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The source.
    pub source: SourceId,
    /// The bytes of new blocks, and of blocks that were reallocated to a new size.
    pub bytes: u64,
    /// The number of such calls.
    pub count: u64,
}
