//! The parts of stopping a process that differ between processors. The rest of this crate uses this module for them.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `sampled` | the registers of a thread that ptrace(2) has stopped, numbered as in [`lj_trace_common::arch`] |

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-heap does not support this processor yet. crates/heap/src/arch has to supply for it: sampled. See \
     docs/architectures.md"
);
