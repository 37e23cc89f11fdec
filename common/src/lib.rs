//! What the kernel half and the user-space half of lj-trace share.
//!
//! Everything here is `no_std`, does no I/O and allocates nothing, because most of it is compiled twice:
//! into the BPF programs and into the agent. The walkers read a target through [`memory::ReadMemory`].
#![cfg_attr(not(test), no_std)]

pub mod layout;
pub mod memory;
