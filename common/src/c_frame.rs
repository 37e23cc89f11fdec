//! What a C frame looks like: the native frame of `lua_call`, `lua_pcall` or `lua_resume`. In it the VM keeps the
//! running coroutine, the enclosing C frame, and the number of results ([`CFRAME_OFS_*`], `lj_frame.h`).
//!
//! [`CFRAME_OFS_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L158-L180

pub use crate::arch::C_FRAME_WORDS;
use crate::arch::{self, ADDRESS_END};
use crate::frame::CFRAME_FLAGS;
use crate::layout::VmLayout;

/// How many bytes at the beginning of a C frame contain every field that is read.
pub const C_FRAME_HEAD: u64 = 8 * C_FRAME_WORDS as u64;

/// Mask for the offset of the number of results. The verifier needs it, because it does not know the agent's values.
pub const RESULTS_MASK: u32 = C_FRAME_WORDS.next_power_of_two() as u32 * 8 - 4;

/// The same for the offsets of the enclosing C frame's address and of the coroutine's address.
pub const ADDRESS_MASK: u32 = C_FRAME_WORDS.next_power_of_two() as u32 * 8 - 8;

/// More results than any call returns, and more bytes than any Lua stack has (`LUAI_MAXSTACK`, `luaconf.h`).
const TOO_MANY: u32 = 1 << 24;

/// Offsets in the C frames of all VMs with GC references of one width. With these fields, a C frame can be told from
/// other words of a native stack without following pointers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CFrameShape {
    /// Whether there are such VMs.
    pub exists: u32,
    /// Offset of the number of results.
    pub results: u32,
    /// Offset of the address of the enclosing C frame; 0 if VMs differ.
    pub previous: u32,
    /// Offset of the coroutine's address; 0 if VMs differ. It is used only where [`arch::CFRAME_L_VARIES`].
    pub thread: u32,
}

impl CFrameShape {
    /// Adds the C frame offsets of one more VM.
    pub fn include(&mut self, layout: &VmLayout) {
        let [results, previous, thread] = [layout.cframe_nres, layout.cframe_prev, layout.cframe_l].map(u32::from);
        let thread = if arch::CFRAME_L_VARIES { thread } else { 0 };
        let is_within = previous + 8 <= C_FRAME_HEAD as u32 && results + 4 <= C_FRAME_HEAD as u32;
        let own = Self { exists: 1, results, previous, thread };
        *self = match *self {
            Self { exists: 0, .. } if is_within => own,
            same if same == own => own,
            _ => Self { exists: 1, ..Self::default() },
        };
    }

    /// Whether a C frame may hold these two values.
    #[inline(always)]
    pub const fn allows(results: i32, previous: u64) -> bool {
        let previous = previous & !CFRAME_FLAGS;
        previous & 15 == 0 && previous < ADDRESS_END && results.unsigned_abs() < TOO_MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_that_differ_share_no_shape() {
        let layout = |cframe_nres, cframe_prev| VmLayout { cframe_nres, cframe_prev, ..VmLayout::default() };
        let mut shape = CFrameShape::default();
        shape.include(&layout(8, 32));
        shape.include(&layout(8, 32));
        assert_eq!(shape, CFrameShape { exists: 1, results: 8, previous: 32, thread: 0 });
        shape.include(&layout(8, 48));
        assert_eq!((shape.exists, shape.previous), (1, 0));
        shape.include(&layout(8, 32));
        assert_eq!((shape.exists, shape.previous), (1, 0));
    }

    #[test]
    fn frames_are_told_from_other_words() {
        assert!(CFrameShape::allows(2, 0x7fff_1230 | 1));
        assert!(CFrameShape::allows(-520_000, 0));
        assert!(!CFrameShape::allows(0x5555_1234, 0));
        assert!(!CFrameShape::allows(1, 0x7fff_1238));
        assert!(!CFrameShape::allows(1, u64::MAX));
    }
}
