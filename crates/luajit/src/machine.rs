//! A LuaJIT VM whose layout is proven.
//!
//! LuaJIT's sources: [`GG_State`], [`FUNCCW`].
//!
//! [`GG_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.h#L90-L110
//! [`FUNCCW`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_bc.h#L206

use std::ops::Range;

use lj_trace_common::layout::{ABSENT, BytecodeSet, VmLayout, gct};
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::vm::{CodeRange, NOWHERE, VmConfig, VmEdges};
use lj_trace_unwind::vm_edges::Edges;

use super::object::{field, type_of};
use super::prove;

/// A VM (a "Lua universe": one `global_State` and all its coroutines) in the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Address of its `global_State`, which identifies the VM.
    pub global: u64,
    /// Address of its main thread's `lua_State`.
    pub main_thread: u64,
    /// Where its fields lie. Fields in [`Vm::undecided`] are [`ABSENT`].
    pub layout: VmLayout,
    /// The builds with this layout, as in `2021-03-23, 2022-03(Debian)`.
    pub builds: Vec<String>,
    /// Fields that the VM does not show yet, because it has no traces: builds with other offsets of these fields fit as
    /// well. [`find_vms`](super::find_vms) decides them once there are traces.
    pub undecided: Vec<&'static str>,
    /// The interpreter's machine code.
    pub text: InterpreterText,
}

/// Where the machine code of an interpreter lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpreterText {
    /// Addresses of LuaJIT's assembler code: all bytecodes, fast functions and their helpers.
    pub range: Range<u64>,
    /// Whether the range comes from unwind information (`.eh_frame`). If not, it only spans the dispatch
    /// targets, and code after the last of them is missed.
    pub exact: bool,
    /// Places in the code where a C frame has no Lua frame.
    pub edges: Edges,
}

impl Vm {
    /// Whether the VM still exists at its address: cheap, three reads. It does not if the VM was closed, or if its
    /// process executed another program.
    pub fn still_valid<M: ReadMemory>(&self, memory: &M) -> bool {
        let gc64 = self.layout.is_gc64();
        let main_thread = memory.read_ref(gc64, field(self.global, self.layout.g_mainthref));
        let global = memory.read_ref(gc64, field(self.main_thread, self.layout.l_glref));
        main_thread == Ok(self.main_thread)
            && global == Ok(self.global)
            && type_of(memory, &self.layout, self.main_thread) == Ok(gct::THREAD)
            // A closed VM has freed everything but itself.
            && memory
                .read_ref(gc64, field(self.global, self.layout.g_gc_total))
                .is_ok_and(|total| total > u64::from(self.layout.g_to_bcff))
    }

    /// Whether a field is undecided that is needed to read traces. The end of the `global_State` (`sizeof_g`) is not
    /// needed, and no trace shows it.
    pub fn leaves_traces_open(&self) -> bool {
        self.undecided.iter().any(|&field| field != "sizeof_g")
    }

    /// Takes over the decided fields of another VM that runs the same interpreter code: it is the same build. Returns
    /// whether these were more fields than before.
    pub fn learn_from(&mut self, other: &Self) -> bool {
        let is_more = self.text.range == other.text.range && other.undecided.len() < self.undecided.len();
        if is_more {
            self.layout = other.layout;
            self.builds.clone_from(&other.builds);
            self.undecided.clone_from(&other.undecided);
        }
        is_more
    }

    /// The VM's configuration for the probes.
    pub fn config(&self) -> VmConfig {
        let text = (self.text.range.start, self.text.range.end);
        let mut config = VmConfig::new(self.global, self.main_thread, text, self.layout);
        let Edges { entering, returning, leaving, callback_left, continuing, callback_calls, .. } = &self.text.edges;
        let Edges { links, base_in_state, base_kept, results_stored, frame_left, pc_elsewhere, .. } = &self.text.edges;
        let Edges { beside_traces, before_fetch, callback_code, .. } = &self.text.edges;
        config.edges = VmEdges {
            entering: self.places(entering),
            returning: self.places(returning),
            leaving: self.places(leaving),
            callback_left: self.places(callback_left),
            continuing: self.places(continuing),
            callback_calls: self.offsets(callback_calls),
            callback_code: self.places(callback_code),
            links: self.offsets(links),
            base_in_state: self.places(base_in_state),
            base_kept: self.places(base_kept),
            results_stored: self.places(results_stored),
            frame_left: self.places(frame_left),
            pc_elsewhere: self.places(pc_elsewhere),
            beside_traces: self.places(beside_traces),
            before_fetch: self.places(before_fetch),
        };
        config
    }

    /// Addresses in the interpreter's code, as the offsets that the probes use.
    fn offsets<const N: usize>(&self, addresses: &[u64]) -> [u32; N] {
        debug_assert!(addresses.len() <= N, "{} addresses, room for {N}", addresses.len());
        let offset = |address: &u64| address.saturating_sub(self.text.range.start) as u32;
        std::array::from_fn(|index| addresses.get(index).map_or(NOWHERE, offset))
    }

