//! All tests on live VMs and on this kernel, in one binary.

#[path = "../../../tests/src/skips.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod skips;

mod allocator;
mod bpf_stack;
mod callbacks;
mod off_cpu;
mod turns;
mod turns_generated;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs a test alone: several tests record what the threads of this process do.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A failed test leaves nothing behind that another test depends on.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
