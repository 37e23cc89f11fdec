//! How text of the target and numbers are shown, in whatever lj-trace writes; how amounts that people write are read.

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
