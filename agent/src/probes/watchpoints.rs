//! Watchpoints on the collectors of some VMs, and the objects that are looked at whenever one of them is hit.

use std::collections::HashSet;
use std::os::fd::AsFd as _;

use aya::maps::{Array, MapData};
use aya::programs::PerfEvent;
use lj_trace_common::lifetime::{Followed, MAX_FOLLOWED, MAX_WATCHED, WHITES, Watched};
use lj_trace_common::memory::ReadMemory as _;

use super::perf_event::{self, Attached};
use super::programs::{ProbeError, Programs, take_map};
use crate::privileges::Operation;
use crate::target::{Process, ProcessMemory, TargetError};
use crate::vm::Vm;
use crate::vm::object::field;

/// Running watchpoints. Dropping this takes them away.
pub struct Watchpoints {
    memory: ProcessMemory,
    watched: Array<MapData, Watched>,
    followed: Array<MapData, Followed>,
    end: Array<MapData, u32>,
    /// How many VMs.
    vms: u32,
    _events: Vec<Attached>,
}

impl Watchpoints {
    /// Watches the first of `vms`, as many as debug registers can, on all threads of their process.
    ///
    /// # Errors
    /// [`ProbeError`] if the kernel refuses: without privileges, where the machine has no debug registers, or where others
    /// use them.
    pub fn attach(programs: &mut Programs, process: &Process, vms: &[Vm]) -> Result<Self, ProbeError> {
        let program: &mut PerfEvent = programs
            .ebpf
            .program_mut("white_written")
            .ok_or_else(|| anyhow::anyhow!("no program white_written"))
            .and_then(|program| Ok(program.try_into()?))
            .map_err(ProbeError::sort)?;
        program.load().map_err(ProbeError::sort)?;
        let program = program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(ProbeError::sort)?;
        let vms = &vms[..vms.len().min(MAX_WATCHED as usize)];
        let addresses: Vec<u64> = vms.iter().map(|vm| field(vm.global, vm.layout.g_gc_currentwhite)).collect();
        let mut events = Vec::new();
        let mut attached = HashSet::new();
        loop {
            // Those that appear meanwhile may have inherited a watchpoint: a second one does no harm.
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
        let mut map = |name| take_map(&mut programs.ebpf, name).map_err(ProbeError::sort);
        let mut watchpoints = Self {
            memory: process.memory(),
            watched: map("WATCHED")?.try_into().map_err(ProbeError::sort)?,
            followed: map("FOLLOWED")?.try_into().map_err(ProbeError::sort)?,
            end: map("FOLLOWED_END")?.try_into().map_err(ProbeError::sort)?,
            vms: addresses.len() as u32,
            _events: events,
        };
        for (index, currentwhite) in (0..).zip(addresses) {
            let watched = Watched { currentwhite, ..Watched::default() };
            watchpoints.watched.set(index, &watched, 0).map_err(ProbeError::sort)?;
            watchpoints.synchronize(index);
        }
        Ok(watchpoints)
    }

    /// How many VMs are watched: those of the lowest numbers.
    pub fn vms(&self) -> u32 {
        self.vms
    }

    /// What is known of a VM.
    pub fn watched(&self, index: u32) -> Watched {
        self.watched.get(&index, 0).unwrap_or_default()
    }

    /// Makes sure that a VM's white is what the program takes it for; `false` if it was not. Then a flip was missed.
    pub fn synchronize(&mut self, index: u32) -> bool {
        let mut was = true;
        // It may be flipped at any time, of which the program takes note, too.
        for _ in 0..3 {
            let known = self.watched(index);
            let Ok(currentwhite) = self.memory.read::<u8>(known.currentwhite) else { return was };
            let white = u32::from(currentwhite & WHITES);
            if known.white == white || self.watched(index) != known {
                return was;
            }
            was = false;
            // The map is in reach as long as the programs are.
            let _ = self.watched.set(index, &Watched { white, ..known }, 0);
        }
        was
    }

    /// An object that is followed.
    pub fn followed(&self, slot: u32) -> Followed {
        self.followed.get(&slot, 0).unwrap_or_default()
    }

    /// Follows another one in this place, or none.
    pub fn follow(&mut self, slot: u32, followed: Followed) {
        // As above.
        let _ = self.followed.set(slot, &followed, 0);
    }

    /// Says how many places there are to look at.
    pub fn set_end(&mut self, end: u32) {
        // As above.
        let _ = self.end.set(0, &end.min(MAX_FOLLOWED), 0);
    }
}
