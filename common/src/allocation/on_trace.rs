//! Which trace allocates, and where in its machine code: from that place, user space finds the line of Lua.

use super::call_site::CallingPlace;
use super::event::{AllocationEvent, AllocationSource};
use super::known::{KnownObjects, line_at};
use crate::arch::{STATE_NAMES_TRACE, return_address_below, trace_stack_pointer};
use crate::frame::CFRAME_FLAGS;
use crate::head::Head;
use crate::layout::{ABSENT, VmLayout};
use crate::memory::{Pod, ReadMemory, Unreadable, clear};
use crate::trace::{RunningTrace, TraceIdentity, TracesPlace};
use crate::vm::VmConfig;

/// A trace that is known. It stays the same until it is freed, and frees are events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RememberedTrace {
    /// Address of its `GCtrace`; 0 if nothing is known.
    pub trace: u64,
    /// Address of its machine code.
    mcode: u64,
    /// Size of its machine code in bytes.
    size: u32,
    /// How many bytes of the stack the trace has for itself.
    spadjust: u32,
    /// Its number.
    number: u32,
    /// The window in which this entry was valid.
    window: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Pod for RememberedTrace {}

/// The trace that was found to have a return address in its machine code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallingTrace {
    /// The return address; 0 if nothing is known.
    pub return_address: u64,
    /// The number of the trace.
    pub number: u64,
}

// SAFETY: as the one above.
unsafe impl Pod for CallingTrace {}

/// Working memory to find out which trace allocates.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRoom {
    traces: TracesPlace,
    running: RunningTrace,
}

// SAFETY: as above.
unsafe impl Pod for TraceRoom {}

const _: () = {
    assert!(size_of::<RememberedTrace>() == 2 * 8 + 4 * 4);
    assert!(size_of::<CallingTrace>() == 2 * 8);
    assert!(size_of::<TraceRoom>() == size_of::<TracesPlace>() + size_of::<RunningTrace>());
};

impl TraceRoom {
    /// Empty working memory.
    pub const EMPTY: Self = Self {
        traces: TracesPlace { jit_state: 0, array: 0, size: 0, area: 0, area_size: 0 },
        running: RunningTrace {
            identity: TraceIdentity {
                address: 0,
                mcode: 0,
                startpt: 0,
                startpc: 0,
                snapmap: 0,
                szmcode: 0,
                nins: 0,
                nk: 0,
                number: 0,
            },
            area: 0,
            area_size: 0,
        },
    };
}

/// Notes that the trace with this number allocates in `thread`, and where in the trace; if that is not known, only the
/// number is noted. The trace was announced before: after a flush, another trace may have its number.
///
/// Where the VM's state does not name the trace, the number is that of the trace around the place that has called the
/// allocator, or C code that has called it, and if this is not certain, nothing is noted but that there is a trace.
///
/// Returns whether the place is known.
#[inline(always)]
pub fn note(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    (room, head): (&mut TraceRoom, &mut Head),
    (thread, number, call): (u64, u32, CallingPlace),
    event: &mut AllocationEvent,
) -> bool {
    event.source = AllocationSource::LostTrace as u8;
    event.place = if STATE_NAMES_TRACE { u64::from(number) } else { 0 };
    // If the trace cannot be read, it stays unknown.
    let Ok(trace) = address_of(memory, vm, number) else { return false };
    if trace == 0 || !is_named(memory, vm, objects, room, head, trace, number) {
        return false;
    }
    let Some(known) = objects.trace(trace) else { return false };
    if STATE_NAMES_TRACE {
        event.source = AllocationSource::Trace as u8;
    }
    let Ok(stack_pointer) = stack_pointer(memory, &vm.layout, known, thread) else { return false };
    let return_address = if STATE_NAMES_TRACE {
        return_address_below(memory, stack_pointer)
    } else if stack_pointer == call.stack_pointer {
        Ok(call.return_address)
    } else {
        // Another address on the stack may look like one in a trace, but not right where the trace's part ends.
        Err(Unreadable)
    };
    let is_known = return_address.is_ok_and(|return_address| known.locate(return_address, event));
    if is_known && !STATE_NAMES_TRACE {
        event.source = AllocationSource::Trace as u8;
        event.place |= u64::from(number);
    }
    is_known
}

