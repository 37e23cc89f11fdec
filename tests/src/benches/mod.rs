//! What `cargo xtask bench` measures with the support of the tests: the accuracy of estimates and what they cost, what
//! samples cost, where there are many context switches, too, what clients of a server feel, for how long a heap is
//! copied, what looks at coroutines cost, and what an agent costs a host.

mod accuracy;
mod blockers;
mod bounded;
mod busy_loops;
mod consistency;
mod heap;
pub mod host;
mod host_memory;
mod leak;
mod off_cpu;
mod sampler;
mod slowdown;
mod string_table;
mod switch_program;
mod switched;
mod switches;
mod table;
mod totals;
mod waits;
mod work;

pub use blockers::{BlockersCost, blockers, measure_blockers};
pub use bounded::{Plan, WORKLOADS, bounded};
pub use heap::heap;
pub use host_memory::host_memory;
pub use leak::leak;
pub use off_cpu::off_cpu;
pub use sampler::sampler;
pub use switches::switches;
pub use totals::{Totals, totals, totals_of};
pub use waits::waits;
