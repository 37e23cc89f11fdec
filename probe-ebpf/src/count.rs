//! Counting what happens, so that nothing is lost silently.

use lj_trace_common::config::Counter;

use crate::maps::COUNTS;

/// Adds one to a counter of this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    add(counter, 1);
}

/// Adds to a counter of this CPU; returns what it was before.
#[inline(always)]
pub fn add(counter: Counter, amount: u64) -> u64 {
    let Some(value) = COUNTS.get_ptr_mut(counter as u32) else { return 0 };
    // SAFETY: the pointer is this CPU's own entry. A program on a user probe may be preempted in between, so a count
    // may be lost where two threads take turns just then: these are statistics, not the events.
    unsafe {
        let before = *value;
        *value = before + amount;
        before
    }
}
