//! Walks a heap: from the roots to all live objects, and then along the collector's lists to the garbage.
//!
//! The walk goes level by level, so that the path on which it first reaches an object is a shortest one. Of equally short
//! paths, the one with the first names wins ([`pending`](super::pending)). Values on stacks come after that, and references
//! from traces come last: both change often, and hold little that nothing else holds. The walk visits the objects of a
//! level in the order of their places, block by block, since a heap is larger than the cache of its blocks.
//!
//! LuaJIT's sources: [`lj_str_resize`].
//!
//! [`lj_str_resize`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_str.c#L158-L163

use lj_trace_common::layout::ABSENT;
use lj_trace_common::memory::ReadMemory;
use lj_trace_luajit::Vm;
use lj_trace_luajit::object::field;
use lj_trace_luajit::shape::Shape;
use lj_trace_luajit::value::{self, Value};
use lj_trace_process::Maps;

use super::biggest::Biggest;
use super::blocks::{Blocks, ReadSome};
use super::edges::{Edge, ObjectEdges, Step};
use super::index::{GARBAGE, Index, NO_PATH, NO_PLACE, UNREACHED};
use super::labels::{Locals, StepLabels};
use super::object::{Header, Kind, Measured, Scales};
use super::paths::{HeldSum, PathId, Paths};
use super::pending::{PathOrder, Pending, PendingLevel};

/// The number of objects in a block from which on it pays to read the whole block.
const WORTH_A_BLOCK: usize = 6;

/// The most objects without references to keep until their level is done.
const MAX_LEAVES: usize = 1 << 21;

/// The most bytes that all objects have together: twice what the index has numbers for.
const MAX_BYTES: u64 = 64 << 30;

/// The most userdata that await their finalizers.
const MAX_AWAITING: usize = 1 << 20;

/// The most chains of the table of strings (`LJ_MAX_STRTAB`).
const MAX_CHAINS: u64 = 1 << 26;

/// The number of objects between two reports of progress.
const OBJECTS_PER_LOOK: u64 = 1 << 14;

/// Where a walk starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The name of the root.
    pub name: &'static str,
    /// The address of the root object.
    pub object: u64,
}

/// Inconsistencies in a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Torn {
    /// References to an address without an object, or to an object of another type.
    pub references: u64,
    /// Objects that are on none of the collector's lists.
    pub unlisted: u64,
    /// Links of these lists that lead to an address without an object.
    pub links: u64,
}

/// Everything that a walk has found in a heap.
#[derive(Debug)]
pub struct Walked<'a> {
    /// Live objects, by [`Kind`].
    pub live: [HeldSum; Kind::ALL.len()],
    /// Garbage that is not collected yet, by [`Kind`].
    pub garbage: [HeldSum; Kind::ALL.len()],
    /// The paths through which objects are held.
    pub paths: Paths,
    /// The largest strings and tables.
    pub biggest: Biggest,
    /// Inconsistencies.
    pub torn: Torn,
    /// The objects that the walk has met.
    pub index: Index<'a>,
    /// The roots of the walk.
    pub roots: Vec<Root>,
    /// How many bytes the objects may have that are still to come. Without a limit, many objects could share one large part,
    /// which would be read for each of them.
    left: u64,
}

impl Walked<'_> {
    /// Takes the bytes of an object from those that are left; [`None`] if these are too few.
    fn spend(&mut self, measured: Measured) -> Option<Measured> {
        self.left = self.left.checked_sub(measured.bytes)?;
        Some(measured)
    }

    /// Counts a live object; [`None`] if there is no object, or an object of another type.
    fn take<M: ReadSome>(
        &mut self,
        blocks: &Blocks<M>,
        scales: &Scales<'_, M>,
        shape: &Shape,
        pending: Pending,
        address: u64,
    ) -> Option<(Header, Kind)> {
        let object = Header::read(blocks, shape, address);
        let object = object.filter(|object| pending.gct() == 0 || object.gct(shape) == Some(pending.gct()));
        let measured = object.and_then(|object| Some((object, self.spend(scales.measure(&object)?)?)));
        let Some((object, measured)) = measured else {
            self.torn.references += 1;
            // This is part of the VM's block and not an object, so no list has to contain it.
            self.index.list(pending.place);
            return None;
        };
        self.list(object.next(shape));
        self.live[measured.kind as usize].add(measured.bytes);
        self.paths.add(pending.path(), measured.kind, measured.bytes);
        self.biggest.offer(measured.kind, measured.bytes, address, pending.path());
        Some((object, measured.kind))
    }

    /// Notes that a list of objects contains `address`.
    fn list(&mut self, address: u64) {
        if address != 0
            && let Some(place) = self.index.place(address)
        {
            self.index.list(place);
        }
    }
}

