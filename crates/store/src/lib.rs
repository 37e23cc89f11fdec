//! Profiles of a host in Parquet files, and back: [`Store`] writes them, [`read`] makes profiles of them again.
//!
//! A row is what one stack weighed by one measure in one interval of one process. The schema is that of
//! [`schema::SCHEMA`], for DuckDB, ClickHouse and Spark; `docs/store.md` has queries.

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
