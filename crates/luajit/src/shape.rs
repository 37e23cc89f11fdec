//! Object sizes, and the offsets of fields that only heap snapshots need.
//!
//! A [`VmLayout`] has the offsets that differ between builds. The other offsets follow from it: the structs here (`lj_obj.h`)
//! are the same in every build since 2.0 except for the width of references, or their fields lie next to fields in the layout.
//!
//! LuaJIT's sources: [`GCtab`], [`lj_str_size`], [`ctype_state`], [`KGC`].
//!
//! [`GCtab`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L499-L512
//! [`lj_str_size`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.h#L29
//! [`ctype_state`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L661-L662
//! [`KGC`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_ir.h#L48

use lj_trace_common::layout::{ABSENT, BytecodeSet, VmLayout};

/// The sizes of objects in a layout, all in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Offsets of the VM's fields.
    pub layout: VmLayout,
    /// Size of a reference.
    pub reference: u64,
    /// Slots of a frame's link: 1 with 64-bit references (`LJ_FR2`).
    pub fr2: u64,
    /// `sizeof(GCtab)`.
    pub table: u64,
    /// `sizeof(GCupval)`.
    pub upvalue: u64,
    /// `sizeof(GCudata)`: the payload starts there.
    pub userdata: u64,
    /// `sizeof(GCcdata)`: the payload starts there.
    pub cdata: u64,
    /// `sizeof(CType)`.
    pub ctype: u64,
    /// Whether the text of strings is padded to a multiple of four bytes (`lj_str_size`, since ff34b48d of 2020-06-23,
    /// which also gave strings an id, and so moved their length).
    pub padded_strings: bool,
}

/// Size of a hash `Node`, in both widths of references.
pub const NODE: u64 = 24;

/// Size of a `TValue`.
pub const VALUE: u64 = 8;

impl Shape {
    /// The shape that follows from a layout.
    pub fn new(layout: VmLayout) -> Self {
        let wide = layout.is_gc64();
        let pick = |gc64: u64, other: u64| if wide { gc64 } else { other };
        Self {
            layout,
            reference: pick(8, 4),
            fr2: pick(1, 0),
            table: pick(64, 32),
            upvalue: pick(48, 24),
            userdata: pick(48, 24),
            cdata: pick(16, 8),
            ctype: pick(24, 16),
            padded_strings: u64::from(layout.str_len) == pick(20, 16),
        }
    }

    /// Whether references have 64 bits.
    pub const fn gc64(&self) -> bool {
        self.layout.is_gc64()
    }

    /// `GCHeader.marked`.
    pub const fn marked(&self) -> u64 {
        self.reference
    }

    /// `GCHeader.gct`.
    pub const fn gct(&self) -> u64 {
        self.reference + 1
    }

    /// The byte after the header: `GCudata.udtype`, `GCupval.closed`, `GCtab.nomm`; `GCcdata.ctypeid` begins there.
    pub const fn first(&self) -> u64 {
        self.reference + 2
    }

    /// `GCtab.colo`.
    pub const fn colo(&self) -> u64 {
        self.reference + 3
    }

    /// `env` of functions and userdata.
    pub const fn env(&self) -> u64 {
        2 * self.reference
    }

    /// `GCudata.len`.
    pub const fn udata_len(&self) -> u64 {
        3 * self.reference
    }

    /// `GCupval.tv`, and the list of open upvalues at the same place.
    pub const fn upvalue_value(&self) -> u64 {
        2 * self.reference
    }

    /// `GCupval.v`.
    pub const fn upvalue_pointer(&self) -> u64 {
        self.upvalue_value() + if self.gc64() { 16 } else { 8 }
    }

    /// `GCfuncL.uvptr`.
    pub fn upvalue_references(&self) -> u64 {
        u64::from(self.layout.fn_pc) + self.reference
    }

