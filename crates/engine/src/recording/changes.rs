//! Changes of VMs that the allocator's probes do not see: a VM gets another allocator ([`lua_setallocf`]), or is closed
//! without a call of its allocator ([`lj_alloc_destroy`], `lj_alloc.c`, unmaps all memory of LuaJIT's own allocator).
//!
//! [`lua_setallocf`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_api.c#L1297-L1302
//! [`lj_alloc_destroy`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L1257-L1267

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_common::memory::ReadMemory as _;

use lj_trace_luajit::Vm;
use lj_trace_probes::programs::Programs;
use lj_trace_process::{Process, ProcessMemory};

/// How often it is looked whether VMs are there: four reads for each.
const INTERVAL: Duration = Duration::from_millis(50);

/// How often in a row a VM must be found gone: once may be a bad moment.
const MISSES: u32 = 2;

/// Looks after the VMs of a memory profile, which it knows by their indices.
pub struct Changes {
    process: Process,
    memory: ProcessMemory,
    /// When it was looked last whether VMs are there.
    looked: Instant,
    misses: HashMap<u32, u32>,
    /// The allocators that VMs had (`g->allocf` and `g->allocd`), and when they were seen to.
    allocators: HashMap<u32, (AllocatorPair, Instant)>,
}

/// `g->allocf` and `g->allocd`.
pub type AllocatorPair = (u64, u64);

/// A VM has another allocator.
#[derive(Clone, Copy, Debug)]
pub struct NewAllocator {
    /// What it has now.
    pub now: AllocatorPair,
    /// When it still had the one before.
    pub seen: Instant,
}

impl Changes {
    /// Nothing was seen yet.
    pub fn new(process: &Process) -> Self {
        Self {
            process: process.clone(),
            memory: process.memory(),
            looked: Instant::now(),
            misses: HashMap::new(),
            allocators: HashMap::new(),
        }
    }

    /// Reads which allocator a VM has; tells if it had another one before. It reads both words at once: `lua_setallocf`
    /// writes one after the other, and what is seen in between is seen to change once more.
    pub fn allocator(&mut self, programs: &Programs, index: u32, vm: &Vm) -> Option<NewAllocator> {
        let read = |field: u16| self.memory.read::<u64>(vm.global + u64::from(field)).ok();
        let now = Instant::now();
        let (function, data) = (read(vm.layout.g_allocf)?, read(vm.layout.g_allocd)?);
        // One that was closed, and whose memory was given back.
        if function == 0 {
            return None;
        }
        let (before, seen) = self.allocators.insert(index, ((function, data), now))?;
        // Where a VM was closed, the next one may have come to lie at the same address.
        let is_other = || programs.index_of(vm.global) != Some(index) || !self.is_there(vm);
        (before != (function, data) && !is_other()).then_some(NewAllocator { now: (function, data), seen })
    }

    /// A VM has left its index.
    pub fn forget(&mut self, index: u32) {
        self.allocators.remove(&index);
        self.misses.remove(&index);
    }

    /// Whether it is time to look which VMs are there.
    pub fn is_time(&mut self) -> bool {
        let is_time = self.looked.elapsed() >= INTERVAL;
        if is_time {
            self.looked = Instant::now();
        }
        is_time
    }

    /// Looks whether a VM is there; true if it is gone for good.
    pub fn is_gone(&mut self, programs: &Programs, index: u32, vm: &Vm) -> bool {
        if self.is_there(vm) && programs.index_of(vm.global) == Some(index) {
            self.misses.remove(&index);
            return false;
        }
        let misses = self.misses.entry(index).or_default();
        *misses += 1;
        // A process that is going away has no memory any more either.
        *misses >= MISSES && self.process.runs_same_program()
    }

    /// Whether a VM was closed, as far as one look tells.
    pub fn is_closed(&self, vm: &Vm) -> bool {
        !self.is_there(vm) && self.process.runs_same_program()
    }

    fn is_there(&self, vm: &Vm) -> bool {
        vm.still_valid(&self.memory)
    }
}
