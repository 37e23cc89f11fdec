//! All tests on live and on saved VMs, in one binary.

#[path = "../../../tests/src/skips.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod skips;

mod hostile;
mod saved;
mod saved_memory;
mod trace_readings;
mod vm_truth;
