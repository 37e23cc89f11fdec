//! Interned strings ([`GCstr`], `lj_obj.h`): how to notice that another string has taken a string's place.
//!
//! LuaJIT's sources: [`lj_str_new`].
//!
//! [`GCstr`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L306-L313
//! [`lj_str_new`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L314-L356

use crate::frame::gct_offset;
use crate::layout::VmLayout;
use crate::memory::{ReadMemory, Unreadable};

/// A number that differs between two strings of one VM, even if one lies where the other was before.
///
/// Since June 2020 every string has a number of its own (`sid`, LuaJIT 2.1). Older builds, and forks of them, have only
/// a hash, which leaves out bytes of a long string. So the first and last bytes of the string are included: up to 32
/// bytes of text count in full.
/// 32 bytes of text count in full.
///
/// # Errors
/// [`Unreadable`] if the string cannot be read.
#[inline(always)]
pub fn identity(memory: &impl ReadMemory, layout: &VmLayout, string: u64) -> Result<u64, Unreadable> {
    // The words after the header and its 4 bytes of types and flags: `sid` and `hash`, or `hash` and `len`.
    let numbers = string.wrapping_add(gct_offset(layout.is_gc64()) + 3);
    let length_at = string.wrapping_add(u64::from(layout.str_len));
    let first = memory.read::<u64>(numbers)?;
    if length_at >= numbers.wrapping_add(8) {
        return Ok(first);
    }
    let length = first >> 32;
    let text = string.wrapping_add(u64::from(layout.sizeof_str));
    let mut identity = mix(0, first);
    if length >= 16 {
        let head = memory.read::<[u64; 2]>(text)?;
        let tail = memory.read::<[u64; 2]>(text.wrapping_add(length - 16))?;
        identity = mix(mix(mix(mix(identity, head[0]), head[1]), tail[0]), tail[1]);
    } else if length >= 8 {
        identity = mix(mix(identity, memory.read::<u64>(text)?), memory.read::<u64>(text.wrapping_add(length - 8))?);
    }
    // The hash of a shorter string covers all of its bytes (`lj_str_new`).
    Ok(identity)
}

#[inline(always)]
const fn mix(identity: u64, word: u64) -> u64 {
    (identity.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
