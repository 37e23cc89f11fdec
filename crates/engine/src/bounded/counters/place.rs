//! The places of a VM's counters in memory.
//!
//! LuaJIT's sources: [`GCState`].
//!
//! [`GCState`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L594-L619

use lj_trace_common::layout::{BytecodeSet, VmLayout};

use lj_trace_luajit::shape::Shape;

/// The part of the `global_State` with the counters (`GCState`, `lj_obj.h`), and their offsets in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersPlace {
    /// The address of the first byte.
    pub start: u64,
    /// The size in bytes.
    pub size: usize,
    wide: bool,
    total: usize,
    estimate: usize,
    white: usize,
    state: usize,
    /// The offset of `gc.allocated`, which only Tarantool's builds have.
    allocated: Option<usize>,
    mask: usize,
    reference: u64,
}

/// The counters of one VM at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    /// `gc.total`: the allocated bytes of the heap.
    pub total: u64,
    /// `gc.estimate`: the part of these that the collector considers alive. During a sweep, it falls by the freed bytes.
    pub estimate: u64,
    /// `gc.currentwhite`: changes once per cycle, before the sweep.
    pub white: u8,
    /// `gc.state`.
    pub state: u8,
    /// `gc.allocated`: the bytes allocated since the VM was created.
    pub allocated: Option<u64>,
    /// The bytes of the string table, computed from its mask.
    pub table: u64,
}

impl CountersPlace {
    /// The place of the counters of the VM with this `global_State`.
    pub fn new(global: u64, layout: &VmLayout) -> Self {
        let shape = Shape::new(*layout);
        let total = u64::from(layout.g_gc_total);
        let root = u64::from(layout.g_gc_root);
        // root, sweep, gray, grayagain, weak, mmudata, debt; LuaJIT 2.0 has stepmul before debt.
        let before = if layout.bytecode_set == BytecodeSet::V20 as u16 { 8 } else { 7 };
        let estimate = root + before * shape.reference;
        // stepmul and pause; lightudseg in builds that have it; freed.
        let counters =
            shape.light_userdata_segments().map_or(root + 8 * shape.reference + 8, |at| at + shape.reference);
        let allocated = shape.has_counters().then_some(counters.next_multiple_of(8) + 8);
        let mask = u64::from(layout.g_str_mask);
        let end = allocated.map_or(estimate + shape.reference, |at| at + 8).max(mask + 4);
        let start = total.min(mask);
        let offset = |at: u64| at.wrapping_sub(start) as usize;
        Self {
            start: global.wrapping_add(start),
            size: offset(end),
            wide: layout.is_gc64(),
            estimate: offset(estimate),
            white: offset(layout.g_gc_currentwhite.into()),
            state: offset(layout.g_gc_state.into()),
            allocated: allocated.map(offset),
            total: offset(total),
            mask: offset(mask),
            reference: shape.reference,
        }
    }

    /// Decodes the bytes; [`None`] if there are too few.
    pub fn decode(&self, bytes: &[u8]) -> Option<Raw> {
        let wide = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let narrow = |at: usize| Some(u64::from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
        let size = |at| if self.wide { wide(at) } else { narrow(at) };
        Some(Raw {
            total: size(self.total)?,
            estimate: size(self.estimate)?,
            white: *bytes.get(self.white)?,
            state: *bytes.get(self.state)?,
            allocated: match self.allocated {
                Some(at) => Some(wide(at)?),
                None => None,
            },
            table: (narrow(self.mask)? + 1) * self.reference,
        })
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::testing::x64_layout;

    use super::*;

    #[test]
    fn counters_are_where_each_fork_has_them() {
        // Offsets from `gc.total`: 8 + 8 bytes, 8 of bytes and sweepstr, 7 references to `estimate`.
        let wide = CountersPlace::new(0x4000, &x64_layout("Debian", "x64gc64"));
        let CountersPlace { total, estimate, white, state, allocated, .. } = wide;
        assert_eq!((estimate - total, white - total, state - total, allocated), (24 + 7 * 8, 16, 17, None));
        let mut bytes = vec![0; wide.size];
        bytes[total] = 7;
        bytes[estimate + 1] = 1;
        bytes[white] = 0x22;
        bytes[state] = 4;
        bytes[wide.mask] = 255;
        let raw = Raw { total: 7, estimate: 256, white: 0x22, state: 4, allocated: None, table: 256 * 8 };
        assert_eq!(wide.decode(&bytes), Some(raw));
        assert_eq!(wide.decode(&bytes[..20]), None);
    }
}
