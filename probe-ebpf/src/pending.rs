//! The last call of the allocator on each thread, which may still wait for its result.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use lj_trace_common::allocation::PendingAllocation;
use lj_trace_common::config::PENDING_PLACES;

use crate::maps::{PENDING, PENDING_ELSEWHERE, PLACES_TAKEN};

/// The entry of this thread, created at its first call.
#[inline(always)]
pub fn of_thread() -> Option<&'static mut PendingAllocation> {
    let id = bpf_get_current_pid_tgid();
    match of_id(id) {
        Some(pending) => Some(pending),
        None => make(id),
    }
}

/// The entry of a thread that already has one.
#[inline(always)]
pub fn of_id(id: u64) -> Option<&'static mut PendingAllocation> {
    // SAFETY: only the programs that a thread itself runs use its entry, one after the other.
    let pending = unsafe { &mut *PENDING.get_ptr_mut(place(id))? };
    if pending.owner == id { Some(pending) } else { elsewhere(id) }
}

/// A thread's place among the entries: the threads of a process mostly have neighbouring numbers.
#[inline(always)]
fn place(id: u64) -> u32 {
    id as u32 % PENDING_PLACES
}

#[inline(always)]
fn elsewhere(id: u64) -> Option<&'static mut PendingAllocation> {
    // SAFETY: as above.
    PENDING_ELSEWHERE.get_ptr_mut(&id).map(|pending| unsafe { &mut *pending })
}

/// Gives a thread its place for good, or an entry elsewhere if another thread has that place.
#[inline(never)]
fn make(id: u64) -> Option<&'static mut PendingAllocation> {
    /// Fails if there is an entry (`BPF_NOEXIST`): the first thread gets the place.
    const ONLY_NEW: u64 = 1;
    static EMPTY: PendingAllocation = PendingAllocation::EMPTY;
    if PLACES_TAKEN.insert(&place(id), &id, ONLY_NEW).is_ok() {
        // SAFETY: the place was nobody's before, and is this thread's from now on.
        let pending = unsafe { &mut *PENDING.get_ptr_mut(place(id))? };
        // A fresh entry is all 0, except for these fields.
        pending.returned = 1;
        pending.owner = id;
        return Some(pending);
    }
    PENDING_ELSEWHERE.insert(&id, &EMPTY, 0).ok()?;
    elsewhere(id)
}
