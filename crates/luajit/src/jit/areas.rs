//! The areas of machine code, and how full they are ([`mcode_allocarea`], `lj_mcode.c`).
//!
//! Each area begins with a link to the one before it ([`MCLink`], `lj_jit.h`). Traces fill the newest area from its
//! end, exit stubs from its beginning. An older area had no room for the next trace, so nothing more is added to it.
//!
//! [`mcode_allocarea`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_mcode.c#L357-L371
//! [`MCLink`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L174-L177

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::{ReadMemory, Unreadable};
use serde::Serialize;

use crate::object::field;
use crate::{Trace, Vm};

/// The most areas: each has 64 KB, and `maxmcode` is a few MB.
const MAX_AREAS: usize = 1 << 16;

/// How often to read until two readings agree.
const READINGS: usize = 8;

/// An area of machine code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct McodeArea {
    /// Address of its first byte.
    #[serde(serialize_with = "crate::status::hexadecimal")]
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Number of traces in it.
    pub traces: usize,
    /// Total size of these traces' code, in bytes.
    pub code: u64,
    /// Free bytes between traces and exit stubs; only the newest area is still filled.
    pub free: Option<u64>,
}

/// All areas, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Areas {
    /// The areas.
    pub areas: Vec<McodeArea>,
    /// Total size of the areas in bytes.
    pub size: u64,
    /// Why the areas are not known, if they are not.
    pub unknown: Option<&'static str>,
}

/// Reads the areas of `vm`, which has `traces`.
pub fn read_areas<M: ReadMemory>(memory: &M, vm: &Vm, traces: &[Trace]) -> Areas {
    let unknown = |reason| Areas { unknown: Some(reason), ..Areas::default() };
    let layout = &vm.layout;
    let Some(jit_state) = vm.jit_state().filter(|_| layout.j_mcarea != ABSENT && layout.j_szmcarea != ABSENT) else {
        return unknown("where this VM keeps them is not known: it has compiled nothing yet, or has no JIT compiler");
    };
    for _ in 0..READINGS {
        let Ok(state) = State::read(memory, field(jit_state, layout.j_mcarea), field(jit_state, layout.j_szmcarea))
        else {
            return unknown("the VM's memory is not readable any more");
        };
        if let Ok(Some(areas)) = state.areas(memory, traces)
            && State::read(memory, field(jit_state, layout.j_mcarea), field(jit_state, layout.j_szmcarea)) == Ok(state)
        {
            return areas;
        }
    }
    unknown("they changed each time that they were read")
}

/// `mcarea`, `mctop` and `mcbot` follow each other in every build, and so do `szmcarea` and `szallmcarea`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    area: u64,
    top: u64,
    bottom: u64,
    size: u64,
    size_of_all: u64,
}

impl State {
    fn read<M: ReadMemory>(memory: &M, area: u64, size: u64) -> Result<Self, Unreadable> {
        let words: [u64; 3] =
            [memory.read(area)?, memory.read(area.wrapping_add(8))?, memory.read(area.wrapping_add(16))?];
        let [area, top, bottom] = words;
        Ok(Self { area, top, bottom, size: memory.read(size)?, size_of_all: memory.read(size.wrapping_add(8))? })
    }

    /// [`None`] if the values cannot belong together.
    fn areas<M: ReadMemory>(&self, memory: &M, traces: &[Trace]) -> Result<Option<Areas>, Unreadable> {
        let mut areas: Vec<McodeArea> = Vec::new();
        let (mut next, mut sum) = (self.area, 0_u64);
        while next != 0 {
            let size: u64 = memory.read(next.wrapping_add(8))?;
            let all = sum.checked_add(size).filter(|all| *all <= self.size_of_all);
            let (Some(_), Some(all)) = (next.checked_add(size), all) else { return Ok(None) };
            if size == 0 || areas.len() >= MAX_AREAS {
                return Ok(None);
            }
            areas.push(McodeArea { start: next, size, traces: 0, code: 0, free: None });
            sum = all;
            next = memory.read(next)?;
        }
        count_traces(&mut areas, traces);
        if let Some(newest) = areas.first_mut() {
            let is_within =
                newest.start <= self.bottom && self.bottom <= self.top && self.top <= newest.start + newest.size;
            if newest.size != self.size || !is_within {
                return Ok(None);
            }
            newest.free = Some(self.top - self.bottom);
        }
        Ok((sum == self.size_of_all).then_some(Areas { areas, size: sum, unknown: None }))
    }
}

