//! Watchpoints on the garbage collectors of some VMs, and the objects that the program checks at each hit.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::PerfEvent;
use lj_trace_common::config::Counter;
use lj_trace_common::lifetime::{Followed, MAX_FOLLOWED, MAX_WATCHED, WHITES, Watched};
use lj_trace_common::memory::ReadMemory as _;
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::field;
use lj_trace_process::privileges::Operation;
use lj_trace_process::{Process, ProcessMemory, TargetError};

use super::perf_event::{self, Attached};
use super::programs::{Counts, ProbeError, Programs};
use super::set::take_map;

/// How late the program may learn of a flip of the white: usually some microseconds, but the host of a virtual machine
/// may take the CPU away right between the write and the trap.
const LATENESS: Duration = Duration::from_millis(20);

/// How many times to check during that time.
const WAITS: u32 = 100;

/// How often threads are looked for that have appeared meanwhile.
const ROUNDS: usize = 8;

/// Running watchpoints. Dropping this removes them.
pub struct Watchpoints {
    memory: ProcessMemory,
    counts: Counts,
    watched: Array<MapData, Watched>,
    followed: Array<MapData, Followed>,
    end: Array<MapData, u32>,
    /// How many VMs are watched.
    vms: u32,
    _events: Vec<Attached>,
}

impl Watchpoints {
    /// Watches the first of `vms`, as many as there are debug registers, on all threads of their process.
    ///
    /// # Errors
    /// [`ProbeError`] if the kernel refuses: without privileges, where the machine has no debug registers, or where others
    /// use them.
    pub fn attach(programs: &mut Programs, process: &Process, vms: &[Vm]) -> Result<Self, ProbeError> {
        let mut ebpf = programs.ebpf();
        let program: &mut PerfEvent = ebpf
            .program_mut("white_written")
            .ok_or_else(|| anyhow::anyhow!("no program white_written"))
            .and_then(|program| Ok(program.try_into()?))
            .map_err(ProbeError::sort)?;
        program.load().map_err(ProbeError::sort)?;
        let program = program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(ProbeError::sort)?;
        drop(ebpf);
        let vms = &vms[..vms.len().min(MAX_WATCHED as usize)];
        let addresses: Vec<u64> = vms.iter().map(|vm| field(vm.global, vm.layout.g_gc_currentwhite)).collect();
        let mut events = Vec::new();
        let mut attached = HashSet::new();
        // A program may start threads all the time. Those that threads with a watchpoint start have inherited it.
        for _ in 0..ROUNDS {
            // Threads that appear meanwhile may have inherited a watchpoint; a second one does no harm.
            let new: Vec<u32> = process.threads()?.into_iter().filter(|&tid| attached.insert(tid)).collect();
            if new.is_empty() {
                break;
            }
            for (&tid, &address) in new.iter().flat_map(|tid| addresses.iter().map(move |address| (tid, address))) {
                match perf_event::watch(address, tid, program.as_fd()) {
                    Ok(event) => events.push(event),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                        return Err(ProbeError::not_permitted(Operation::PerfEvents));
                    }
                    Err(source) => return Err(ProbeError::Thread { tid, source }),
                }
            }
        }
        if events.is_empty() {
            return Err(TargetError::NoSuchProcess(process.pid()).into());
        }
        let counts = programs.counts().clone();
        let map = |name| take_map(&mut programs.ebpf(), name).map_err(ProbeError::sort);
        let mut watchpoints = Self {
            memory: process.memory(),
            counts,
            watched: map("WATCHED")?.try_into().map_err(ProbeError::sort)?,
            followed: map("FOLLOWED")?.try_into().map_err(ProbeError::sort)?,
            end: map("FOLLOWED_END")?.try_into().map_err(ProbeError::sort)?,
            vms: addresses.len() as u32,
            _events: events,
        };
        for (index, currentwhite) in (0..).zip(addresses) {
            // If the white flips at this very moment, the first check finds the difference.
            let white = watchpoints.memory.read::<u8>(currentwhite).map_or(0, |white| u32::from(white & WHITES));
            let watched = Watched { currentwhite, white, ..Watched::default() };
            watchpoints.watched.set(index, &watched, 0).map_err(ProbeError::sort)?;
        }
        Ok(watchpoints)
    }

    /// How many VMs are watched: those with the lowest indices.
    pub fn vms(&self) -> u32 {
        self.vms
    }

    /// How often the watchpoints were hit so far, and how many nanoseconds the program has spent on that.
    pub fn spent(&self) -> (u64, u64) {
        (self.counts.count(Counter::WatchpointHits), self.counts.count(Counter::WatchpointTime))
    }

    /// What the program knows of a VM.
    pub fn watched(&self, index: u32) -> Watched {
        self.watched.get(&index, 0).unwrap_or_default()
    }

    /// Makes sure that the program knows a VM's current white. `false` if it did not, because it missed a flip.
    pub fn synchronize(&mut self, index: u32) -> bool {
        let settled = settle(
            || self.watched(index),
            |known| self.memory.read::<u8>(known.currentwhite).ok().map(|white| u32::from(white & WHITES)),
            || std::thread::sleep(LATENESS / WAITS),
        );
        match settled {
            Settled::Known => true,
            Settled::Missed(watched) => {
                // The map can be used as long as the programs exist.
                let _ = self.watched.set(index, &watched, 0);
                false
            }
        }
    }

    /// The object that is followed in this slot.
    pub fn followed(&self, slot: u32) -> Followed {
        self.followed.get(&slot, 0).unwrap_or_default()
    }

    /// Follows another object in this slot, or none.
    pub fn follow(&mut self, slot: u32, followed: Followed) {
        // As above.
        let _ = self.followed.set(slot, &followed, 0);
    }

    /// Sets how many slots the program checks.
    pub fn set_end(&mut self, end: u32) {
        // As above.
        let _ = self.end.set(0, &end.min(MAX_FOLLOWED), 0);
    }
}