    /// `GCfuncC.upvalue`.
    pub fn c_upvalues(&self) -> u64 {
        u64::from(self.layout.fn_c) + 8
    }

    /// `lua_State.openupval`, which follows `stack`.
    pub fn open_upvalues(&self) -> u64 {
        u64::from(self.layout.l_stack) + self.reference
    }

    /// `lua_State.env`, which follows `openupval`.
    pub fn thread_env(&self) -> u64 {
        self.open_upvalues() + self.reference
    }

    /// `GCState.mmudata`, after `root`, `sweep`, `gray`, `grayagain` and `weak`.
    pub fn mmudata(&self) -> u64 {
        u64::from(self.layout.g_gc_root) + 5 * self.reference
    }

    /// `global_State.ctype_state`, which follows `jit_base`.
    pub fn ctype_state(&self) -> u64 {
        u64::from(self.layout.g_jit_base) + self.reference
    }

    /// Offset of the number of strings in the string table; it follows the table's mask.
    pub fn string_count(&self) -> u64 {
        u64::from(self.layout.g_str_mask) + 4
    }

    /// `global_State.vmthref`, of LuaJIT since 2025-11-10, between `registrytv` and `uvhead`.
    pub fn vm_thread(&self) -> Option<u64> {
        let behind = u64::from(self.layout.g_registrytv) + VALUE;
        let is_new = self.layout.g_nilnode < self.layout.g_registrytv;
        (is_new && u64::from(self.layout.g_uvhead) == behind + 8).then_some(behind)
    }

    /// `global_State.tmpbuf`, as the place of its size or of its ends.
    pub fn temporary_buffer(&self) -> Buffer {
        let l = &self.layout;
        if l.bytecode_set == BytecodeSet::V20 as u16 {
            // 2.0: buf, n, sz; right before `nilnode`.
            return Buffer::Sized { size: u64::from(l.g_nilnode) - 4 };
        }
        if l.g_nilnode < l.g_strempty || l.g_strempty > l.g_mainthref || l.g_nilnode > l.g_registrytv {
            // Between `vmstate` or the collector's state and `strempty`, without padding: w (p), e, b, L.
            let start = u64::from(l.g_strempty) - 4 * self.reference;
            return Buffer::Ends { start, pointer: self.reference };
        }
        // Between `mainthref` and `tmptv, tmptv2, nilnode`; with 8-byte pointers since the field is named `w` (2021).
        let start = (u64::from(l.g_mainthref) + self.reference).next_multiple_of(8);
        let length = u64::from(l.g_nilnode) - 2 * VALUE - start;
        Buffer::Ends { start, pointer: if length >= 32 { 8 } else { 4 } }
    }

    /// `GCState.lightudseg`, of builds that have it: upstream since 2020-09-30, Tarantool since 2.6.1.
    pub fn light_userdata_segments(&self) -> Option<u64> {
        let l = &self.layout;
        // root, sweep, gray, grayagain, weak, mmudata, debt, estimate; stepmul and pause.
        let place = u64::from(l.g_gc_root) + 8 * self.reference + 8;
        if l.bytecode_set == BytecodeSet::V20 as u16 {
            return None;
        }
        if l.g_mem_l != ABSENT || self.has_counters() {
            // After it, Tarantool has 11 words of counters; `tmpbuf` and `strempty` follow.
            let end = (place + self.reference).next_multiple_of(8) + 11 * 8 + 4 * self.reference;
            return (u64::from(l.g_strempty) == end).then_some(place);
        }
        let fields = [l.g_strempty, l.g_vmstate, l.g_mainthref, l.g_nilnode, l.g_str_tab];
        let next = fields.into_iter().map(u64::from).filter(|&field| field > u64::from(l.g_gc_root)).min();
        next.filter(|&next| next >= place + self.reference).map(|_| place)
    }

    /// Whether the collector's state has Tarantool's counters.
    pub fn has_counters(&self) -> bool {
        u64::from(self.layout.g_strempty).saturating_sub(u64::from(self.layout.g_gc_root)) > 11 * 8 + 8 * self.reference
    }

