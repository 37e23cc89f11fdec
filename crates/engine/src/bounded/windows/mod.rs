//! When the allocator is probed: in windows that a [`policy`] chooses, which a [thread](driver) opens and closes.

pub mod driver;
pub mod policy;
