//! Changes of VMs that the allocator's probes do not see: a VM gets another allocator ([`lua_setallocf`]), or is closed
//! without a call of its allocator ([`lj_alloc_destroy`], `lj_alloc.c`, unmaps all memory of LuaJIT's own allocator).
//!
//! [`lua_setallocf`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_api.c#L1297-L1302
//! [`lj_alloc_destroy`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_alloc.c#L1257-L1267

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_common::memory::ReadMemory as _;

use lj_trace_luajit::Vm;
use lj_trace_probes::allocator::{AllocationProbes, AllocatorPair};
use lj_trace_probes::programs::Programs;
use lj_trace_process::{Process, ProcessMemory};

/// The interval between two checks that the VMs exist. A check takes four reads for each VM.
const INTERVAL: Duration = Duration::from_millis(50);

/// How many checks in a row must miss a VM: a single check may come at a bad moment.
const MISSES: u32 = 2;

/// Watches the VMs of a memory profile, by their indices.
pub struct Changes {
    process: Process,
    memory: ProcessMemory,
    /// When the VMs were last checked.
    looked: Instant,
    misses: HashMap<u32, u32>,
    /// The allocators of the VMs, and when they were last read.
    allocators: HashMap<u32, (AllocatorPair, Instant)>,
    /// A time before the first call of every VM that has no allocator here yet.
    caught_up: Instant,
}

/// A VM that has changed its allocator.
#[derive(Clone, Copy, Debug)]
pub struct NewAllocator {
    /// The allocator that it has now.
    pub now: AllocatorPair,
    /// When it was last seen with the previous allocator.
    pub seen: Instant,
}

impl Changes {
    /// Starts without any observation.
    pub fn new(process: &Process) -> Self {
        Self {
            process: process.clone(),
            memory: process.memory(),
            looked: Instant::now(),
            misses: HashMap::new(),
            allocators: HashMap::new(),
            caught_up: Instant::now(),
        }
    }

    /// All calls from before `time` are processed, and so are the first ones of all VMs that have made any by then.
    pub fn catch_up(&mut self, time: Instant) {
        self.caught_up = time;
    }

    /// Reads which allocator a VM has; returns the new allocator if it differs from the previous one. A single read gets
    /// both words. `lua_setallocf` writes one word after the other: a read between the two writes gets a mixed pair, and
    /// the next read finds another change.
    ///
    /// The previous allocator of a VM that was never looked at is the one with which `probes` know it: it may have changed
    /// since then. A VM that the programs have noticed by themselves has called a probed allocator at least once.
    pub fn allocator(
        &mut self,
        programs: &Programs,
        probes: &AllocationProbes,
        index: u32,
        vm: &Vm,
    ) -> Option<NewAllocator> {
        let read = |field: u16| self.memory.read::<u64>(vm.global + u64::from(field)).ok();
        let time = Instant::now();
        let now = (read(vm.layout.g_allocf)?, read(vm.layout.g_allocd)?);
        // The VM was closed, and the kernel has reclaimed its memory.
        if now.0 == 0 {
            return None;
        }
        let before = self.allocators.insert(index, (now, time)).or_else(|| probes.allocator_of(index));
        let (has_changed, seen) = match before {
            Some((before, seen)) => (before != now, seen),
            None => (!probes.knows(now.0), self.caught_up),
        };
        // After a VM was closed, the next VM may be at the same address.
        (has_changed && !self.is_missing(programs, index, vm)).then_some(NewAllocator { now, seen })
    }

    /// Forgets a VM that has left its index.
    pub fn forget(&mut self, index: u32) {
        self.allocators.remove(&index);
        self.misses.remove(&index);
    }

    /// Whether the next check of the VMs is due.
    pub fn is_time(&mut self) -> bool {
        let is_time = self.looked.elapsed() >= INTERVAL;
        if is_time {
            self.looked = Instant::now();
        }
        is_time
    }

    /// Checks whether a VM exists; true if it is gone for good.
    pub fn is_gone(&mut self, programs: &Programs, index: u32, vm: &Vm) -> bool {
        if !self.is_missing(programs, index, vm) {
            self.misses.remove(&index);
            return false;
        }
        let misses = self.misses.entry(index).or_default();
        *misses += 1;
        // A process that is exiting has no memory any more either.
        *misses >= MISSES && self.process.runs_same_program()
    }

    /// Whether a VM was closed, judged by a single look.
    pub fn is_closed(&self, programs: &Programs, index: u32, vm: &Vm) -> bool {
        self.is_missing(programs, index, vm) && self.process.runs_same_program()
    }

    /// Whether the VM is not at its address, or another VM is.
    fn is_missing(&self, programs: &Programs, index: u32, vm: &Vm) -> bool {
        programs.index_of(vm.global) != Some(index) || !self.is_there(vm)
    }

    fn is_there(&self, vm: &Vm) -> bool {
        vm.still_valid(&self.memory)
    }
}