/// The address of the trace that has this number now; 0 for none.
#[inline(always)]
fn address_of(memory: &impl ReadMemory, vm: &VmConfig, number: u32) -> Result<u64, Unreadable> {
    let layout = &vm.layout;
    if layout.g_to_j == ABSENT || layout.j_trace == ABSENT || number > u32::from(u16::MAX) {
        return Ok(0);
    }
    let gc64 = layout.is_gc64();
    let array = memory.read::<u64>(vm.global.wrapping_add(u64::from(layout.g_to_j) + u64::from(layout.j_trace)))?;
    memory.read_ref(gc64, array.wrapping_add(u64::from(number) * if gc64 { 8 } else { 4 }))
}

/// Announces the trace if that is still to be done. Returns whether it is announced.
#[inline(always)]
fn is_named(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    objects: &mut impl KnownObjects,
    room: &mut TraceRoom,
    head: &mut Head,
    trace: u64,
    number: u32,
) -> bool {
    let window = objects.window();
    let Some(known) = objects.trace(trace) else { return false };
    if known.trace == trace && known.number == number && known.window == window {
        return true;
    }
    // If a read fails halfway, the entry must count as empty.
    known.trace = 0;
    clear(room);
    if read_trace(memory, vm, room, head, number).is_err() || room.running.identity.address != trace {
        return false;
    }
    let spadjust = match memory.read::<u16>(trace.wrapping_add(u64::from(vm.layout.tr_spadjust))) {
        Ok(spadjust) => u32::from(spadjust),
        Err(Unreadable) => return false,
    };
    let TraceIdentity { startpt, startpc, mcode, szmcode, .. } = room.running.identity;
    // `line_at` takes the PC after the instruction, as everywhere.
    let Ok((true, line)) = line_at(memory, &vm.layout, objects, head, startpt, startpc.wrapping_add(4)) else {
        return false;
    };
    if !objects.name_trace(&room.running.identity, line.unwrap_or(NO_LINE)) {
        return false;
    }
    if let Some(known) = objects.trace(trace) {
        *known = RememberedTrace { trace, mcode, size: szmcode, spadjust, number, window };
    }
    true
}

/// Reads the identity of the trace that has this number.
#[inline(always)]
fn read_trace(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    room: &mut TraceRoom,
    head: &mut Head,
    number: u32,
) -> Result<(), Unreadable> {
    let TraceRoom { traces, running } = room;
    traces.read(memory, vm)?;
    traces.running(memory, &vm.layout, number, (running, head))
}

/// The stack pointer of a trace that runs in `thread`.
#[inline(always)]
fn stack_pointer(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    known: &RememberedTrace,
    thread: u64,
) -> Result<u64, Unreadable> {
    if thread == 0 {
        return Err(Unreadable);
    }
    let cframe = memory.read::<u64>(thread.wrapping_add(u64::from(layout.l_cframe)))? & !CFRAME_FLAGS;
    Ok(trace_stack_pointer(cframe, known.spadjust))
}

impl RememberedTrace {
    /// Notes the return address of the trace's call of the allocator, as an offset in the trace's machine code. Returns
    /// whether it is in that code.
    #[inline(always)]
    fn locate(&self, return_address: u64, event: &mut AllocationEvent) -> bool {
        let offset = return_address.wrapping_sub(self.mcode);
        let is_within = offset != 0 && offset <= u64::from(self.size);
        if is_within {
            event.place |= self.mcode << 16;
            event.line = offset as u32;
        }
        is_within
    }
}

/// Stands for an unknown line of a trace's start.
pub const NO_LINE: u32 = u32::MAX;

/// A trace that allocates, and the place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TracePlace {
    /// Its number.
    pub number: u64,
    /// If the place in the trace is known: the address of its machine code, and the offset of the return address.
    pub at: Option<(u64, u32)>,
}

impl TracePlace {
    /// The trace that an event names as its source.
    pub fn of(event: &AllocationEvent) -> Self {
        // Trace numbers take 16 bits. Otherwise the VM's state is garbage of up to 32 bits.
        match event.place >> 16 {
            mcode if event.place > u64::from(u32::MAX) => {
                Self { number: event.place & 0xffff, at: Some((mcode, event.line)) }
            }
            _ => Self { number: event.place, at: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_places_are_told_apart() {
        let of = |place, line| TracePlace::of(&AllocationEvent { place, line, ..AllocationEvent::EMPTY });
        assert_eq!(of(7, 0), TracePlace { number: 7, at: None });
        assert_eq!(of(0x8cd0_0078, 0), TracePlace { number: 0x8cd0_0078, at: None }, "garbage");
        assert_eq!(of(0x7f12_3456_0000 << 16 | 7, 0x40), TracePlace { number: 7, at: Some((0x7f12_3456_0000, 0x40)) });
    }
}