/// The block that a VM begins with (`GG_State`). Its parts, such as the empty string and the trace that is being recorded,
/// are not objects of their own; the main thread is.
#[derive(Clone, Debug)]
struct VmBlock {
    main_thread: u64,
    end: u64,
}

impl VmBlock {
    fn of(vm: &Vm) -> Self {
        let size = vm.first_block_size().unwrap_or(u64::from(vm.layout.g_to_bcff));
        Self { main_thread: vm.main_thread, end: vm.main_thread.saturating_add(size) }
    }

    fn has(&self, address: u64) -> bool {
        address > self.main_thread && address < self.end
    }
}

/// A walk.
pub struct Walker<'a, M> {
    vm: &'a Vm,
    shape: Shape,
    blocks: &'a Blocks<M>,
    scales: Scales<'a, M>,
    edges: ObjectEdges<'a, M>,
    labels: &'a StepLabels<'a, M>,
    state: VmBlock,
    next: PendingLevel,
    leaves: PendingLevel,
    /// The objects on stacks, and the objects that traces refer to.
    later: [PendingLevel; 2],
    order: PathOrder,
    found: Walked<'a>,
    tick: &'a mut dyn FnMut(u64),
    looked_at: u64,
}

impl<'a, M: ReadSome> Walker<'a, M> {
    /// A walk over the heap of `vm`. It finds the `top` largest objects, and with `keeps_paths` keeps the path to each
    /// object. It calls `tick` from time to time with the number of visited objects.
    pub fn new(
        blocks: &'a Blocks<M>,
        maps: &'a Maps,
        vm: &'a Vm,
        labels: &'a StepLabels<'a, M>,
        (top, keeps_paths): (usize, bool),
        tick: &'a mut dyn FnMut(u64),
    ) -> Self {
        let shape = Shape::new(vm.layout);
        let found = Walked {
            live: Default::default(),
            garbage: Default::default(),
            paths: Paths::default(),
            biggest: Biggest::new(top),
            torn: Torn::default(),
            index: Index::new(maps, keeps_paths),
            roots: Vec::new(),
            left: 0,
        };
        let (scales, edges) = (Scales::new(blocks, shape, vm.global), ObjectEdges::new(blocks, shape, vm.global));
        // In a heap that is not stopped, some objects may be seen twice.
        let found = Walked { left: scales.limit().saturating_mul(2).min(MAX_BYTES), ..found };
        Self {
            vm,
            shape,
            blocks,
            scales,
            edges,
            labels,
            state: VmBlock::of(vm),
            next: PendingLevel::default(),
            leaves: PendingLevel::default(),
            later: Default::default(),
            order: PathOrder::default(),
            found,
            tick,
            looked_at: 0,
        }
    }

