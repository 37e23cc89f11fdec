//! Formats values of Lua variables: what a slot of a Lua stack holds, as Lua would print it.
//!
//! LuaJIT's sources: [`TValue`], [`CTTYDEF`].
//!
//! [`TValue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L174-L213
//! [`CTTYDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ctype.h#L281-L308

use std::fmt;

use lj_trace_common::layout::{VmLayout, gct};
use lj_trace_common::memory::ReadMemory;

use super::object::{Function, field, marked_offset, read_function, read_string};
use super::prototype::{Prototype, PrototypeKey};

/// A value in a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum LuaValue {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A number that builds with `LUAJIT_NUMMODE=2` keep as an integer.
    Integer(i32),
    /// A light userdata: a pointer of the host program.
    LightUserdata,
    /// A string.
    String {
        /// Its first bytes.
        text: Vec<u8>,
        /// Its length in bytes.
        length: u32,
    },
    /// A table.
    Table {
        /// Its address.
        address: u64,
        /// Elements that its array part has room for, from index 1 on.
        array: u32,
        /// Entries that its hash part has room for.
        hash: u32,
    },
    /// A Lua function.
    LuaFunction {
        /// Its prototype.
        prototype: PrototypeKey,
        /// Its chunkname, as LuaJIT stores it.
        chunkname: String,
    },
    /// A C function or a function of LuaJIT's own library.
    CFunction {
        /// Its number in LuaJIT's library; 1 for a function of the host program.
        ffid: u8,
        /// Address of its machine code.
        code: u64,
    },
    /// An `int64_t` or `uint64_t` of the FFI.
    Integer64 {
        /// The 64 bits of the value.
        bits: u64,
        /// Whether it is signed.
        signed: bool,
    },
    /// Any other object: its kind and its address.
    Object(&'static str, u64),
    /// An impossible value: the slot is not in use, or was overwritten meanwhile.
    Invalid,
}

/// The most bytes of a string that are shown.
const MAX_STRING: usize = 120;

impl LuaValue {
    /// The value with these bits (`TValue`, `lj_obj.h`); its objects are read from `memory`.
    pub fn decode<M: ReadMemory>(memory: &M, layout: &VmLayout, bits: u64) -> Self {
        // Type numbers are complements: ~0 nil, ~1 false, ~2 true, ~3 light userdata, then collectable objects.
        let (kind, address) = if layout.is_gc64() {
            (!((bits as i64 >> 47) as u32), bits & ((1 << 47) - 1))
        } else {
            (!((bits >> 32) as u32), bits & 0xffff_ffff)
        };
        match kind {
            0 => Self::Nil,
            1 | 2 => Self::Boolean(kind == 2),
            3 => Self::LightUserdata,
            4..=12 => object(memory, layout, kind as u8, address).unwrap_or(Self::Invalid),
            // LJ_TISNUM: ~13 with GC64, 0xfffeffff without.
            13 if layout.is_gc64() => Self::Integer(bits as i32),
            0x1_0000 if !layout.is_gc64() => Self::Integer(bits as i32),
            // There, a pointer of 47 bits has an upper half from 0xffff0000 to 0xffff7fff.
            0x8000..=0xffff if !layout.is_gc64() => Self::LightUserdata,
            _ => Self::Number(f64::from_bits(bits)),
        }
    }

    /// Its type, as Lua's `type` names it; `cdata` for FFI objects.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Boolean(_) => "boolean",
            Self::Number(_) | Self::Integer(_) => "number",
            Self::LightUserdata => "userdata",
            Self::String { .. } => "string",
            Self::Table { .. } => "table",
            Self::LuaFunction { .. } | Self::CFunction { .. } => "function",
            Self::Integer64 { .. } => "cdata",
            Self::Object(name, _) => name,
            Self::Invalid => "invalid",
        }
    }
}

