//! Notices VMs that are not known yet. A sign of them are light samples in an interpreter that runs no known VM, or in code
//! that was not there before and may be another LuaJIT.

use std::ops::Range;

use lj_trace_common::activity::ActivitySample;
use lj_trace_common::event::NO_VM;

use lj_trace_luajit::Vm;
use lj_trace_probes::activity::ActivityBuffer;
use lj_trace_probes::perf_event::Clock;
use lj_trace_probes::programs::{ProbeError, Programs};
use lj_trace_probes::sampler::Sampler;
use lj_trace_process::{KnownCode, Maps, Process};

/// Counts samples in an interpreter or in new code during which no known VM ran.
pub struct UnknownVms {
    /// The code of interpreters. The rest of a LuaJIT library does not count, because it also runs without a VM: a program
    /// that only looks at values of a VM executes it.
    texts: Vec<Range<u64>>,
    known: KnownCode,
    count: u32,
}

impl UnknownVms {
    /// Starts with these VMs as known.
    pub fn new(maps: &Maps, vms: &[Vm]) -> Self {
        let mut unknown_vms = Self { texts: Vec::new(), known: KnownCode::of(maps), count: 0 };
        vms.iter().for_each(|vm| unknown_vms.add_vm(vm));
        unknown_vms
    }

    /// Adds a VM that is now known.
    pub fn add_vm(&mut self, vm: &Vm) {
        if !self.texts.contains(&vm.text.range) {
            self.texts.push(vm.text.range.clone());
        }
    }

    /// Takes a sample. After this, `sample` says only which function of which VM ran.
    pub fn look(&mut self, sample: &mut ActivitySample) {
        if sample.vm == NO_VM {
            let instruction = std::mem::take(&mut sample.function);
            let in_interpreter = || self.texts.iter().any(|text| text.contains(&instruction));
            self.count += u32::from(in_interpreter() || !self.known.contains(instruction));
        }
    }

    /// The number of such samples since [`Self::forget`].
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Resets the number of samples.
    pub fn forget(&mut self) {
        self.count = 0;
    }
}

/// Samples per second of CPU time: enough to notice a VM within about a second. They cost about 0.1% of CPU time.
const RATE: u32 = 199;

/// A light sampler whose only purpose is to discover VMs.
pub struct UnknownVmSampler {
    sampler: Sampler,
    samples: ActivityBuffer,
}

impl UnknownVmSampler {
    /// Begins to sample.
    ///
    /// # Errors
    /// The sampler cannot be attached.
    pub fn start(programs: &mut Programs, process: &Process) -> Result<Self, ProbeError> {
        let samples = ActivityBuffer::open(programs)?;
        Ok(Self { sampler: Sampler::attach_light(programs, process, RATE)?, samples })
    }

    /// The clock and the rate of the sampler, if its events are on threads.
    pub fn on_threads(&self) -> Option<(Clock, u32)> {
        self.sampler.on_threads()
    }

    /// Ticks of the sampler per second on each CPU, if its events are there.
    pub fn ticks_on_cpus(&self) -> Option<f64> {
        self.sampler.ticks_on_cpus()
    }

    /// Passes the samples since the last call to `unknown_vms`.
    pub fn drain(&mut self, unknown_vms: &mut UnknownVms) {
        self.samples.drain(usize::MAX, |mut sample| unknown_vms.look(&mut sample));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_an_interpreter_without_a_known_vm_are_counted() {
        let text = "1000-9000 r-xp 00000000 08:01 12 /bin/host\n9000-a000 rw-p 00000000 00:00 0 \n";
        let known = KnownCode::of(&Maps::parse(text));
        let mut unknown_vms = UnknownVms { texts: vec![0x1000..0x2000, 0x5000..0x6000], known, count: 0 };
        let mut look = |vm, function| {
            let mut sample = ActivitySample { vm, function, ..ActivitySample::EMPTY };
            unknown_vms.look(&mut sample);
            (sample.function, unknown_vms.count())
        };
        assert_eq!(look(0, 0x1000), (0x1000, 0), "a prototype may be anywhere");
        assert_eq!(look(NO_VM, 0x2000), (0, 0), "native code");
        assert_eq!(look(NO_VM, 0x5fff), (0, 1));
        unknown_vms.forget();
        assert_eq!(unknown_vms.count(), 0);
        let mut look = |function| {
            unknown_vms.look(&mut ActivitySample { vm: NO_VM, function, ..ActivitySample::EMPTY });
            unknown_vms.count()
        };
        assert_eq!(look(0), 0, "nothing is known of it");
        assert_eq!(look(0x9800), 1, "code where there was none");
    }
}
