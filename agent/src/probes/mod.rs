//! The BPF programs, planned for a target, attached to it, and read from.

pub mod object;
