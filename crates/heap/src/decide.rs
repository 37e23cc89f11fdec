//! Decides open questions of a layout, with the data that the JIT compiler has left.
//!
//! Two builds may differ only in their traces, and one or two traces may fit both builds. If nothing was compiled yet,
//! there is no trace to check. But the first recording leaves its snapshots behind, even if it was aborted.
//!
//! LuaJIT's sources: [`SnapShot`].
//!
//! [`SnapShot`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L180-L188

use lj_trace_common::layout::{ABSENT, VmLayout};
use lj_trace_common::memory::ReadMemory;

use lj_trace_luajit::Vm;
use lj_trace_luajit::layouts::{candidates, options};
use lj_trace_luajit::object::field;

/// The VM with those open fields of its traces decided that its snapshots show.
pub fn completed<M: ReadMemory>(memory: &M, vm: &Vm) -> Vm {
    let mut completed = vm.clone();
    if !vm.undecided.contains(&"sizeof_snap") || vm.layout.j_trace == ABSENT {
        return completed;
    }
    let size = vm.global.wrapping_sub(vm.main_thread);
    let fitting = candidates(vm.layout.is_gc64(), size)
        .into_iter()
        .find(|known| agrees(&vm.layout, &known.layout) && first_snapshot_fits(memory, vm, known.layout.sizeof_snap));
    if let Some(known) = fitting {
        let fields = VmLayout::FIELDS.iter().zip(vm.layout.values().into_iter().zip(known.layout.values()));
        let mut values = vm.layout.values();
        for (value, (name, (decided, known))) in values.iter_mut().zip(fields) {
            let is_of_traces = options::is_of_jit(name) && decided == ABSENT;
            *value = if is_of_traces { known } else { decided };
        }
        completed.layout = VmLayout::from_values(&values);
    }
    completed
}

/// Whether all fields that `decided` has are equal in `known`.
fn agrees(decided: &VmLayout, known: &VmLayout) -> bool {
    decided.values().into_iter().zip(known.values()).all(|(decided, known)| decided == ABSENT || decided == known)
}

/// Whether the first snapshot of the last recording has this size. The offset of its slots in their map is 0 and has 16 or
/// 32 bits (`SnapShot`, `lj_jit.h`); after it comes the reference of an instruction.
fn first_snapshot_fits<M: ReadMemory>(memory: &M, vm: &Vm, size: u16) -> bool {
    const REF_BIAS: u16 = 0x8000;
    let Some(jit_state) = vm.jit_state() else { return false };
    let table = field(jit_state, vm.layout.j_trace);
    // snapbuf, snapmapbuf, sizesnapmap, postproc; in 2.1 retryrec.
    [32, 24].into_iter().any(|distance| {
        let first = memory.read::<u64>(table.wrapping_sub(distance)).and_then(|at| memory.read::<[u16; 4]>(at));
        match (first, size) {
            (Ok([0, reference, ..]), 8) => reference >= REF_BIAS,
            (Ok([0, 0, reference, _]), 12) => reference >= REF_BIAS,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use lj_trace_luajit::InterpreterText;
    use lj_trace_luajit::testing::{Saved, x64_layout};

    use super::*;

    /// A VM of Tarantool's fork for which only 1.7 or 2.6 are left as its version, with these first bytes of a snapshot.
    fn undecided(snapshot: [u16; 4]) -> (Saved, Vm) {
        let mut layout = x64_layout("tt2.6.0+smart", "x64");
        let (old, mut values) = (x64_layout("tt1.7+smart", "x64"), layout.values());
        let mut undecided = Vec::new();
        for ((value, other), name) in values.iter_mut().zip(old.values()).zip(VmLayout::FIELDS) {
            if *value != other {
                undecided.push(*name);
                *value = ABSENT;
            }
        }
        layout = VmLayout::from_values(&values);
        let global = 0x1_0000 + u64::from(layout.sizeof_l);
        let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
        let vm = Vm { global, main_thread: 0x1_0000, layout, builds: Vec::new(), undecided, text };
        let mut bytes = vec![0; 0x4000];
        let table = field(vm.jit_state().unwrap(), layout.j_trace) - 0x1_0000;
        bytes[table as usize - 32..][..8].copy_from_slice(&0x1_3000_u64.to_le_bytes());
        bytes[0x3000..0x3008].copy_from_slice(&snapshot.map(u16::to_le_bytes).concat());
        (Saved::new(0x1_0000, bytes), vm)
    }

    #[test]
    fn the_first_snapshot_tells() {
        let (memory, vm) = undecided([0, 0, 0x8001, 0x0202]);
        assert!(vm.undecided.contains(&"sizeof_snap"), "{:?}", vm.undecided);
        assert_eq!(completed(&memory, &vm).layout.sizeof_snap, 12);
        assert_eq!(completed(&memory, &vm).layout, x64_layout("tt2.6.0+smart", "x64"));
        let (memory, vm) = undecided([0, 0x8001, 0x0202, 0]);
        assert_eq!(completed(&memory, &vm).layout, x64_layout("tt1.7+smart", "x64"));
        let (memory, vm) = undecided([0; 4]);
        assert_eq!(completed(&memory, &vm).layout, vm.layout, "nothing was recorded yet");
    }
}
