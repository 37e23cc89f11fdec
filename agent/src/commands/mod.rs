//! The subcommands of `lj-trace`, a file each.

pub mod exit;
pub mod report;