    /// Ranges of the interpreter's code, or of code near it, as the offsets that the probes use.
    fn places<const N: usize>(&self, ranges: &[Range<u64>]) -> [CodeRange; N] {
        debug_assert!(ranges.len() <= N, "{} ranges, room for {N}", ranges.len());
        let start = self.text.range.start;
        let place = |range: &Range<u64>| CodeRange {
            start: range.start.wrapping_sub(start) as u32,
            end: range.end.wrapping_sub(start) as u32,
        };
        std::array::from_fn(|index| ranges.get(index).map_or_else(CodeRange::default, place))
    }

    /// Size of the VM's first block in bytes: `sizeof(GG_State)` (`lj_dispatch.h`). Its last member is the bytecode of
    /// the assembler functions: one instruction for each entry of the dispatch table after the bytecodes. [`None`] if
    /// the place of that member is not known.
    pub fn first_block_size(&self) -> Option<u64> {
        let layout = &self.layout;
        if [layout.g_to_bcff, layout.dispatch_len, layout.bc_funcc].contains(&ABSENT) {
            return None;
        }
        // FUNCC and FUNCCW are the last bytecodes (`lj_bc.h`).
        let functions = u64::from(layout.dispatch_len.checked_sub(layout.bc_funcc + 2)?);
        let size = self.global.wrapping_sub(self.main_thread) + u64::from(layout.g_to_bcff) + 4 * functions;
        Some(size.next_multiple_of(8))
    }

    /// A VM with the same layout that was created after this one was found: its `global_State` is at `global`.
    pub fn copy_at(&self, global: u64) -> Self {
        let main_thread = global.wrapping_sub(self.global.wrapping_sub(self.main_thread));
        Self { global, main_thread, ..self.clone() }
    }

    /// A description for users: the builds that have its layout, and the width of its references.
    pub fn describe(&self) -> String {
        let width = if self.layout.is_gc64() { "GC64" } else { "no GC64" };
        format!("LuaJIT like {} ({width})", self.builds.join("; "))
    }

    /// Which fork of LuaJIT it is, as far as its layout shows: `LuaJIT`, `OpenResty's LuaJIT`, `Tarantool's LuaJIT`, or
    /// several of them.
    pub fn fork(&self) -> String {
        fork(&self.builds)
    }

    /// Address of its `jit_State`, if it has one and its offset is known.
    pub fn jit_state(&self) -> Option<u64> {
        (self.layout.g_to_j != ABSENT).then(|| field(self.global, self.layout.g_to_j))
    }

    /// Which numbering of bytecodes it uses.
    pub fn bytecode_set(&self) -> BytecodeSet {
        prove::bytecode_set(&self.layout)
    }
}

/// The forks that builds belong to: the table names OpenResty's `or...` and Tarantool's `tt...`.
fn fork(builds: &[String]) -> String {
    let mut forks: Vec<&str> = Vec::new();
    for build in builds.iter().flat_map(|builds| builds.split(", ")) {
        let fork = match build.get(..2) {
            Some("or") => "OpenResty's LuaJIT",
            Some("tt") => "Tarantool's LuaJIT",
            _ => "LuaJIT",
        };
        if !forks.contains(&fork) {
            forks.push(fork);
        }
    }
    forks.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_tell_the_fork() {
        let of = |builds: &[&str]| fork(&builds.iter().map(|&build| build.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["2021-03-23, 2022-03(Debian)"]), "LuaJIT");
        assert_eq!(of(&["or20230119, or20240314"]), "OpenResty's LuaJIT");
        assert_eq!(of(&["tt2.5+smart"]), "Tarantool's LuaJIT");
        assert_eq!(of(&["2019-01, tt2.5"]), "LuaJIT or Tarantool's LuaJIT");
    }

    #[test]
    fn what_traces_do_not_need_is_not_waited_for() {
        let layout = VmLayout::from_values(&[0; VmLayout::FIELDS.len()]);
        let text = InterpreterText { range: 0..0, exact: true, edges: Edges::default() };
        let vm = |undecided: &[&'static str]| Vm {
            global: 0,
            main_thread: 0,
            layout,
            builds: Vec::new(),
            undecided: undecided.to_vec(),
            text: text.clone(),
        };
        assert!(!vm(&[]).leaves_traces_open() && !vm(&["sizeof_g"]).leaves_traces_open());
        assert!(vm(&["sizeof_g", "sizeof_snap"]).leaves_traces_open());
    }

    #[test]
    fn what_is_decided_of_a_build_is_known_of_its_other_vms() {
        let text = |start: u64| InterpreterText { range: start..start + 8, exact: true, edges: Edges::default() };
        let vm = |start, values: u16, undecided: &[&'static str]| Vm {
            global: start,
            main_thread: 0,
            layout: VmLayout::from_values(&[values; VmLayout::FIELDS.len()]),
            builds: Vec::new(),
            undecided: undecided.to_vec(),
            text: text(start),
        };
        let (decided, mut same, mut other) = (vm(8, 1, &[]), vm(8, 2, &["sizeof_snap"]), vm(16, 2, &["sizeof_snap"]));
        assert!(same.learn_from(&decided) && same.layout == decided.layout && !same.leaves_traces_open());
        assert!(!other.learn_from(&decided) && other.leaves_traces_open());
        let mut knows = vm(8, 3, &[]);
        assert!(!knows.learn_from(&decided) && knows.layout != decided.layout);
    }
}
