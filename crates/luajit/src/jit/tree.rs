//! The tree of traces: which side trace belongs to which root, where each starts, which trace it links to, and which
//! exits are taken.
//!
//! A side trace does not store its parent, but its first instruction has the parent's number and the number of the exit that it
//! continues ([`lj_record_setup`], `lj_record.c`); in a stitched trace, it has the number of the trace before. Each snapshot
//! counts how often its exit was taken until a side trace was made for it. The last snapshot of a trace without a loop is its
//! end, and is marked in the same way ([`SnapShot`], `lj_jit.h`; [`trace_hotside`], [`trace_state`], `lj_trace.c`).
//!
//! LuaJIT's sources: [`TraceLink`].
//!
//! [`lj_record_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_record.c#L2863-L2973
//! [`SnapShot`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L179-L190
//! [`trace_hotside`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L798-L812
//! [`trace_state`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L738
//! [`TraceLink`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L236-L247

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::ReadMemory;
use lj_trace_process::Maps;
use serde::Serialize;

use super::places::{CodePlaces, Place};
use crate::object::{read_bytes, read_some};
use crate::{Trace, Vm, read_traces, trace_at};

/// `SNAPCOUNT_DONE`: a side trace continues there.
const DONE: u8 = 255;

/// The kind of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceKind {
    /// It starts at a loop or function.
    Root,
    /// It continues another trace's exit.
    Side,
    /// It continues after a call that the trace before it could not include.
    Stitched,
}

/// How a trace ends (`TraceLink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// In another root trace.
    Root,
    /// In itself: a loop.
    Loop,
    /// In itself, as a tail call.
    TailRecursion,
    /// In itself, as a call.
    UpRecursion,
    /// In itself, as a return.
    DownRecursion,
    /// In the interpreter: LuaJIT has given up on compiling the code after it.
    Interpreter,
    /// In the interpreter, by a return.
    Return,
    /// In a function that cannot be compiled, and then another trace.
    Stitch,
}

impl Link {
    fn of(number: u8) -> Option<Self> {
        const ALL: [Link; 8] = [
            Link::Root,
            Link::Loop,
            Link::TailRecursion,
            Link::UpRecursion,
            Link::DownRecursion,
            Link::Interpreter,
            Link::Return,
            Link::Stitch,
        ];
        // 0 stands for a trace without a link.
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The link as one word, as in LuaJIT's own tools.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Loop => "loop",
            Self::TailRecursion => "tail-recursion",
            Self::UpRecursion => "up-recursion",
            Self::DownRecursion => "down-recursion",
            Self::Interpreter => "interpreter",
            Self::Return => "return",
            Self::Stitch => "stitch",
        }
    }
}

/// An exit that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceExit {
    /// Its number.
    pub number: usize,
    /// How often it was taken while no side trace continued it. [`None`] if a side trace does: then nothing counts.
    pub taken: Option<u8>,
    /// Number of the side trace that continues it.
    pub to: Option<u16>,
    /// Where it leads in the Lua code, if that is known.
    pub place: Option<Place>,
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceNode {
    /// Its number.
    pub number: u16,
    /// The kind of the trace.
    pub kind: TraceKind,
    /// Number of the trace that it continues or follows; [`None`] for a root trace, or if that is not known.
    pub parent: Option<u16>,
    /// Number of the parent's exit that a side trace continues.
    pub exit: Option<u16>,
    /// Number of the root trace that a side trace belongs to.
    pub root: Option<u16>,
    /// How it ends; [`None`] if that is not known.
    pub link: Option<Link>,
    /// Number of the trace that it links to.
    pub linked: Option<u16>,
    /// Whether LuaJIT gave up on continuing it: the trace after it could not be recorded.
    pub stitch_given_up: bool,
    /// Where it starts; [`None`] if the function was collected.
    pub start: Option<Place>,
    /// Size of its machine code in bytes.
    pub code: u64,
    /// Number of instructions of its intermediate code.
    pub instructions: u32,
    /// Number of its snapshots; [`None`] if the layout of traces is undecided.
    pub snapshots: Option<u16>,
    /// Memory of its snapshots in bytes, without the parts that belong to other traces.
    pub snapshot_bytes: Option<u64>,
    /// The exits that were taken; [`None`] if their counters could not be read.
    pub exits: Option<Vec<TraceExit>>,
}

/// All traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceTree {
    /// The traces, in the order of their numbers.
    pub nodes: Vec<TraceNode>,
    /// The headers of the same traces.
    pub traces: Vec<Trace>,
    /// How many traces were left out because they were flushed or replaced while they were read.
    pub changed: usize,
}

/// The most exits of all traces: LuaJIT's own limits allow half a million. Those of further traces are not read.
const MOST_EXITS: usize = 1 << 20;

/// Reads all traces of `vm`. `maps` must be recent.
pub fn read_tree<M: ReadMemory>(memory: &M, maps: &Maps, vm: &Vm, places: &CodePlaces<'_, M>) -> TraceTree {
    let all = read_traces(memory, maps, vm);
    let count = all.len();
    let (mut tree, mut most) = (TraceTree::default(), MOST_EXITS);
    for trace in all {
        let node = read_node(memory, vm, &trace, places, &mut most);
        // The data belong together only if the trace is still the same.
        if trace_at(memory, vm, trace.address).is_some_and(|now| trace.is_same(&now)) {
            tree.nodes.push(node);
            tree.traces.push(trace);
        }
    }
    tree.changed = count - tree.nodes.len();
    join_exits(&mut tree.nodes);
    tree
}

