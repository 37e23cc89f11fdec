//! How lj-trace prints text of the target and numbers, and how it reads amounts that people write.

pub mod amount;
mod chunk_name;
mod columns;
mod room;
mod size;
pub mod table;
pub mod untrusted;

pub use chunk_name::chunk_name;
pub use columns::{COLUMNS, fit, fit_end, percent};
pub use room::Room;
pub use size::{bytes, counted, signed_bytes};
