//! What people read: profiles as text, folded stacks and pictures.
//!
//! A [`CpuProfile`] and a [`MemoryProfile`] are filled by a live recording or from a stream ([`sysprof`],
//! [`memprof`]), and rendered by [`folded`] and [`svg`]; the first by [`text`] too. [`mod@reference`] prints what the parsers of tarantool/luajit print.

pub mod folded;
pub mod frame;
pub mod memory;
pub(crate) mod memory_sources;
pub mod memprof;
pub mod profile;
pub mod reference;
pub mod stacks;
pub mod svg;
pub mod sysprof;
pub mod text;

pub use frame::Frame;
pub use memory::{MemoryProfile, Weight};
pub use profile::CpuProfile;
pub use stacks::Profile;
