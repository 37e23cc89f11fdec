//! Handing events to user space.

use lj_trace_common::allocation::AllocationEvent;
use lj_trace_common::config::Counter;

use crate::count::count;
use crate::maps::ALLOCATIONS;

/// The agent looks at the buffer at its own pace (`BPF_RB_NO_WAKEUP`).
pub const NO_WAKEUP: u64 = 1;

/// Hands an event to user space.
#[inline(always)]
pub fn send(event: &AllocationEvent) {
    match ALLOCATIONS.reserve::<AllocationEvent>(0) {
        Some(mut place) => {
            // SAFETY: both are whole events, and a ring buffer's record is nowhere else.
            unsafe { core::ptr::copy_nonoverlapping(event, place.as_mut_ptr(), 1) };
            place.submit(NO_WAKEUP);
            count(Counter::AllocationsWritten);
        }
        None => count(Counter::AllocationsLost),
    }
}
