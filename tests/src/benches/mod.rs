//! What `cargo xtask bench` measures with the support of the tests: the accuracy of estimates and what they cost, and what
//! clients of a server feel.

mod accuracy;
mod bounded;
mod leak;
mod slowdown;
mod string_table;
mod table;
mod work;

pub use bounded::{Plan, WORKLOADS, bounded};
pub use leak::leak;
