//! What `cargo xtask bench` measures with the support of the tests: the accuracy of estimates and what they cost, what
//! samples cost, where there are many context switches, too, and what clients of a server feel.

mod accuracy;
mod bounded;
mod leak;
mod sampler;
mod slowdown;
mod string_table;
mod switched;
mod switches;
mod table;
mod work;

pub use bounded::{Plan, WORKLOADS, bounded};
pub use leak::leak;
pub use sampler::sampler;
pub use switches::switches;
