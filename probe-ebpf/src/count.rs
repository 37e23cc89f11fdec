//! Counts events, so that nothing is lost silently.

use core::arch::asm;

use lj_trace_common::config::{COUNTERS, Counter};

use crate::maps::{COUNTS, SAMPLER_COUNTS};

/// Adds one to a counter of this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    add(counter, 1);
}

/// Adds to a counter of one process's samples. Returns the value before. This is a function of its own because samples
/// need all of the program's stack.
#[inline(never)]
pub fn add_of(process: u32, counter: u32, amount: u64) -> u64 {
    let Some(value) = SAMPLER_COUNTS.get_ptr_mut(process * COUNTERS + counter) else { return 0 };
    // SAFETY: as in `count_exactly`.
    unsafe {
        let before = value.read_volatile();
        asm!("lock *(u64 *)({value} + 0) += {amount}", value = in(reg) value, amount = in(reg) amount, options(nostack));
        before
    }
}

/// Adds one to a counter of this CPU that has to be exact: no count of another thread is lost.
#[inline(always)]
pub fn count_exactly(counter: Counter) -> u64 {
    let Some(value) = COUNTS.get_ptr_mut(counter as u32) else { return 0 };
    // SAFETY: the entry is there as long as the program, and aligned. The addition is one instruction, which the compiler has
    // no name for on this target (`BPF_ATOMIC`, `BPF_ADD`).
    unsafe {
        let before = value.read_volatile();
        asm!("lock *(u64 *)({value} + 0) += {one}", value = in(reg) value, one = in(reg) 1u64, options(nostack));
        before
    }
}

/// Adds to a counter that other CPUs add to as well.
///
/// # Safety
/// It is an aligned word of a map.
#[inline(always)]
pub unsafe fn add_to(place: *mut u64, amount: u64) {
    // SAFETY: the caller vouches for the place. The addition is one instruction (`BPF_ATOMIC`, `BPF_ADD`).
    unsafe {
        asm!("lock *(u64 *)({place} + 0) += {amount}", place = in(reg) place, amount = in(reg) amount, options(nostack));
    }
}

/// Adds to a counter of this CPU. Returns the value before.
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

/// The lowest byte of an index. If the compiler knows that the index fits, it omits the check, but the verifier of
/// Linux 6.1 needs it.
#[inline(always)]
pub fn below_256(mut index: usize) -> usize {
    // SAFETY: an instruction on a number.
    unsafe { asm!("{0} &= 255", inout(reg) index, options(nomem, nostack, pure)) };
    index
}

/// The lowest bit of what a function returns. The compiler may know that it is no more than that, but the verifier does not.
#[inline(always)]
pub fn lowest_bit(outcome: u32) -> i64 {
    let mut outcome = i64::from(outcome);
    // SAFETY: an instruction on a number.
    unsafe { asm!("{0} &= 1", inout(reg) outcome, options(nomem, nostack, pure)) };
    outcome
}
