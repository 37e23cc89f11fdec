//! Reads from the program's own code where its data is: the only part that depends on the processor.
//!
//! # What a processor's module supplies
//!
//! | item | what it is |
//! |---|---|
//! | `read_accessor` | what lua-nginx-module's function for the phase reads |
//! | `read_reference` | what its function for `ngx.ctx` reads |
//! | `read_fiber_self` | what Tarantool's function for the current fiber reads |
//! | `count_calls` | how often code calls a function by its address |
//! | `only_reads_on` | whether a function changes no memory any more |

use lj_trace_common::memory::ReadMemory;

mod value;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::{count_calls, only_reads_on};
#[cfg(target_arch = "aarch64")]
use aarch64::{read_accessor, read_fiber_self, read_reference};

// Its parts are tested on every processor.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[allow(dead_code, unused_imports, reason = "only its tests are wanted")]
mod aarch64;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{count_calls, only_reads_on};
#[cfg(target_arch = "x86_64")]
use x86_64::{read_accessor, read_fiber_self, read_reference};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "lj-trace-requests does not support this processor yet. crates/requests/src/arch has to supply for it: read_accessor, \
     read_fiber_self, read_reference, count_calls, only_reads_on. See docs/architectures.md"
);

/// A field that lua-nginx-module has for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// The index of the module's context among the contexts of a request.
    pub index: u32,
    /// The offset of the field in that context, in bytes.
    pub offset: u32,
    /// The mask of the field in the four bytes at that offset.
    pub mask: u32,
}

impl Accessor {
    /// The fields that a function with this `code` at `address` reads. The function gets a request, and returns the phase
    /// of its context.
    pub fn read(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Self> {
        read_accessor(memory, code, address)
    }

    /// The field that a function with this code returns, which gets a request, and returns the number of its `ngx.ctx`.
    pub fn read_reference(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Self> {
        read_reference(memory, code, address)
    }
}

/// Where a thread finds the fiber that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiberSelf {
    /// The offset of the pointer to the thread's cord among the thread's variables, a negative one in most builds.
    pub variable: u64,
    /// The offset in the cord of the pointer to the fiber, in bytes.
    pub fiber: u64,
}

impl FiberSelf {
    /// What `fiber_self` reads, whose `code` is at `address`.
    pub fn read(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Self> {
        read_fiber_self(memory, code, address)
    }
}