/// What the comparison of a VM's white found.
#[derive(Debug, PartialEq, Eq)]
enum Settled {
    /// The program knows the VM's white.
    Known,
    /// The program has missed a flip. This is what it should know.
    Missed(Watched),
}

/// Compares the white that the program knows with the VM's own. The VM changes first, so this `wait`s for the program
/// to follow.
fn settle(
    mut known: impl FnMut() -> Watched,
    mut white: impl FnMut(&Watched) -> Option<u32>,
    mut wait: impl FnMut(),
) -> Settled {
    let first = known();
    for _ in 0..WAITS {
        // A process that cannot be read has exited.
        let Some(white) = white(&first) else { return Settled::Known };
        if first.white == white || known() != first {
            return Settled::Known;
        }
        wait();
    }
    white(&first).map_or(Settled::Known, |white| Settled::Missed(Watched { white, ..first }))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BEFORE: Watched = Watched { currentwhite: 0x1000, flipped: 0, flips: 3, white: 1 };

    #[test]
    fn a_flip_that_the_program_has_not_seen_yet_is_not_missed() {
        let waits = Cell::new(0);
        let after = Watched { flips: 4, white: 2, ..BEFORE };
        let known = || if waits.get() < 40 { BEFORE } else { after };
        let settled = settle(known, |_| Some(2), || waits.set(waits.get() + 1));
        assert_eq!((settled, waits.get()), (Settled::Known, 40));
    }

    #[test]
    fn a_flip_that_the_program_never_sees_is_missed() {
        let settled = settle(|| BEFORE, |_| Some(2), || {});
        assert_eq!(settled, Settled::Missed(Watched { white: 2, ..BEFORE }));
    }

    #[test]
    fn nothing_is_waited_for_where_both_agree_or_nobody_is_left() {
        for white in [Some(1), None] {
            assert_eq!(settle(|| BEFORE, |_| white, || panic!("waited")), Settled::Known);
        }
    }
}
