//! What `cargo xtask bench` measures with the support of the tests: the accuracy of estimates and what they cost, what
//! samples cost, what clients of a server feel, and for how long a heap is copied.

mod accuracy;
mod bounded;
mod heap;
mod leak;
mod sampler;
mod slowdown;
mod string_table;
mod switched;
mod table;
mod work;

pub use bounded::{Plan, WORKLOADS, bounded};
pub use heap::heap;
pub use leak::leak;
pub use sampler::sampler;
