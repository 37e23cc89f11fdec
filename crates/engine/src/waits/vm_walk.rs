//! Walks the stacks of coroutines that are new or have moved since the last look.

use std::collections::HashSet;
use std::time::Instant;

use lj_trace_common::event::{FrameRecord, RecordKind};
use lj_trace_common::frame::WalkEnd;
use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::{LuaValue, Vm, VmStatus};
use lj_trace_process::clocks::ClockId;

use super::heads::CoroutineHead;
use super::requests::WaitGroup;
use super::vm_found::{Looking, VmFound, there};
use super::vm_look::CoroutineLooks;
use crate::coroutines::snapshots::{self, TOGETHER};
use crate::coroutines::view::View;
use crate::coroutines::{CoroutineSnapshot, LuaStack, Status};

/// How often to read a coroutine again that moves while it is read.
const ATTEMPTS: u32 = 3;
/// The time limit in seconds for walking the stacks of moved coroutines in one look,
const WALK_TIME: f64 = 0.003;
/// and the least number of stacks to walk regardless of it.
const LEAST_WALKS: usize = 256;
/// The most coroutine arguments of a waiting function.
const MAX_ARGUMENTS: u64 = 16;

impl CoroutineLooks {
    /// Walks these stacks. If very many coroutines have moved, only some are walked. Returns the number of coroutines that
    /// each of these represents.
    pub(super) fn walk_moved(&mut self, looking: &mut Looking<'_>, found: &mut VmFound, now: Instant) -> f64 {
        let gc64 = self.vm.layout.is_gc64();
        let current = VmStatus::read(looking.memory, &self.vm).ok().and_then(|status| status.current);
        let mut moved: Vec<usize> = (0..self.known.len()).filter(|&index| self.known[index].has_moved).collect();
        // The others become known in later looks, if they still wait.
        let most = ((WALK_TIME / self.walk_cost.max(1e-7)) as usize).max(LEAST_WALKS);
        let each = (moved.len() as f64 / most as f64).max(1.0);
        if moved.len() > most {
            for number in 0..most {
                let other = self.rng.usize(number..moved.len());
                moved.swap(number, other);
            }
            moved.truncate(most);
        }
        // What they waited for at the last look is outdated.
        let walked: HashSet<u64> = moved.iter().map(|&index| self.known[index].address).collect();
        self.links.retain(|_, parent| !walked.contains(parent));
        if let Some(requests) = looking.requests.as_mut() {
            requests.learn_from(&self.vm, moved.iter().map(|&index| self.known[index].address));
        }
        let began = ClockId::THIS_THREAD.read().unwrap_or_default();
        for some in moved.chunks(TOGETHER) {
            let threads: Vec<u64> = some.iter().map(|&index| self.known[index].address).collect();
            let live = PageCache::new(looking.memory);
            let mut number = 0;
            let Self { vm, known, index: own, doubts, links, .. } = &mut *self;
            snapshots::twice(looking.memory, vm, &threads, |thread, mut before, mut after| {
                let known = &mut known[some[number]];
                number += 1;
                let is_new = std::mem::take(&mut known.is_new);
                known.go_on(false);
                for _ in 0..ATTEMPTS {
                    if before == after {
                        break;
                    }
                    before = after;
                    after = CoroutineSnapshot::read(looking.memory, vm, thread);
                }
                let is_moving = before != after;
                let Some(snapshot) = after else {
                    doubts.over += u64::from(is_new);
                    return;
                };
                let Some(head) = CoroutineHead::of_snapshot(&snapshot) else { return };
                let status = snapshot.status(gc64);
                if is_new {
                    found.there += each * there(status);
                    doubts.over += u64::from(status == Status::Finished);
                }
                let may = match status {
                    Status::Suspended => true,
                    Status::Running => !looking.uses(head.cframe, current == Some(thread)),
                    _ => false,
                };
                if !may {
                    return;
                }
                if is_moving {
                    doubts.moving += 1;
                    known.has_moved = true;
                    return;
                }
                let view = View { live: &live, copies: snapshot.copies().to_vec() };
                let walk = LuaStack::of_waiting(&view, vm, *own, &snapshot);
                // A fiber that has resumed a coroutine waits where that coroutine does. Other coroutines have left their C
                // stack, and something else uses it by now.
                let is_left_behind = walk.frames.is_empty() && walk.end != WalkEnd::Complete;
                if status == Status::Running && (looking.names.is_resuming(&walk) || is_left_behind) {
                    return;
                }
                let (at, size) = head.window();
                let (stack, start) = snapshot.lua_stack();
                let from = (at.saturating_sub(start)) as usize;
                let Some(window) = stack.get(from..from + size) else { return };
                let mut group = WaitGroup::default();
                if let Some(requests) = looking.requests.as_mut() {
                    let runs_lua = walk.frames.iter().any(|record| record.kind == RecordKind::Lua as u8);
                    let names = &mut *looking.names;
                    group = requests.of(vm, thread, runs_lua, || names.frames(&walk));
                    // The coroutine may serve another request by now.
                    if CoroutineSnapshot::read(looking.memory, vm, thread).as_ref() != Some(&snapshot) {
                        doubts.moving += 1;
                        known.has_moved = true;
                        return;
                    }
                }
                let waits = looking.names.stack(looking.profile, (*own, looking.vms), &walk, group.frame);
                known.print = head.print(window);
                (known.own, known.waits) = (Some(waits), Some(waits).filter(|_| !group.is_left_out));
                (known.certain, known.is_fresh) = (now, true);
                let first = walk.frames.iter().find(|record| record.kind != RecordKind::CFrame as u8);
                if let Some(record) = first.filter(|record| looking.names.is_waiting_for_others(record)) {
                    links.extend(coroutines_given(&view, vm, &snapshot, record).map(|child| (child, thread)));
                }
            });
        }
        if !moved.is_empty() {
            let cost = ClockId::THIS_THREAD.read().unwrap_or_default().saturating_sub(began).as_secs_f64();
            self.walk_cost += 0.3 * (cost / moved.len() as f64 - self.walk_cost);
        }
        each
    }
}

/// The coroutines among the arguments of the C function that is a coroutine's innermost frame.
fn coroutines_given(
    view: &View<'_>,
    vm: &Vm,
    snapshot: &CoroutineSnapshot,
    record: &FrameRecord,
) -> impl Iterator<Item = u64> {
    let base = record.base;
    let slots = (0..MAX_ARGUMENTS).map(move |number| base.wrapping_add(8 * number));
    slots.take_while(move |slot| *slot < snapshot.top).filter_map(move |slot| {
        match LuaValue::decode(view, &vm.layout, snapshot.slot(slot)?) {
            LuaValue::Object("thread", address) => Some(address),
            _ => None,
        }
    })
}
