//! What people read: profiles as text, folded stacks and pictures.
//!
//! [`profile::CpuProfile`] is filled by a live recording or from a stream ([`sysprof`]), and rendered by [`text`],
//! [`folded`] and [`svg`]. [`mod@reference`] prints what the parsers of tarantool/luajit print.

pub mod folded;
pub mod frame;
pub mod profile;
pub mod reference;
pub mod svg;
pub mod sysprof;
pub mod text;

pub use frame::Frame;
pub use profile::CpuProfile;
