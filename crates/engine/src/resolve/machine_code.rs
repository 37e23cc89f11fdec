//! Where a VM's machine code is: the interpreter's, and the traces compiled so far.
//!
//! LuaJIT's sources: [`JIT_PARAMDEF`], [`MCLink`].
//!
//! [`JIT_PARAMDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L108-L129
//! [`MCLink`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L174-L177

use std::iter::once;
use std::ops::Range;

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::{ReadMemory, Unreadable};

use lj_trace_luajit::Vm;
use lj_trace_process::ProcessMemory;
use lj_trace_unwind::VmCode;

/// The most areas that lj-trace follows. An allocator of machine code never chains more: an area has 64 KiB and the default
/// limit is 2 MiB (`lj_jit.h`, `JIT_PARAMDEF`; 512 KiB until November 2025), and some programs raise the limit.
const MAX_AREAS: usize = 4096;

/// The most pieces that one system call reads (`IOV_MAX`).
const AT_ONCE: usize = 1024;

/// The machine code of `vm` at this moment.
pub fn machine_code(memory: &impl ReadMemory, vm: &Vm) -> VmCode {
    VmCode {
        text: vm.text.range.clone(),
        mcode: newest_area_at(vm).and_then(|newest| areas(memory, newest).ok()).unwrap_or_default(),
        sampled: Vec::new(),
        cframe_size: u64::from(vm.layout.cframe_size),
        gc64: vm.layout.is_gc64(),
    }
}

/// Brings the machine code of `vm` up to date: that costs one system call, unless areas have come or gone. Then it returns
/// those that were there before.
pub fn refresh(code: &mut VmCode, memory: &ProcessMemory, vm: &Vm) -> Option<Vec<Range<u64>>> {
    code.sampled.clear();
    let newest = newest_area_at(vm).filter(|&newest| !are_all(memory, newest, &code.mcode))?;
    Some(std::mem::replace(&mut code.mcode, areas(memory, newest).unwrap_or_default()))
}

/// The address of the pointer to the newest area; [`None`] without a JIT compiler.
fn newest_area_at(vm: &Vm) -> Option<u64> {
    let jit_state = vm.jit_state().filter(|_| vm.layout.j_mcarea != ABSENT)?;
    Some(jit_state.wrapping_add(u64::from(vm.layout.j_mcarea)))
}

/// The areas of generated code, the newest one first: each begins with the address of the next and its own size
/// (`MCLink`, `lj_jit.h`; from 2.0 to 2.1 of August 2026).
fn areas(memory: &impl ReadMemory, newest: u64) -> Result<Vec<Range<u64>>, Unreadable> {
    let mut area = memory.read::<u64>(newest)?;
    let mut areas = Vec::new();
    while area != 0 && areas.len() < MAX_AREAS {
        let [next, size] = memory.read::<[u64; 2]>(area)?;
        areas.push(area..area.saturating_add(size));
        area = next;
    }
    Ok(areas)
}

/// Whether `areas` are still all areas, in this order. Reads all links at once and compares them.
fn are_all(memory: &ProcessMemory, newest: u64, areas: &[Range<u64>]) -> bool {
    let places: Vec<_> = once((newest, 8)).chain(areas.iter().map(|area| (area.start, 16))).collect();
    let links = places.chunks(AT_ONCE).flat_map(|places| memory.read_scattered(places));
    let start = |index: usize| areas.get(index).map_or(0, |area| area.start);
    let link = |(index, area): (usize, &Range<u64>)| [start(index + 1), area.end - area.start];
    let expected = once(start(0)).chain(areas.iter().enumerate().flat_map(link));
    links.eq(expected.flat_map(u64::to_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of a value of our own memory.
    fn at<T>(value: &T) -> u64 {
        std::ptr::from_ref(value) as u64
    }

    #[test]
    fn areas_are_followed_as_they_come_and_go() {
        let memory = ProcessMemory::new(std::process::id());
        // Volatile writes, since the system call reads the memory without the compiler's knowledge.
        let set = |place: &mut [u64; 2], value| {
            // SAFETY: an exclusive reference is valid for writes.
            unsafe { std::ptr::write_volatile(place, value) }
        };
        let (mut oldest, mut middle, mut newest) = ([0_u64; 2], [0; 2], [0; 2]);
        let mut head = [0_u64; 2];
        assert!(are_all(&memory, at(&head), &[]));

        set(&mut oldest, [0, 0x1000]);
        set(&mut middle, [at(&oldest), 0x2000]);
        set(&mut newest, [at(&middle), 0x3000]);
        set(&mut head, [at(&newest), 0]);
        assert!(!are_all(&memory, at(&head), &[]), "some have come");
        let found = areas(&memory, at(&head)).unwrap();
        let range = |area: &[u64; 2], size| at(area)..at(area) + size;
        assert_eq!(found, [range(&newest, 0x3000), range(&middle, 0x2000), range(&oldest, 0x1000)]);
        assert!(are_all(&memory, at(&head), &found));
        assert!(!are_all(&memory, at(&head), &found[1..]), "one was added");

        set(&mut oldest, [0, 0x4000]);
        assert!(!are_all(&memory, at(&head), &found), "the last one has another size");
        set(&mut oldest, [at(&head), 0x1000]);
        assert!(!are_all(&memory, at(&head), &found), "the last one has a successor");
        set(&mut middle, [1, 0x2000]);
        assert!(!are_all(&memory, at(&head), &found), "one leads elsewhere");
        assert_eq!(areas(&memory, at(&head)), Err(Unreadable));
    }
}
