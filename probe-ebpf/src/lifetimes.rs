//! Finds out which followed objects have died, at the end of the collector's mark phase.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_loop};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use lj_trace_common::config::{Counter, LONGEST_SAMPLE};
use lj_trace_common::lifetime::{LifeState, MAX_FOLLOWED, MAX_WATCHED};
use lj_trace_common::memory::ReadMemory as _;

use crate::clock::Timer;
use crate::count::count;
use crate::maps::{FOLLOWED, FOLLOWED_END, WATCHED};
use crate::memory::UserMemory;

/// A flip of the white: the VM, and the white that its dead objects have.
#[repr(C)]
struct Flip {
    watched: u32,
    dead: u32,
}

/// Runs after a thread of the target has written `gc.currentwhite`, right behind that instruction: the sweep has not
/// begun yet.
#[perf_event]
pub fn white_written(_context: PerfEventContext) -> u32 {
    let timer = Timer::start();
    count(Counter::WatchpointHits);
    // An inherited event does not say which watchpoint was hit, so this checks all of them; there are few.
    for index in 0..MAX_WATCHED {
        let Some(watched) = WATCHED.get_ptr_mut(index) else { return 0 };
        // SAFETY: the map's values are valid for the whole program. Only the thread that collects a VM's garbage changes
        // its entry, and the agent before the events are attached.
        let watched = unsafe { &mut *watched };
        if watched.currentwhite == 0 {
            continue;
        }
        let Ok(currentwhite) = UserMemory.read::<u8>(watched.currentwhite) else { continue };
        let Some(dead) = watched.flip(currentwhite) else { continue };
        watched.white ^= 3;
        watched.flips += 1;
        // SAFETY: the helper has no preconditions.
        watched.flipped = unsafe { bpf_ktime_get_ns() };
        let end = FOLLOWED_END.get(0).copied().unwrap_or(0);
        let mut flip = Flip { watched: index, dead: u32::from(dead) };
        let context = (&raw mut flip).cast();
        // SAFETY: the callback has the signature that the helper wants, and the context outlives the call.
        unsafe { bpf_loop(end.min(MAX_FOLLOWED), look as *mut c_void, context, 0) };
    }
    timer.stop(Counter::WatchpointTime, LONGEST_SAMPLE);
    0
}

/// Checks the object with this number: 0 to continue.
extern "C" fn look(index: u64, flip: *mut c_void) -> i64 {
    // SAFETY: `white_written` passes a flip.
    let flip = unsafe { &*flip.cast::<Flip>() };
    let Some(followed) = FOLLOWED.get_ptr_mut(index as u32) else { return 1 };
    // SAFETY: as above; the agent writes entries that are free, and frees others.
    let followed = unsafe { &mut *followed };
    if followed.state == LifeState::Alive as u8 && u32::from(followed.watched) == flip.watched {
        followed.look(&UserMemory, flip.dead as u8);
    }
    0
}
