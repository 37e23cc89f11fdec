//! Layouts from debug information: of any LuaJIT that was built with it, known or not.

mod c_frame;
mod fields;
mod interpreter;
mod types;

use lj_trace_common::layout::VmLayout;
use object::{Architecture, Object, ObjectKind};

pub(crate) use c_frame::CFrameLayout;
use types::{Types, WantedFields};

/// Why debug information gives no layout.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DwarfError {
    /// The file has no DWARF.
    #[error("the file has no debug information: build LuaJIT with `CCDEBUG=-g` and do not strip it")]
    NoDebugInformation,
    /// An object file whose debug information is not linked yet.
    #[error("the file is not linked yet: give the program or the shared library")]
    NotLinked,
    /// A struct that every build has is not described.
    #[error("the debug information does not describe struct {0}: is there a LuaJIT in the file?")]
    NoStruct(&'static str),
    /// A struct lacks a member that every known build has.
    #[error("struct {0} has no member {1}: a build that lj-trace does not know how to read yet")]
    NoMember(&'static str, &'static str),
    /// An enumeration lacks what every known build has.
    #[error("the debug information does not tell the value of {0}")]
    NoEnumerator(&'static str),
    /// Another numbering of bytecodes.
    #[error("BC_FUNCF is {0}: a numbering of bytecodes that lj-trace does not know yet (add it to BytecodeSet)")]
    UnknownBytecodes(u16),
    /// Another processor, of which only the headers tell enough.
    #[error("the shape of this processor's C frames is only known from the headers: run `cargo xtask layouts`")]
    OtherProcessor,
    /// Nonsense.
    #[error("the debug information is damaged")]
    Malformed,
}

impl From<gimli::Error> for DwarfError {
    fn from(_: gimli::Error) -> Self {
        Self::Malformed
    }
}

/// The layouts that a file may have: one, or two where it does not tell what its C frames are like.
///
/// # Errors
/// [`DwarfError`] if the file has no debug information of a LuaJIT, or not enough.
pub fn read<'data>(file: &impl Object<'data>) -> Result<Vec<VmLayout>, DwarfError> {
    if file.kind() == ObjectKind::Relocatable {
        return Err(DwarfError::NotLinked);
    }
    let enumerators: Vec<&str> = fields::WANTED.enumerators.iter().chain(&c_frame::CONSTANTS).copied().collect();
    let wanted = WantedFields { enumerators: &enumerators, ..fields::WANTED };
    let types = Types::read(file, wanted, is_source_of_luajit)?;
    if let Some(c_frame) = CFrameLayout::of_probe(&types) {
        return Ok(vec![fields::layout(&types, &c_frame)?]);
    }
    match file.architecture() {
        Architecture::X86_64 => {}
        // The interpreter's code tells which of these it is, if the file does not.
        Architecture::Aarch64 => {
            return CFrameLayout::of_arm64().iter().map(|c_frame| fields::layout(&types, c_frame)).collect();
        }
        _ => return Err(DwarfError::OtherProcessor),
    }
    let possible = CFrameLayout::of_x64(fields::is_gc64(&types)?, fields::vm_states(&types));
    let size = interpreter::c_frame_size(file);
    let matching = possible.iter().filter(|c_frame| size.is_none_or(|size| size == u64::from(c_frame.size)));
    matching.map(|c_frame| fields::layout(&types, c_frame)).collect()
}

/// Whether a compilation unit is one of LuaJIT's own; the others of a large program need not be read.
fn is_source_of_luajit(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    file == "ljamalg.c" || file.starts_with("lj_") || file.starts_with("lib_")
}