/// Counts the traces in each area. There may be tens of thousands of both.
fn count_traces(areas: &mut [McodeArea], traces: &[Trace]) {
    let mut by_start: Vec<(u64, usize)> = areas.iter().enumerate().map(|(index, area)| (area.start, index)).collect();
    by_start.sort_unstable();
    for trace in traces {
        let before = by_start.partition_point(|(start, _)| *start <= trace.mcode.start).checked_sub(1);
        let Some(area) = before.map(|before| &mut areas[by_start[before].1]) else { continue };
        if trace.mcode.end - area.start <= area.size {
            area.traces += 1;
            area.code += trace.mcode.end - trace.mcode.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    fn memory(links: &[(u64, u64)]) -> Saved {
        let mut bytes = vec![0; 0x3000];
        for (index, (next, size)) in links.iter().enumerate() {
            bytes[index * 0x1000..][..8].copy_from_slice(&next.to_le_bytes());
            bytes[index * 0x1000 + 8..][..8].copy_from_slice(&size.to_le_bytes());
        }
        Saved::new(0x10000, bytes)
    }

    #[test]
    fn walks_from_the_newest_to_the_oldest() {
        let memory = memory(&[(0x11000, 0x1000), (0, 0x800)]);
        let state = State { area: 0x10000, top: 0x10f00, bottom: 0x10010, size: 0x1000, size_of_all: 0x1800 };
        let found = state.areas(&memory, &[]).unwrap().unwrap();
        let sizes: Vec<_> = found.areas.iter().map(|area| (area.start, area.size, area.free)).collect();
        assert_eq!(sizes, [(0x10000, 0x1000, Some(0xef0)), (0x11000, 0x800, None)]);
    }

    #[test]
    fn each_trace_counts_in_its_area() {
        const SIZE: u64 = 0x1000;
        // The areas are not in the order of their addresses.
        let areas =
            [3, 1, 2].map(|place| McodeArea { start: place * 0x2000, size: SIZE, traces: 0, code: 0, free: None });
        for start in (0..0xa000).step_by(0x234) {
            for length in [0, 1, 0x800, SIZE, SIZE + 1] {
                let trace = Trace { mcode: start..start + length, ..crate::trace::fixtures::body(&[], &[], &[]).trace };
                let mut counted = areas.clone();
                count_traces(&mut counted, std::slice::from_ref(&trace));
                for area in counted {
                    let is_within = area.start <= start && start + length <= area.start + SIZE;
                    // An empty one may lie at the end of its area.
                    assert_eq!(area.traces, usize::from(is_within), "{start:x} {length:x} {area:x?}");
                    assert_eq!(area.code, if is_within { length } else { 0 });
                }
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let state = State { area: 0x10000, top: 0x10f00, bottom: 0x10010, size: 0x1000, size_of_all: 0x1000 };
        assert_eq!(state.areas(&memory(&[(0x10000, 0x1000)]), &[]), Ok(None), "a ring");
        assert_eq!(state.areas(&memory(&[(0, 0x800)]), &[]), Ok(None), "another size");
        assert_eq!(State { top: 0x20000, ..state }.areas(&memory(&[(0, 0x1000)]), &[]), Ok(None));
        assert_eq!(state.areas(&memory(&[(0x90000, 0x800)]), &[]), Err(Unreadable));
        let none = State { area: 0, top: 0, bottom: 0, size: 0, size_of_all: 0 };
        assert_eq!(none.areas(&memory(&[]), &[]), Ok(Some(Areas::default())), "nothing compiled");
    }
}
