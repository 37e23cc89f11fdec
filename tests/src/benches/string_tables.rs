//! The string tables that a program makes, seen from outside: the one kind of block that is rare and large in the
//! workloads, and that no call of a line can be charged with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use lj_trace::target::{Process, ProcessMemory};
use lj_trace::vm::{Vm, find_vms};
use lj_trace_common::memory::ReadMemory as _;

/// Much less than it takes to make one.
const INTERVAL: Duration = Duration::from_micros(400);

/// Bytes of string tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Made {
    /// That were made since there were more strings.
    pub grown: f64,
    /// That the collector has made since there were fewer.
    pub shrunk: f64,
}

/// A thread that watches the size of a VM's string table.
pub struct StringTables {
    thread: JoinHandle<Made>,
    stop: Arc<AtomicBool>,
}

impl StringTables {
    /// Watches that of the only VM of a process.
    ///
    /// # Errors
    /// If it has none.
    pub fn of(pid: u32) -> Result<Self> {
        let process = Process::open(pid)?;
        let vms = find_vms(&process, &process.maps()?)?;
        let vm = vms.into_iter().next().context("it has no VM")?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (memory, stop) = (process.memory(), stop.clone());
            move || watch(&memory, &vm, &stop)
        });
        Ok(Self { thread, stop })
    }

    /// What was made since.
    ///
    /// # Errors
    /// If it could not be watched.
    pub fn end(self) -> Result<Made> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the string table cannot be watched"))
    }
}

fn watch(memory: &ProcessMemory, vm: &Vm, stop: &AtomicBool) -> Made {
    // A table has one reference for each value that its mask lets through (`lj_str_resize`, `lj_str.c`).
    let slot = if vm.layout.is_gc64() { 8.0 } else { 4.0 };
    let mask = || memory.read::<u32>(vm.global.wrapping_add(u64::from(vm.layout.g_str_mask)));
    let slots = || mask().ok().map(|mask| f64::from(mask) + 1.0);
    let mut made = Made::default();
    let mut last = slots();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(INTERVAL);
        let now = slots();
        if let (Some(from), Some(to)) = (last, now) {
            made.add(from, to, slot);
        }
        last = now.or(last);
    }
    made
}

impl Made {
    /// A table of so many slots has become one of `to`, in steps of two.
    fn add(&mut self, from: f64, to: f64, slot: f64) {
        let mut slots = from;
        while slots < to {
            slots *= 2.0;
            self.grown += slots * slot;
        }
        while slots > to {
            slots /= 2.0;
            self.shrunk += slots * slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_a_table() {
        let mut made = Made::default();
        made.add(256.0, 1024.0, 8.0);
        made.add(1024.0, 512.0, 8.0);
        made.add(512.0, 512.0, 8.0);
        assert_eq!(made, Made { grown: 8.0 * (512.0 + 1024.0), shrunk: 8.0 * 512.0 });
    }
}
