//! What is observed while a memory profile of bounded cost is recorded, and what its estimate is made from.
//!
//! LuaJIT's sources: [`lj_str_resize`].
//!
//! [`lj_str_resize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L129-L215

/// When something was observed: nanoseconds of the kernel's `CLOCK_MONOTONIC`, which records of the BPF programs have,
/// too.
pub type Nanos = u64;

/// What a memory profile says has allocated: a Lua function at a line, a C function, a trace. Numbered from 0 in the
/// order of appearance; sources of different VMs are different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Of all that, what string tables have taken since the first reading.
    pub tables: Tables,
    /// Bytes of `net` that are no more than an extrapolation: a cycle ended between two readings of which the second came
    /// late, so what was swept meanwhile is not known.
    pub guessed: u64,
    /// How often a counter that only rises has fallen.
    pub fallen: u64,
}

/// The string tables of all VMs (`lj_str_resize`, `lj_str.c`): now and then one is made twice as large, or half, which
/// its mask tells. These are the largest blocks of many a program, and rare, so hardly any window sees one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Bytes of tables that were made since there were more strings, and how many such tables.
    pub grown: u64,
    /// As above.
    pub growths: u64,
    /// Bytes of tables that the collector has made since there were fewer strings.
    pub shrunk: u64,
    /// Bytes of the tables in whose place those came.
    pub freed: u64,
}

impl Tables {
    /// Bytes that were allocated.
    pub fn made(&self) -> u64 {
        self.grown + self.shrunk
    }

    /// What has come since `other`.
    pub fn since(&self, other: &Self) -> Self {
        Self {
            grown: self.grown.saturating_sub(other.grown),
            growths: self.growths.saturating_sub(other.growths),
            shrunk: self.shrunk.saturating_sub(other.shrunk),
            freed: self.freed.saturating_sub(other.freed),
        }
    }

    /// Adds those of another VM.
    pub fn add(&mut self, other: &Self) {
        self.grown += other.grown;
        self.growths += other.growths;
        self.shrunk += other.shrunk;
        self.freed += other.freed;
    }

    /// Notes that a table of `from` bytes has become one of `to`, which are powers of two, in as many steps as it takes.
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
    /// When they ceased to.
    pub closed: Nanos,
    /// How many calls were seen, those that free included.
    pub events: u64,
    /// What seeing them has cost the program, about, in nanoseconds of its CPU time.
    pub cost: f64,
    /// Bytes that were freed or given back explicitly: by calls that the collector's sweep does not make.
    pub freed: u64,
    /// What was allocated, by source; each source once.
    pub made: Vec<Made>,
    /// What of that is a sample of what goes on around the window.
    pub sample: WindowSample,
    /// Blocks, of those above, that may be string tables.
    pub blocks: Vec<TableBlock>,
}

/// What a window tells of what goes on around it. It opens at a random moment of the program's time, more often than not in
/// one in which nothing is allocated, so what follows such a moment comes first too often. Hence the first calls count
/// less; each further call counts more, up to a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowSample {
    /// Bytes that were freed or given back explicitly, times what each call counts.
    pub freed: f64,
    /// What was allocated, by source, in their order.
    pub parts: Vec<Part>,
}

/// The part of one source in some windows, by what each call counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Whose.
    pub source: SourceId,
    /// Sizes of blocks.
    pub bytes: f64,
    /// Calls.
    pub count: f64,
}

/// A block that may be a string table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableBlock {
    /// Who has allocated or freed it.
    pub source: SourceId,
    /// Its size, a power of two.
    pub size: u64,
    /// Whether it was allocated; else it was freed explicitly.
    pub is_made: bool,
    /// What the call counts in the sample.
    pub weight: f64,
}

impl Window {
    /// With all that was seen as the sample, each call alike.
    pub fn sampled_alike(mut self) -> Self {
        let part = |made: &Made| Part { source: made.source, bytes: made.bytes as f64, count: made.count as f64 };
        let mut parts: Vec<Part> = self.made.iter().map(part).collect();
        parts.sort_unstable_by_key(|part| part.source);
        self.sample = WindowSample { freed: self.freed as f64, parts };
        self
    }
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
