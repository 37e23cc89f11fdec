//! What is known of a VM's functions, prototypes and traces.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use lj_trace_common::allocation::call_site::CallSite;
use lj_trace_common::allocation::event::{NAME_SIZE, TRACE_SEEN};
use lj_trace_common::allocation::known::{KNOWN_OBJECTS, KnownFunction, KnownObjects, KnownPrototype, slot};
use lj_trace_common::allocation::on_trace::{CallingTrace, RememberedTrace};
use lj_trace_common::allocation::{PrototypeSeen, TraceSeen};
use lj_trace_common::config::Counter;
use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::{ReadMemory, Unreadable};
use lj_trace_common::trace::TraceIdentity;
use lj_trace_common::vm::VmConfig;

use crate::count::count;
use crate::maps::{ALLOCATIONS, CALL_SITES, CALLING_TRACES, FUNCTIONS, KNOWN_TRACES, PROTOTYPES, VMS};
use crate::memory::UserMemory;
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
    fn call_site(&self, return_address: u64) -> Option<CallSite> {
        // SAFETY: entries are copied at once.
        unsafe { CALL_SITES.get(&return_address) }.copied()
    }

    #[inline(always)]
    fn trace_around(&mut self, memory: &impl ReadMemory, vm: &VmConfig, address: u64, searches: bool) -> u32 {
        let Some(place) = CALLING_TRACES.get_ptr_mut(self.vm * KNOWN_OBJECTS + slot(address)) else { return 0 };
        // SAFETY: as above.
        let known = unsafe { &mut *place };
        if !searches {
            return if known.return_address == address { known.number as u32 } else { 0 };
        }
        let mut search = Search { vm: self.vm, number: 0, address, array: 0, size: 0 };
        if search.read_array(memory, vm).is_err() {
            return 0;
        }
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(MOST_TRACES, look_at as *mut c_void, (&raw mut search).cast(), 0) };
        *known = CallingTrace { return_address: address, number: u64::from(search.number) };
        search.number
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

/// How many traces to look at: as many as there can be, since their numbers have 16 bits.
const MOST_TRACES: u32 = 1 << 16;

/// The search for a trace by an address in its machine code.
#[repr(C)]
struct Search {
    /// The VM's index.
    vm: u32,
    /// The trace's number; 0 until it is found.
    number: u32,
    /// The return address of a call in its machine code.
    address: u64,
    /// Address of the array of traces.
    array: u64,
    /// Length of that array.
    size: u64,
}

impl Search {
    /// Reads where the VM has its traces.
    #[inline(always)]
    fn read_array(&mut self, memory: &impl ReadMemory, vm: &VmConfig) -> Result<(), Unreadable> {
        let layout = &vm.layout;
        if layout.g_to_j == ABSENT || layout.j_trace == ABSENT || layout.tr_mcode == ABSENT {
            return Err(Unreadable);
        }
        let jit_state = vm.global.wrapping_add(u64::from(layout.g_to_j));
        self.array = memory.read::<u64>(jit_state.wrapping_add(u64::from(layout.j_trace)))?;
        self.size = memory.read::<u32>(jit_state.wrapping_add(u64::from(layout.j_sizetrace)))?.into();
        Ok(())
    }

    /// Whether the trace with this number has the address.
    #[inline(always)]
    fn is_around(&self, layout: &VmLayout, number: u64) -> Result<bool, Unreadable> {
        let gc64 = layout.is_gc64();
        let width = if gc64 { 8 } else { 4 };
        let trace = UserMemory.read_ref(gc64, self.array.wrapping_add(number * width))?;
        if trace == 0 {
            return Ok(false);
        }
        let code = UserMemory.read::<u64>(trace.wrapping_add(u64::from(layout.tr_mcode)))?;
        let size = UserMemory.read::<u32>(trace.wrapping_add(u64::from(layout.tr_szmcode)))?;
        // The call may be the last instruction.
        Ok(self.address.wrapping_sub(code).wrapping_sub(1) < u64::from(size))
    }
}

/// Looks at the trace with the next number: 0 to continue, 1 to stop.
extern "C" fn look_at(index: u64, search: *mut c_void) -> i64 {
    // SAFETY: `trace_around` passes its own search, which it does not use meanwhile.
    let search = unsafe { &mut *search.cast::<Search>() };
    let number = index + 1;
    let Some(vm) = VMS.get(search.vm) else { return 1 };
    if number >= search.size {
        return 1;
    }
    if search.is_around(&vm.layout, number) == Ok(true) {
        search.number = number as u32;
        return 1;
    }
    0
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
