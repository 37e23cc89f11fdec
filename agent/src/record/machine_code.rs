//! Where a VM's machine code is: the interpreter's, and what its JIT compiler has generated so far.

use std::ops::Range;

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::{ReadMemory, Unreadable};

use crate::unwind::VmCode;
use crate::vm::Vm;

/// An allocator of machine code never chains more areas: 64 KiB each at the default limit of 512 KiB
/// (`lj_jit.h`, `JIT_PARAMDEF`), and some raise the limit.
const MAX_AREAS: usize = 4096;

/// The machine code of `vm` at this moment.
pub fn machine_code(memory: &impl ReadMemory, vm: &Vm) -> VmCode {
    VmCode {
        text: vm.text.range.clone(),
        mcode: areas(memory, vm).unwrap_or_default(),
        cframe_size: u64::from(vm.layout.cframe_size),
        gc64: vm.layout.is_gc64(),
    }
}

/// The areas of generated code: each begins with the address of the next and its own size (`MCLink`,
/// `lj_jit.h`; from 2.0 to 2.1 of August 2026).
fn areas(memory: &impl ReadMemory, vm: &Vm) -> Result<Vec<Range<u64>>, Unreadable> {
    let Some(jit_state) = vm.jit_state().filter(|_| vm.layout.j_mcarea != ABSENT) else { return Ok(Vec::new()) };
    let mut area = memory.read::<u64>(jit_state + u64::from(vm.layout.j_mcarea))?;
    let mut areas = Vec::new();
    while area != 0 && areas.len() < MAX_AREAS {
        let [next, size] = memory.read::<[u64; 2]>(area)?;
        areas.push(area..area.saturating_add(size));
        area = next;
    }
    Ok(areas)
}
