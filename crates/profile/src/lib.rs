//! Profiles for people: as text, and in the formats of viewers.
//!
//! A live recording or a stream ([`sysprof`], [`memprof`]) fills a [`CpuProfile`] or a [`MemoryProfile`]; only a live
//! recording fills a [`WaitProfile`]. All of them are [`Profile`]s, from which [`formats`] are written.
//! [`mod@reference`] prints what the parsers of tarantool/luajit print.

pub mod answer;
pub mod chance;
mod cpu_text;
pub mod diff;
pub mod estimated;
pub mod formats;
pub mod frame;
mod interval;
mod kind;
pub mod memory;
pub mod memprof;
pub mod model;
pub mod profile;
pub mod reference;
mod resource;
pub mod source_code;
pub mod sysprof;
pub mod waits;

pub use estimated::EstimatedProfile;
pub use formats::{Format, Output};
pub use frame::Frame;
pub use interval::Interval;
pub use kind::ProfileKind;
pub use memory::{MemoryProfile, Weight};
pub use model::Profile;
pub use profile::CpuProfile;
pub use resource::Resource;
pub use waits::WaitProfile;
