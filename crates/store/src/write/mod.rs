//! Writes profiles into files.

mod counts;
mod encode;
mod error;
mod kept;
mod measures;
mod onward;
mod rows;
mod store;
mod texts;

pub use counts::{Dropped, StoreCounts};
pub use error::StoreError;
pub use store::Store;
