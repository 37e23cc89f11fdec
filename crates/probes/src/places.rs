//! Assigns numbers to processes and VMs that share one set of programs.

use std::collections::VecDeque;

use lj_trace_common::config::MAX_PROCESSES;

/// The process that a VM belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of the process.
    pub process: u32,
    /// The VM's number within the process.
    pub vm: u32,
}

/// The numbers of processes and VMs. A freed number is reused as late as possible, because there may still be samples
/// with it.
#[derive(Debug)]
pub struct Places {
    processes: VecDeque<u32>,
    vms: VecDeque<u32>,
    /// The owners, by VM number.
    owners: Vec<Option<Owner>>,
}

impl Places {
    /// Numbers for this many VMs.
    pub fn new(vms: u32) -> Self {
        Self { processes: (0..MAX_PROCESSES).collect(), vms: (0..vms).collect(), owners: vec![None; vms as usize] }
    }

    /// Takes a number for one more process.
    pub fn add_process(&mut self) -> Option<u32> {
        self.processes.pop_front()
    }

    /// Frees all numbers of a process that is no longer recorded.
    pub fn remove_process(&mut self, process: u32) {
        for (index, owner) in (0..).zip(&mut self.owners) {
            if owner.take_if(|owner| owner.process == process).is_some() {
                self.vms.push_back(index);
            }
        }
        self.processes.push_back(process);
    }

    /// Takes a number for one more VM.
    pub fn add_vm(&mut self, owner: Owner) -> Option<u32> {
        let index = self.vms.pop_front()?;
        self.owners[index as usize] = Some(owner);
        Some(index)
    }

    /// The owner of a VM's number.
    pub fn owner(&self, vm: u32) -> Option<Owner> {
        self.owners.get(vm as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_last() {
        let mut places = Places::new(4);
        let (first, second) = (places.add_process().unwrap(), places.add_process().unwrap());
        let of = |process, vm| Owner { process, vm };
        assert_eq!([of(first, 0), of(second, 0), of(first, 1)].map(|owner| places.add_vm(owner)), [0, 1, 2].map(Some));
        assert_eq!(places.owner(2), Some(of(first, 1)));
        places.remove_process(first);
        assert_eq!((places.owner(2), places.owner(1)), (None, Some(of(second, 0))));
        assert_eq!([1, 2, 3].map(|vm| places.add_vm(of(second, vm))), [3, 0, 2].map(Some));
        assert_eq!(places.add_vm(of(second, 9)), None);
        assert_ne!(places.add_process(), Some(first));
        assert_eq!(places.owner(99), None);
    }
}
