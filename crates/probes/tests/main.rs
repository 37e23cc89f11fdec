//! All tests on live VMs and on this kernel, in one binary.

#[path = "../../../tests/src/skips.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod skips;

mod allocator;
mod bpf_stack;
mod off_cpu;
mod turns;
mod turns_generated;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Has a test run alone: several record what the threads of this very process do.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // One that has failed leaves nothing behind that another one needs.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
