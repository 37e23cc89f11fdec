//! What the program's own code says of its data: the only part that depends on the processor.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `read_accessor` | what lua-nginx-module's function for the phase reads |

use lj_trace_common::memory::ReadMemory;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64::read_accessor;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64::read_accessor;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-requests does not support this processor yet. crates/requests/src/arch has to supply for it: read_accessor. See \
     docs/architectures.md"
);

/// Where lua-nginx-module keeps the phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// Which element of a request's contexts is the module's.
    pub index: u32,
    /// Where that context has the phase, in bytes.
    pub phase: u32,
    /// Which bits of the four bytes there are the phase.
    pub mask: u32,
}

impl Accessor {
    /// What a function at `address` with this `code` reads that gets a request, and returns the phase of its context.
    pub fn read(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Self> {
        read_accessor(memory, code, address)
    }
}
