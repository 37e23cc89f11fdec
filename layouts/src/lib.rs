//! Where the builds of LuaJIT keep their fields.
//!
//! [`known_layouts`] is the table of all known builds; [`dwarf`] reads the same out of the debug information of
//! any build. Neither is believed without proof: that is for `vm::prove` of the agent, on the live process.

pub mod dwarf;
pub mod options;
mod table;

pub use table::{KnownLayout, TableError, candidates, format_row, header, known_layouts, parse};

/// Whether layouts that fit a VM may still disagree about a field.
///
/// A VM whose JIT compiler has not compiled anything yet does not show where its traces keep their snapshots.
/// Such fields are then marked as absent, and decided when there are traces. Everything that an interpreter's
/// sample needs is proven from the start.
pub fn may_stay_undecided(field: &str) -> bool {
    // `sizeof_g` and `top_frame_info` only say where `jit_State` begins, and are read by nobody.
    options::is_of_jit(field) || ["sizeof_g", "g_top_frame_info"].contains(&field)
}
