//! Stores a host's profiles in Parquet files: [`Store`] writes them, [`read`] makes profiles from them again.
//!
//! A row is the weight of one stack by one measure, in one interval of one process. The schema is [`schema::SCHEMA`],
//! readable by DuckDB, ClickHouse and Spark; `docs/store.md` has queries.

mod config;
mod folder;
mod frames;
mod names;
pub mod read;
#[cfg(feature = "s3")]
mod remote;
pub mod schema;
mod write;

pub use config::{RemoteConfig, StoreConfig};
pub use read::{Query, Selection};

pub use write::{Dropped, Store, StoreCounts, StoreError};
