//! Sends events to user space.

use lj_trace_common::allocation::tally::VmTally;
use lj_trace_common::allocation::{AllocationEvent, PrototypeSeen};

use crate::maps::{ALLOCATIONS, TALLIES};
use crate::wakeup;

/// The largest record of the buffer, in bytes.
const LARGEST: u64 = size_of::<PrototypeSeen>() as u64;

/// Sends an event of a VM to user space.
#[inline(always)]
pub fn send(event: &AllocationEvent) {
    let Some(tally) = tally_of(u32::from(event.vm)) else { return };
    match ALLOCATIONS.reserve::<AllocationEvent>(0) {
        Some(mut place) => {
            // SAFETY: both are whole events, and a ring buffer's record is nowhere else.
            unsafe { core::ptr::copy_nonoverlapping(event, place.as_mut_ptr(), 1) };
            place.submit(wakeup::flags(&ALLOCATIONS, LARGEST));
            tally.written += 1;
        }
        None => tally.ring_full += 1,
    }
}

/// The entry that counts the calls of a VM.
#[inline(always)]
pub fn tally_of(vm: u32) -> Option<&'static mut VmTally> {
    // SAFETY: the map's entries are there as long as the program. A VM runs on one thread at a time, so nobody else counts
    // in its entry.
    TALLIES.get_ptr_mut(vm).map(|tally| unsafe { &mut *tally })
}