    /// Runs the walk.
    pub fn run(mut self) -> Walked<'a> {
        self.roots();
        self.levels();
        // A stack may refer to a coroutine that has a stack of its own.
        while let Some(later) = self.later.iter_mut().find(|later| !later.is_empty()) {
            self.next = std::mem::take(later);
            self.levels();
        }
        self.list_heads();
        self.unreached();
        self.found.torn.unlisted = self.found.index.met_only();
        self.found
    }

    fn roots(&mut self) {
        let s = self.shape;
        let l = &self.vm.layout;
        let global = self.vm.global;
        let reference = |at: u64| self.blocks.read_ref(s.gc64(), at).unwrap_or(0);
        let mut roots = Vec::new();
        let mut root = |name, object| roots.push(Root { name, object });
        root("globals", reference(self.vm.main_thread.wrapping_add(s.thread_env())));
        if let Ok(Value::Object { address, .. }) = value::read(self.blocks, l, field(global, l.g_registrytv)) {
            root("registry", address);
        }
        root("main coroutine", self.vm.main_thread);
        if let Some(thread) = s.vm_thread() {
            root("VM's coroutine", reference(global.wrapping_add(thread)));
        }
        // The names of metamethods, metatables of types, default files, the table of finalizers of cdata.
        let end = if l.sizeof_g == ABSENT { l.g_gcroot.saturating_add(40 * s.reference as u16) } else { l.sizeof_g };
        let end = if l.g_top_frame_info == ABSENT { end } else { end.min(l.g_top_frame_info) };
        for at in (l.g_gcroot..end.saturating_sub(s.reference as u16 - 1)).step_by(s.reference as usize) {
            root("VM", reference(field(global, at)));
        }
        // A ring of userdata that await their finalizers.
        let last = reference(global.wrapping_add(s.mmudata()));
        let mut at = last;
        let mut is_ring = last == 0;
        for _ in 0..MAX_AWAITING {
            if at == 0 || is_ring {
                break;
            }
            at = reference(at);
            root("awaiting finalization", at);
            is_ring = at == last;
        }
        self.found.torn.links += u64::from(!is_ring);
        roots.retain(|root: &Root| root.object != 0);
        let mut paths: Vec<(&str, PathId)> = Vec::new();
        for (number, root) in roots.iter().enumerate() {
            let known = paths.iter().find(|(name, _)| *name == root.name).map(|(_, path)| *path);
            let path = known.unwrap_or_else(|| {
                let path = self.found.paths.root(root.name);
                paths.push((root.name, path));
                path
            });
            let parent = (NO_PLACE + number.min(1 << 14) as u32).min(UNREACHED - 1);
            if let Some(place) = self.found.index.place(root.object) {
                self.next.add(Pending::new(place, parent, 0, path), &mut self.order, &self.found.paths);
            }
            if root.name == "awaiting finalization" {
                self.found.list(root.object);
            }
        }
        self.found.roots = roots;
    }

    fn tick(&mut self) {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(OBJECTS_PER_LOOK) {
            (self.tick)(self.looked_at);
        }
    }

    /// Walks until no object is left to visit.
    fn levels(&mut self) {
        while !self.next.is_empty() {
            let level = self.next.take(&mut self.order, &self.found.paths);
            self.level(&level);
            self.take_leaves();
        }
    }

    fn take_leaves(&mut self) {
        let leaves = self.leaves.take(&mut self.order, &self.found.paths);
        self.level(&leaves);
    }

    fn level(&mut self, level: &[Pending]) {
        let mut prepared = 0;
        for (position, pending) in level.iter().enumerate() {
            let address = self.found.index.address(pending.place);
            if position >= prepared {
                let range = pending.place.range();
                let count = level[position..].iter().take_while(|other| other.place.range() == range).count();
                if count >= WORTH_A_BLOCK {
                    self.blocks.expect_many(address);
                }
                prepared = position + count;
            }
            self.tick();
            if self.found.index.meet(pending.place, pending.parent, pending.path().0) {
                self.look_at(*pending, address);
            }
            if self.leaves.len() >= MAX_LEAVES {
                self.take_leaves();
            }
        }
    }

    fn look_at(&mut self, pending: Pending, address: u64) {
        let Self { blocks, scales, edges, labels, found, next, leaves, later, order, state, shape, .. } = self;
        let Some((object, kind)) = found.take(blocks, scales, shape, pending, address) else { return };
        if ObjectEdges::<M>::is_leaf(object.gct(shape).unwrap_or(0)) {
            return;
        }
        found.list(edges.own_list(&object));
        let locals = if kind == Kind::Thread { labels.locals(&object) } else { Locals::new() };
        let [on_stacks, of_traces] = later;
        edges.of(&object, &mut |edge: Edge| {
            if state.has(edge.to) {
                return;
            }
            let Some(place) = found.index.place(edge.to) else {
                found.torn.references += 1;
                return;
            };
            if found.index.is_met(place) {
                return;
            }
            let path = labels.follow(&mut found.paths, pending.path(), &edge.step, &locals);
            let met = Pending::new(place, pending.place.0, edge.gct, path);
            let level = match edge.step {
                Step::Slot { .. } => &mut *on_stacks,
                Step::Trace => &mut *of_traces,
                _ if ObjectEdges::<M>::is_leaf(edge.gct) => &mut *leaves,
                _ => &mut *next,
            };
            level.add(met, order, &found.paths);
        });
    }

    /// Notes the heads of the collector's lists.
    fn list_heads(&mut self) {
        let s = self.shape;
        let l = self.vm.layout;
        let first = self.blocks.read_ref(s.gc64(), field(self.vm.global, l.g_gc_root)).unwrap_or(0);
        self.found.list(first);
        self.found.list(self.vm.main_thread);
        let table = self.blocks.read_ref(s.gc64(), field(self.vm.global, l.g_str_tab)).unwrap_or(0);
        let mask: u32 = self.blocks.read(field(self.vm.global, l.g_str_mask)).unwrap_or(0);
        let mut buffer = vec![0; 1 << 14];
        let chains = u64::from(mask) + 1;
        if chains > MAX_CHAINS {
            self.found.torn.links += 1;
            return;
        }
        let size = chains * s.reference;
        let mut done = 0;
        while done < size {
            let wanted = (size - done).min(buffer.len() as u64) as usize;
            let read = self.blocks.copy(table.wrapping_add(done), &mut buffer[..wanted]);
            for bytes in buffer[..read].chunks_exact(s.reference as usize) {
                let word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
                // The lowest bit is set if a chain has strings with another hash (`lj_str.c`, since 2020).
                self.found.list(word & !1);
            }
            if read < wanted {
                self.found.torn.links += 1;
                return;
            }
            done += wanted as u64;
        }
    }

    /// Follows the lists to every object that was not reached.
    fn unreached(&mut self) {
        /// `LJ_GC_FIXED`, `LJ_GC_SFIXED`: such objects are never collected, even without references to them.
        const FIXED: u8 = 0x60;
        let shape = self.shape;
        let mut fixed = None;
        let mut pending = self.found.index.listed_only();
        // The list is sorted by place. `pop` takes from its end, so reverse it.
        pending.reverse();
        while let Some(place) = pending.pop() {
            if self.found.index.is_met(place) {
                continue;
            }
            self.tick();
            let address = self.found.index.address(place);
            if self.state.has(address) {
                self.found.index.meet(place, UNREACHED, NO_PATH);
                continue;
            }
            let object = Header::read(self.blocks, &shape, address);
            let measured = object.and_then(|object| Some((object, self.found.spend(self.scales.measure(&object)?)?)));
            let Some((object, measured)) = measured else {
                self.found.torn.links += 1;
                self.found.index.meet(place, UNREACHED, NO_PATH);
                continue;
            };
            if object.u8(shape.marked()).is_some_and(|marked| marked & FIXED != 0) {
                let path = *fixed.get_or_insert_with(|| self.found.paths.root("VM (fixed)"));
                self.found.live[measured.kind as usize].add(measured.bytes);
                self.found.paths.add(path, measured.kind, measured.bytes);
                self.found.index.meet(place, UNREACHED, path.0);
            } else {
                self.found.index.meet(place, UNREACHED, GARBAGE);
                self.found.garbage[measured.kind as usize].add(measured.bytes);
            }
            for next in [object.next(&shape), self.edges.own_list(&object)] {
                if next != 0
                    && let Some(place) = self.found.index.place(next)
                {
                    self.found.index.list(place);
                    pending.push(place);
                }
            }
        }
    }
}
