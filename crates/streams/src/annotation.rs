//! The annotations that lj-trace adds to a stream, so that a report made from the stream says as much as a live report.
//!
//! The format has no room for function names, for the VM state of a sample with a Lua stack, or for the numbers of a run.
//! lj-trace writes these as C symbols at addresses in the first 64 KiB, where nothing is ever mapped (`vm.mmap_min_addr`)
//! and no sample can point. Other parsers of the format see them as symbols that are never used.

use std::sync::Arc;

use super::{Symbol, VmState};

/// Addresses with a special meaning in lj-trace's streams, all below [`reserved::END`].
pub mod reserved {
    /// A host frame that stands for no real frame. Parsers show the Lua frames of a sample after it.
    pub const SPLICE: u64 = 1;
    /// The name of that host frame. Its first letters make parsers show Lua frames after it.
    pub const SPLICE_NAME: &str = "lua_call[no frame: Lua follows]";
    /// A host frame for a sample that has no frame at all.
    pub const NO_STACK: u64 = 2;
    /// A symbol here carries a text annotation as its name.
    pub const TEXT: u64 = 3;
    /// The name of a symbol here is the line of the next sample.
    pub const LINE: u64 = 4;
    /// A Lua function that stands for the lost start of a trace.
    pub const LOST_START: u64 = 5;
    /// A C function that stands for all C functions whose names had no room.
    pub const NO_C_NAME: u64 = 6;
    /// A symbol at `STATE + n` says that the VM was in state number `n` at the next sample.
    pub const STATE: u64 = 0x10;
    /// The first address for functions that have a name but no address.
    pub const NAMES: u64 = 0x100;
    /// The end of the reserved addresses, marked by a boundary symbol.
    pub const END: u64 = 0x1_0000;
}

/// An annotation of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// lj-trace wrote this stream, so that the reference parser shows all frames of its samples.
    Writer,
    /// The name of a Lua function.
    FunctionName {
        /// The address of its prototype, or an address inside the prototype that represents it.
        proto: u64,
        /// The name from the place of its definition.
        name: Arc<str>,
    },
    /// The Lua function at this address was compiled into a trace.
    Compiled {
        /// An address inside its prototype that represents it.
        proto: u64,
    },
    /// The VM state at the next sample.
    State(VmState),
    /// The line of the innermost Lua function at the next sample.
    Line(u32),
    /// A fact about the run, such as the rate or a number of lost samples.
    Property {
        /// The name of the fact, without any `=`.
        key: String,
        /// Its value.
        value: String,
    },
}

const WRITER: &str = "lj-trace stream";
const FUNCTION: &str = "function ";
const COMPILED: &str = "compiled ";
const PROPERTY: &str = "property ";

impl Annotation {
    /// The symbol that carries this annotation.
    pub fn to_symbol(&self) -> Symbol {
        match self {
            Self::Writer => Symbol::c(reserved::TEXT, WRITER),
            Self::FunctionName { proto, name } => Symbol::c(reserved::TEXT, &format!("{FUNCTION}{proto:x}={name}")),
            Self::Compiled { proto } => Symbol::c(reserved::TEXT, &format!("{COMPILED}{proto:x}")),
            Self::Line(line) => Symbol::c(reserved::LINE, &line.to_string()),
            Self::State(state) => Symbol::c(reserved::STATE + *state as u64, ""),
            Self::Property { key, value } => Symbol::c(reserved::TEXT, &format!("{PROPERTY}{key}={value}")),
        }
    }

    /// The annotation that a symbol carries, if it carries one.
    pub fn from_symbol(symbol: &Symbol) -> Option<Self> {
        let Symbol::C { addr, name } = symbol else { return None };
        match *addr {
            reserved::TEXT => Self::from_text(std::str::from_utf8(name).ok()?),
            reserved::LINE => std::str::from_utf8(name).ok()?.parse().ok().map(Self::Line),
            reserved::STATE.. if name.is_empty() => {
                u8::try_from(addr - reserved::STATE).ok().and_then(VmState::from_number).map(Self::State)
            }
            _ => None,
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == WRITER {
            return Some(Self::Writer);
        }
        if let Some((proto, name)) = text.strip_prefix(FUNCTION).and_then(|rest| rest.split_once('=')) {
            return Some(Self::FunctionName { proto: u64::from_str_radix(proto, 16).ok()?, name: name.into() });
        }
        if let Some(proto) = text.strip_prefix(COMPILED) {
            return Some(Self::Compiled { proto: u64::from_str_radix(proto, 16).ok()? });
        }
        let (key, value) = text.strip_prefix(PROPERTY)?.split_once('=')?;
        Some(Self::Property { key: key.to_owned(), value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_survive_being_symbols() {
        for annotation in [
            Annotation::Writer,
            Annotation::FunctionName { proto: 0x7f00_dead_bee8, name: "a=b".into() },
            Annotation::Compiled { proto: 0x7f00_dead_beea },
            Annotation::State(VmState::Trace),
            Annotation::Line(4321),
            Annotation::Property { key: "rate".to_owned(), value: "99".to_owned() },
        ] {
            assert_eq!(Annotation::from_symbol(&annotation.to_symbol()), Some(annotation));
        }
        assert_eq!(Annotation::from_symbol(&Symbol::c(0x40_0000, "main")), None);
        assert_eq!(Annotation::from_symbol(&Symbol::c(reserved::SPLICE, reserved::SPLICE_NAME)), None);
    }
}
