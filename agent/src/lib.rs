//! The user-space half of lj-trace, one folder for each step of a sample's way: the [`target`] process is
//! looked at, its VMs are found and proven, probes are attached, samples are unwound and symbolized, and
//! written as streams or reports.

pub mod bounded;
pub mod commands;
pub mod doctor;
pub mod dump;
pub mod exit;
pub mod heap;
pub mod host;
pub mod record;
pub mod service;
pub mod stack;
pub mod top;
