//! Checks the followed objects. If a watchpoint reports the end of a mark phase, the kernel half does it; otherwise the
//! thread that polls the VM does.

use lj_trace_common::lifetime::{Followed, Watched};
use lj_trace_probes::watchpoints::Watchpoints;

use super::follow_budget::Spent;
use super::polled::Polled;

/// Checks the objects of each VM with watchpoints or by polling.
pub struct LifeObserver {
    /// The watchpoints of the first VMs.
    watchpoints: Option<Watchpoints>,
    /// The polling of all other VMs.
    polled: Polled,
}

impl LifeObserver {
    /// An observer with these watchpoints, if there are any.
    pub fn new(watchpoints: Option<Watchpoints>, polled: Polled) -> Self {
        Self { watchpoints, polled }
    }

    /// Adds VM number `vm`. `currentwhite` is the address of its `gc.currentwhite`.
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

    /// Removes the watchpoints and loses all followed objects. The VMs with these `gc.currentwhite` are polled from now on.
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

    /// The watchpoints, if the VM has one.
    fn of(&self, vm: usize) -> Option<&Watchpoints> {
        self.watchpoints.as_ref().filter(|_| !self.is_polled(vm))
    }

    /// The state of a VM's collector.
    pub fn watched(&self, vm: usize) -> Watched {
        self.of(vm).map_or_else(|| self.polled.watched(vm), |watchpoints| watchpoints.watched(vm as u32))
    }

    /// Whether all flips of a VM were seen since the last call.
    pub fn is_complete(&mut self, vm: usize) -> bool {
        match &mut self.watchpoints {
            Some(watchpoints) if vm < watchpoints.vms() as usize => watchpoints.synchronize(vm as u32),
            _ => self.polled.is_complete(vm),
        }
    }

    /// The state of the object in this place.
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

    /// Sets the number of places to look at.
    pub fn set_end(&mut self, end: usize) {
        if let Some(watchpoints) = &mut self.watchpoints {
            watchpoints.set_end(end as u32);
        }
    }
}