fn read_node<M: ReadMemory>(
    memory: &M,
    vm: &Vm,
    trace: &Trace,
    places: &CodePlaces<'_, M>,
    most: &mut usize,
) -> TraceNode {
    /// `REF_BASE`: the reference of a trace's first instruction.
    const BASE: u64 = 0x8000;
    let base: Option<u64> = memory.read(trace.ir.wrapping_add(8 * BASE)).ok();
    let (first, second) = (base.map(|base| base as u16), base.map(|base| (base >> 16) as u16));
    let (kind, parent, exit) = match (trace.root, first, second) {
        (0, Some(0), Some(before)) if before != 0 => (TraceKind::Stitched, second, None),
        (0, ..) => (TraceKind::Root, None, None),
        _ => (TraceKind::Side, first.filter(|parent| *parent != 0), second),
    };
    let link = trace.linktype.and_then(Link::of);
    let snapshot_bytes = trace.nsnap.filter(|_| vm.layout.sizeof_snap != ABSENT);
    TraceNode {
        number: trace.number,
        kind,
        parent,
        exit,
        root: (trace.root != 0).then_some(trace.root),
        link,
        linked: (trace.link != 0).then_some(trace.link),
        stitch_given_up: link == Some(Link::Stitch) && trace.link == trace.number,
        start: places.at(trace.startpc),
        code: trace.mcode.end - trace.mcode.start,
        instructions: trace.nins.saturating_sub(BASE as u32 + 1),
        snapshots: trace.nsnap,
        snapshot_bytes: snapshot_bytes.map(|count| u64::from(count) * u64::from(vm.layout.sizeof_snap)),
        exits: read_exits(memory, vm, trace, places, most),
    }
}

fn read_exits<M: ReadMemory>(
    memory: &M,
    vm: &Vm,
    trace: &Trace,
    places: &CodePlaces<'_, M>,
    most: &mut usize,
) -> Option<Vec<TraceExit>> {
    let layout = &vm.layout;
    if layout.sizeof_snap == ABSENT || layout.snap_nent == ABSENT {
        return None;
    }
    let size = usize::from(layout.sizeof_snap);
    let bytes = read_bytes(memory, trace.snap, size * usize::from(trace.nsnap?)).ok()?;
    let mut exits = Vec::new();
    *most = most.checked_sub(bytes.len() / size)?;
    for (number, snapshot) in bytes.chunks_exact(size).enumerate() {
        // `count` follows `nent` in every build.
        let [entries, count] = *snapshot.get(usize::from(layout.snap_nent)..)?.first_chunk()?;
        let is_end = count == DONE && trace.mcloop == 0 && number + 1 == bytes.len() / size;
        if count == 0 || is_end {
            continue;
        }
        // Snapshots of 8 bytes have 16-bit offsets into the snapshot map.
        let map = match size {
            8 => u64::from(u16::from_le_bytes(*snapshot.first_chunk()?)),
            _ => u64::from(u32::from_le_bytes(*snapshot.first_chunk()?)),
        };
        let pc = snapshot_pc(memory, trace.snapmap.wrapping_add(4 * (map + u64::from(entries))), layout.is_gc64());
        exits.push(TraceExit {
            number,
            taken: (count != DONE).then_some(count),
            to: None,
            place: pc.and_then(|pc| places.at(pc)),
        });
    }
    Some(exits)
}

/// The PC of a snapshot, which follows its entries.
fn snapshot_pc<M: ReadMemory>(memory: &M, at: u64, gc64: bool) -> Option<u64> {
    let bytes = read_some(memory, at, if gc64 { 8 } else { 4 });
    match gc64 {
        true => Some(u64::from_le_bytes(*bytes.first_chunk()?) >> 8),
        false => Some(u64::from(u32::from_le_bytes(*bytes.first_chunk()?))),
    }
}

/// Sets the side trace of each exit that has one.
fn join_exits(nodes: &mut [TraceNode]) {
    let sides: std::collections::HashMap<(u16, usize), u16> = nodes
        .iter()
        .filter(|node| node.kind == TraceKind::Side)
        .filter_map(|node| Some(((node.parent?, usize::from(node.exit?)), node.number)))
        .collect();
    for node in nodes {
        let number = node.number;
        for exit in node.exits.iter_mut().flatten() {
            exit.to = sides.get(&(number, exit.number)).copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, kind: TraceKind, parent: Option<u16>, exit: Option<u16>) -> TraceNode {
        let exits = [3, 5].map(|number| TraceExit { number, taken: None, to: None, place: None });
        TraceNode {
            number,
            kind,
            parent,
            exit,
            root: None,
            link: None,
            linked: None,
            stitch_given_up: false,
            start: None,
            code: 0,
            instructions: 0,
            snapshots: None,
            snapshot_bytes: None,
            exits: Some(exits.to_vec()),
        }
    }

    #[test]
    fn exits_lead_to_the_side_traces_that_continue_them() {
        let mut nodes = [
            node(1, TraceKind::Root, None, None),
            node(2, TraceKind::Side, Some(1), Some(5)),
            node(3, TraceKind::Stitched, Some(1), None),
        ];
        join_exits(&mut nodes);
        let led: Vec<_> = nodes[0].exits.iter().flatten().map(|exit| exit.to).collect();
        assert_eq!(led, [None, Some(2)]);
        assert!(nodes[1].exits.iter().flatten().all(|exit| exit.to.is_none()));
    }

    #[test]
    fn links_have_the_numbers_of_every_build() {
        assert_eq!(
            (Link::of(0), Link::of(1), Link::of(8), Link::of(9)),
            (None, Some(Link::Root), Some(Link::Stitch), None)
        );
    }
}