/// The object of type `kind` at `address`; [`None`] if no such object lies there.
fn object<M: ReadMemory>(memory: &M, layout: &VmLayout, kind: u8, address: u64) -> Option<LuaValue> {
    let gc64 = layout.is_gc64();
    if super::object::type_of(memory, layout, address) != Ok(kind) {
        return None;
    }
    Some(match kind {
        gct::STR => LuaValue::String {
            text: read_string(memory, layout, address, MAX_STRING).ok()?,
            length: memory.read(field(address, layout.str_len)).ok()?,
        },
        gct::TAB => {
            let array: u32 = memory.read(field(address, layout.tab_asize)).ok()?;
            let mask: u32 = memory.read(field(address, layout.tab_hmask)).ok()?;
            // The array part has a place for index 0. A mask of 0 may also stand for the shared empty hash part.
            let hash = if mask == 0 { 0 } else { mask.saturating_add(1) };
            LuaValue::Table { address, array: array.saturating_sub(1), hash }
        }
        gct::FUNC => match read_function(memory, layout, address).ok()? {
            Function::Lua { prototype } => {
                let key = Prototype::key_at(memory, layout, prototype).ok()?;
                let name = memory.read_ref(gc64, field(prototype, layout.pt_chunkname)).ok()?;
                let chunkname = read_string(memory, layout, name, MAX_STRING).ok()?;
                let chunkname = String::from_utf8_lossy(&chunkname).into_owned();
                LuaValue::LuaFunction { prototype: key, chunkname }
            }
            Function::C { address: code } => LuaValue::CFunction { ffid: 1, code },
            Function::Builtin { ffid, address: code } => LuaValue::CFunction { ffid, code },
        },
        CDATA => {
            // CTID_INT64 and CTID_UINT64 (`lj_ctype.h`); the type's number follows the object's header.
            const INT64: [u16; 2] = [11, 12];
            let header = marked_offset(gc64) + 2;
            let ctype: u16 = memory.read(address.wrapping_add(header)).ok()?;
            let data = address.wrapping_add(if gc64 { 16 } else { 8 });
            match memory.read(data) {
                Ok(bits) if INT64.contains(&ctype) => LuaValue::Integer64 { bits, signed: ctype == INT64[0] },
                _ => LuaValue::Object("cdata", address),
            }
        }
        gct::THREAD => LuaValue::Object("thread", address),
        gct::UDATA => LuaValue::Object("userdata", address),
        // Variables never hold upvalues, prototypes or traces.
        _ => return None,
    })
}

/// Type byte of `GCcdata`.
const CDATA: u8 = 10;

impl fmt::Display for LuaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::LightUserdata => f.write_str("light userdata"),
            Self::String { text, length } => {
                write!(f, "\"{}\"", text.escape_ascii())?;
                if *length as usize > text.len() { write!(f, "... ({length} bytes)") } else { Ok(()) }
            }
            Self::Table { address, array, hash } => write!(f, "table: {address:#x} (array {array}, hash {hash})"),
            Self::LuaFunction { chunkname, prototype } => {
                let chunk = lj_trace_text::chunk_name(chunkname.as_bytes());
                write!(f, "function @{chunk}:{}", prototype.firstline)
            }
            Self::CFunction { code, .. } => write!(f, "C function: {code:#x}"),
            Self::Integer64 { bits, signed: true } => write!(f, "{}LL", bits.cast_signed()),
            Self::Integer64 { bits, signed: false } => write!(f, "{bits}ULL"),
            Self::Object(name, address) => write!(f, "{name}: {address:#x}"),
            Self::Invalid => f.write_str("(not in use)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Saved, x64_layout};

    fn shown(mode: &str, bits: u64) -> String {
        let layout = x64_layout("2.1b3", mode);
        LuaValue::decode(&Saved::new(0, Vec::new()), &layout, bits).to_string()
    }

    #[test]
    fn plain_values_of_both_widths() {
        let wide = |kind: u64| !kind << 47;
        for (bits, expected) in [(u64::MAX, "nil"), (wide(1) | 7, "false"), (wide(2), "true"), (wide(13) | 5, "5")] {
            assert_eq!(shown("x64gc64", bits), expected);
        }
        for (high, expected) in [(!0_u32, "nil"), (!1, "false"), (!2, "true"), (!3, "light userdata")] {
            assert_eq!(shown("x64", u64::from(high) << 32 | 9), expected);
        }
        assert_eq!(shown("x64", 0xfffe_ffff_ffff_ffff), "-1", "an integer of LUAJIT_NUMMODE=2");
        assert_eq!(shown("x64", 0xffff_7f12_3456_7890), "light userdata");
        for mode in ["x64", "x64gc64"] {
            for number in [0.0, -1.5, 1e300, f64::INFINITY, 42.0] {
                assert_eq!(shown(mode, number.to_bits()), number.to_string(), "{mode}");
            }
            // The canonical NaN (`setnanV`).
            assert_eq!(shown(mode, 0xfff8_0000_0000_0000), "NaN", "{mode}");
        }
    }

    #[test]
    fn strings_are_quoted_and_cut_off() {
        let layout = x64_layout("2.1b3", "x64gc64");
        let mut bytes = vec![0; usize::from(layout.sizeof_str)];
        bytes[9] = gct::STR;
        bytes[usize::from(layout.str_len)] = 200;
        bytes.extend(b"a\"\n\xff".iter().chain(&[b'x'; 196]));
        let memory = Saved::new(0x4000, bytes);
        let string = |address: u64| LuaValue::decode(&memory, &layout, !4_u64 << 47 | address);
        let text = string(0x4000).to_string();
        assert!(text.starts_with("\"a\\\"\\n\\xffxxx") && text.ends_with("x\"... (200 bytes)"), "{text}");
        assert_eq!(string(0x5000), LuaValue::Invalid);
    }

    #[test]
    fn garbage_is_no_value() {
        let layout = x64_layout("2.1b3", "x64");
        let memory = Saved::new(0, vec![0xff; 64]);
        for kind in 4..=12_u32 {
            let value = LuaValue::decode(&memory, &layout, u64::from(!kind) << 32 | 8);
            assert_eq!(value, LuaValue::Invalid, "{kind}");
        }
    }
}
