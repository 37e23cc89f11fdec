//! Numbers processes where several share one set of programs.

use std::collections::VecDeque;

use lj_trace_common::config::MAX_PROCESSES;

/// A VM of one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of the process.
    pub process: u32,
    /// The VM's number among those of the process.
    pub vm: u32,
}

/// The numbers of processes and VMs. What was given back is given away last, since samples may be under way that have it.
#[derive(Debug)]
pub struct Places {
    processes: VecDeque<u32>,
    vms: VecDeque<u32>,
    /// By the VMs' numbers.
    owners: Vec<Option<Owner>>,
}

impl Places {
    /// For so many VMs.
    pub fn new(vms: u32) -> Self {
        Self { processes: (0..MAX_PROCESSES).collect(), vms: (0..vms).collect(), owners: vec![None; vms as usize] }
    }

    /// A number for one more process.
    pub fn add_process(&mut self) -> Option<u32> {
        self.processes.pop_front()
    }

    /// A process is not recorded any more: all that it has is free.
    pub fn remove_process(&mut self, process: u32) {
        for (index, owner) in (0..).zip(&mut self.owners) {
            if owner.take_if(|owner| owner.process == process).is_some() {
                self.vms.push_back(index);
            }
        }
        self.processes.push_back(process);
    }

    /// A number for one more VM.
    pub fn add_vm(&mut self, owner: Owner) -> Option<u32> {
        let index = self.vms.pop_front()?;
        self.owners[index as usize] = Some(owner);
        Some(index)
    }

    /// Whose a VM's number is.
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
