//! Where in a trace's machine code an allocation is made: its line in Lua can be told from that.

use super::event::AllocationEvent;
use crate::frame::CFRAME_FLAGS;
use crate::layout::ABSENT;
use crate::memory::{ReadMemory, Unreadable};
use crate::vm::VmConfig;

/// From the lowest byte of the C frame to the slot in which a trace's calls put their return address, less what the
/// trace has for itself (`spadjust`): two saved registers lie between (`BC_JLOOP`, `vm_x64.dasc` and `vm_x86.dasc`).
const RETURN_SLOT: u64 = 24;

/// Notes that trace `number` allocates, in `thread`, and where: if that cannot be told, the number remains.
#[inline(always)]
pub fn note(memory: &impl ReadMemory, vm: &VmConfig, thread: u64, number: u32, event: &mut AllocationEvent) {
    event.place = u64::from(number);
    // What cannot be read is not known.
    let _ = find(memory, vm, thread, number, event);
}

#[inline(always)]
fn find(
    memory: &impl ReadMemory,
    vm: &VmConfig,
    thread: u64,
    number: u32,
    event: &mut AllocationEvent,
) -> Result<(), Unreadable> {
    let layout = &vm.layout;
    if layout.g_to_j == ABSENT || layout.j_trace == ABSENT || number > u32::from(u16::MAX) || thread == 0 {
        return Ok(());
    }
    let gc64 = layout.is_gc64();
    let array = memory.read::<u64>(vm.global.wrapping_add(u64::from(layout.g_to_j) + u64::from(layout.j_trace)))?;
    let trace = memory.read_ref(gc64, array.wrapping_add(u64::from(number) * if gc64 { 8 } else { 4 }))?;
    let at = |offset: u16| trace.wrapping_add(u64::from(offset));
    let mcode = memory.read::<u64>(at(layout.tr_mcode))?;
    let size = memory.read::<u32>(at(layout.tr_szmcode))?;
    let spadjust = u64::from(memory.read::<u16>(at(layout.tr_spadjust))?);
    let cframe = memory.read::<u64>(thread.wrapping_add(u64::from(layout.l_cframe)))? & !CFRAME_FLAGS;
    let return_address = memory.read::<u64>(cframe.wrapping_sub(RETURN_SLOT + spadjust))?;
    let offset = return_address.wrapping_sub(mcode);
    if offset != 0 && offset <= u64::from(size) {
        event.place |= mcode << 16;
        event.line = offset as u32;
    }
    Ok(())
}

/// A trace that allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TracePlace {
    /// Its number.
    pub number: u64,
    /// If it is known where in the trace: the address of its machine code, and the offset of the return address.
    pub at: Option<(u64, u32)>,
}

impl TracePlace {
    /// What an event says that a trace has caused.
    pub fn of(event: &AllocationEvent) -> Self {
        // Numbers take 16 bits; what the VM's state says otherwise is garbage of 32.
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
