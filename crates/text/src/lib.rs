//! How text of the target and numbers are shown, in whatever lj-trace writes.

mod chunk_name;
mod size;
pub mod untrusted;

pub use chunk_name::chunk_name;
pub use size::bytes;
