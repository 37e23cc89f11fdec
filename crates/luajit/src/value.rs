//! Tagged values ([`TValue`], `lj_obj.h`), the same in all builds of one reference width.
//!
//! LuaJIT's sources: [`LJ_T*`].
//!
//! [`TValue`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L174-L213
//! [`LJ_T*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L260-L274

use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::{ReadMemory, Unreadable};

/// Size of a `TValue` in bytes.
pub const SIZE: u64 = 8;

/// The value of a slot, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// `nil`: also an unused slot of a table.
    Nil,
    /// A collectable object.
    Object {
        /// Its type, a constant of [`lj_trace_common::layout::gct`].
        gct: u8,
        /// Its address.
        address: u64,
    },
    /// A number, a boolean or a light userdata.
    Other,
}

/// Lowest and highest type number of collectable objects (`~LJ_TSTR`, `~LJ_TUDATA`).
const COLLECTABLE: std::ops::RangeInclusive<u32> = 4..=12;

/// Decodes the 8 bytes of a `TValue`.
pub fn decode(gc64: bool, bits: u64) -> Value {
    if gc64 {
        // The type is the complement of the upper 17 bits, sign-extended; the lower 47 are the address.
        let gct = !((bits as i64 >> 47) as u32);
        match gct {
            0 if bits == u64::MAX => Value::Nil,
            _ if COLLECTABLE.contains(&gct) => Value::Object { gct: gct as u8, address: bits & ((1 << 47) - 1) },
            _ => Value::Other,
        }
    } else {
        let gct = !((bits >> 32) as u32);
        match gct {
            0 => Value::Nil,
            _ if COLLECTABLE.contains(&gct) => Value::Object { gct: gct as u8, address: bits & 0xffff_ffff },
            _ => Value::Other,
        }
    }
}

/// Reads the value at `address`.
///
/// # Errors
/// [`Unreadable`] if it cannot be read.
pub fn read<M: ReadMemory>(memory: &M, layout: &VmLayout, address: u64) -> Result<Value, Unreadable> {
    Ok(decode(layout.is_gc64(), memory.read(address)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_both_widths() {
        // lj_obj.h: LJ_TNIL ~0, LJ_TSTR ~4, LJ_TTAB ~11.
        assert_eq!(decode(true, u64::MAX), Value::Nil);
        assert_eq!(decode(false, 0xffff_ffff_dead_beef), Value::Nil);
        let table = (!11_u64 << 47) | 0x7fff_1234_5678;
        assert_eq!(decode(true, table), Value::Object { gct: 11, address: 0x7fff_1234_5678 });
        assert_eq!(decode(false, 0xffff_fffb_4000_0010), Value::Object { gct: 4, address: 0x4000_0010 });
        assert_eq!(decode(true, 1.5_f64.to_bits()), Value::Other);
        assert_eq!(decode(false, (-1.5_f64).to_bits()), Value::Other);
        assert_eq!(decode(true, !(1_u64 << 47)), Value::Other, "false");
    }
}
