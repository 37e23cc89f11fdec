//! Checks the objects that are followed: the kernel half does it where a watchpoint tells when, otherwise the thread that
//! polls the VM.

use lj_trace_common::lifetime::{Followed, Watched};
use lj_trace_probes::watchpoints::Watchpoints;

use super::follow_budget::Spent;
use super::polled::Polled;

/// Looks at the objects of each VM, in one way or the other.
pub struct LifeObserver {
    /// Those of the first VMs.
    watchpoints: Option<Watchpoints>,
    /// Those of all others.
    polled: Polled,
}

impl LifeObserver {
    /// With watchpoints, if there are any.
    pub fn new(watchpoints: Option<Watchpoints>, polled: Polled) -> Self {
        Self { watchpoints, polled }
    }

    /// Begins with the VM of this number, whose `gc.currentwhite` is there.
    pub fn add(&self, vm: usize, currentwhite: u64) {
        if self.is_polled(vm) {
            self.polled.add(vm, currentwhite);
        }
    }

    /// What the watchpoints have cost so far, if there are any.
    pub fn spent(&self) -> Option<Spent> {
        self.watchpoints.as_ref().map(|watchpoints| {
            let (hits, time) = watchpoints.spent();
            Spent { hits, time }
        })
    }

    /// Takes the watchpoints away: the VMs with these `gc.currentwhite` are polled from now on. What is followed is lost.
    pub fn give_up_watchpoints(&mut self, currentwhites: impl Iterator<Item = u64>) {
        self.watchpoints = None;
        for (vm, currentwhite) in currentwhites.enumerate() {
            self.polled.add(vm, currentwhite);
        }
    }

    /// Whether a VM is polled.
    pub fn is_polled(&self, vm: usize) -> bool {
        vm >= self.watchpoints.as_ref().map_or(0, |watchpoints| watchpoints.vms() as usize)
    }

    /// That of the VM, if it has one.
    fn of(&self, vm: usize) -> Option<&Watchpoints> {
        self.watchpoints.as_ref().filter(|_| !self.is_polled(vm))
    }

    /// What is known of a VM.
    pub fn watched(&self, vm: usize) -> Watched {
        self.of(vm).map_or_else(|| self.polled.watched(vm), |watchpoints| watchpoints.watched(vm as u32))
    }

    /// Whether all flips of a VM were seen since this was last asked.
    pub fn is_complete(&mut self, vm: usize) -> bool {
        match &mut self.watchpoints {
            Some(watchpoints) if vm < watchpoints.vms() as usize => watchpoints.synchronize(vm as u32),
            _ => self.polled.is_complete(vm),
        }
    }

    /// What a VM's object in this place has become.
    pub fn followed(&self, vm: usize, slot: usize) -> Followed {
        self.of(vm).map_or_else(|| self.polled.followed(slot), |watchpoints| watchpoints.followed(slot as u32))
    }

    /// Follows another object of a VM in this place, or none.
    pub fn follow(&mut self, vm: usize, slot: usize, followed: Followed) {
        match &mut self.watchpoints {
            Some(watchpoints) if vm < watchpoints.vms() as usize => watchpoints.follow(slot as u32, followed),
            _ => self.polled.follow(slot, followed),
        }
    }

    /// Says how many places there are to look at.
    pub fn set_end(&mut self, end: usize) {
        if let Some(watchpoints) = &mut self.watchpoints {
            watchpoints.set_end(end as u32);
        }
    }
}