    /// Number of the opcode `KGC` of the intermediate code (`lj_ir.h`).
    pub const fn kgc(&self) -> u8 {
        if self.layout.bytecode_set == BytecodeSet::V20 as u16 { 23 } else { 24 }
    }
}

/// How a string buffer (`SBuf`) stores its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// As a 32-bit number.
    Sized {
        /// Its offset in `global_State`.
        size: u64,
    },
    /// As the distance from its beginning to its end: `w` (`p`), `e`, `b`, `L`.
    Ends {
        /// The buffer's offset in `global_State`.
        start: u64,
        /// Size of its pointers.
        pointer: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::known_layouts;
    use crate::testing::x64_layout;

    fn shape(build: &str, mode: &str) -> Shape {
        Shape::new(x64_layout(build, mode))
    }

    #[test]
    fn sizes_are_those_of_the_headers() {
        // The values in the DWARF of Debian's build and of Tarantool's.
        let wide = shape("2022-03(Debian)", "x64gc64");
        assert_eq!((wide.upvalue_value(), wide.upvalue_pointer(), wide.upvalue_references()), (16, 32, 40));
        assert_eq!((wide.udata_len(), wide.env(), wide.colo(), wide.c_upvalues()), (24, 16, 11, 48));
        let narrow = shape("tt2.6.0+smart", "x64");
        assert_eq!((narrow.upvalue_value(), narrow.upvalue_pointer(), narrow.upvalue_references()), (8, 16, 20));
        assert_eq!((narrow.udata_len(), narrow.env(), narrow.colo(), narrow.c_upvalues()), (12, 8, 7, 32));
        assert!(wide.padded_strings && !narrow.padded_strings);
    }

    #[test]
    fn temporary_buffers_and_segments_of_all_kinds() {
        let buffer = |build, mode| shape(build, mode).temporary_buffer();
        assert_eq!(buffer("2.0.5", "x64"), Buffer::Sized { size: 100 });
        assert_eq!(buffer("2.1b3", "x64"), Buffer::Ends { start: 92, pointer: 4 });
        assert_eq!(buffer("2.1b3", "x64gc64"), Buffer::Ends { start: 136, pointer: 8 });
        assert_eq!(buffer("2020-06-23", "x64"), Buffer::Ends { start: 136, pointer: 4 });
        assert_eq!(buffer("2022-03(Debian)", "x64"), Buffer::Ends { start: 144, pointer: 8 });
        assert_eq!(buffer("2022-03(Debian)", "x64gc64"), Buffer::Ends { start: 200, pointer: 8 });
        let segments = |build, mode| shape(build, mode).light_userdata_segments();
        assert_eq!(segments("2.1b3", "x64gc64"), None);
        assert_eq!(segments("2020-06-23", "x64"), None);
        assert_eq!(segments("2020-09-30", "x64"), Some(72));
        assert_eq!(segments("2022-03(Debian)", "x64gc64"), Some(112));
        assert_eq!(segments("tt2.6.0+smart", "x64"), None);
        assert!(segments("ttmaster+smart", "x64gc64").is_some());
    }

    #[test]
    fn every_layout_has_a_shape() {
        for row in known_layouts() {
            let shape = Shape::new(row.layout);
            if let Buffer::Ends { start, pointer } = shape.temporary_buffer() {
                let l = row.layout;
                let after = [l.g_strempty, l.g_nilnode].map(u64::from).into_iter().filter(|&next| next > start).min();
                let room = after.unwrap_or(0).saturating_sub(start);
                assert!((4 * pointer..=4 * pointer + 16).contains(&room), "{row}: {start} {pointer} {room}");
            }
            assert!(shape.mmudata() + shape.reference <= u64::from(row.layout.sizeof_g), "{row}");
        }
    }
}
