//! What is known of a VM's functions, prototypes and traces.

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use lj_trace_common::allocation::event::{NAME_SIZE, TRACE_SEEN};
use lj_trace_common::allocation::known::{KNOWN_OBJECTS, KnownFunction, KnownObjects, KnownPrototype, slot};
use lj_trace_common::allocation::on_trace::RememberedTrace;
use lj_trace_common::allocation::{PrototypeSeen, TraceSeen};
use lj_trace_common::config::Counter;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace::TraceIdentity;

use crate::count::count;
use crate::maps::{ALLOCATIONS, FUNCTIONS, KNOWN_TRACES, PROTOTYPES};
use crate::wakeup::NO_WAKEUP;

/// The objects of a VM. A VM runs on one thread at a time, so nobody else writes to its entries.
pub struct ObjectsOf {
    /// The VM.
    pub vm: u32,
    /// The window that is open.
    pub window: u32,
}

impl KnownObjects for ObjectsOf {
    #[inline(always)]
    fn function(&mut self, function: u64) -> Option<&mut KnownFunction> {
        let place = FUNCTIONS.get_ptr_mut(self.vm * KNOWN_OBJECTS + slot(function))?;
        // SAFETY: the map's entries are there as long as the program; the trait hands out one at a time.
        Some(unsafe { &mut *place })
    }

    #[inline(always)]
    fn prototype(&mut self, prototype: u64) -> Option<&mut KnownPrototype> {
        let place = PROTOTYPES.get_ptr_mut(self.vm * KNOWN_OBJECTS + slot(prototype))?;
        // SAFETY: as above.
        Some(unsafe { &mut *place })
    }

    #[inline(always)]
    fn trace(&mut self, trace: u64) -> Option<&mut RememberedTrace> {
        let place = KNOWN_TRACES.get_ptr_mut(self.vm * KNOWN_OBJECTS + slot(trace))?;
        // SAFETY: as above.
        Some(unsafe { &mut *place })
    }

    #[inline(always)]
    fn name_trace(&mut self, trace: &TraceIdentity, line: u32) -> bool {
        let Some(mut record) = ALLOCATIONS.reserve::<TraceSeen>(0) else {
            count(Counter::NamesLost);
            return false;
        };
        let seen = TraceSeen { kind: TRACE_SEEN, reserved: 0, vm: self.vm as u16, line, identity: *trace };
        // SAFETY: a ring buffer's record is nowhere else, and as large as was asked for.
        unsafe { record.as_mut_ptr().write(seen) };
        record.submit(NO_WAKEUP);
        true
    }

    #[inline(always)]
    fn window(&self) -> u32 {
        self.window
    }

    #[inline(always)]
    fn name_prototype(&mut self, memory: &impl ReadMemory, layout: &VmLayout, prototype: u64, chunkname: u64) -> bool {
        let length = memory.read::<u32>(chunkname.wrapping_add(u64::from(layout.str_len))).unwrap_or(u32::MAX);
        name_prototype(self.vm, prototype, chunkname.wrapping_add(u64::from(layout.sizeof_str)), length, chunkname)
    }
}

/// Sends a prototype. The `length` bytes of its chunkname are at `text`.
#[inline(never)]
fn name_prototype(vm: u32, prototype: u64, text: u64, length: u32, chunkname: u64) -> bool {
    let Some(known) = PROTOTYPES.get(vm * KNOWN_OBJECTS + slot(prototype)) else { return false };
    let Some(mut record) = ALLOCATIONS.reserve::<PrototypeSeen>(0) else {
        count(Counter::NamesLost);
        return false;
    };
    // SAFETY: a ring buffer's record is nowhere else, and as large as was asked for.
    let seen = unsafe { &mut *record.as_mut_ptr() };
    seen.fill(vm, known, chunkname);
    seen.name_length = length;
    let copied = if length > NAME_SIZE as u32 { NAME_SIZE as u32 } else { length };
    // SAFETY: the helper writes no more than the name has room for, and checks the address.
    let outcome = unsafe { bpf_probe_read_user(seen.name.as_mut_ptr().cast(), copied, text as *const _) };
    if outcome != 0 {
        seen.name_length = u32::MAX;
    }
    record.submit(NO_WAKEUP);
    true
}
