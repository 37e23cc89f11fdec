//! Decides when the allocator is probed: in windows that a [`policy`] chooses and a [thread](driver) opens and closes.

pub mod driver;
pub mod policy;
