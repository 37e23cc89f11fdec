//! What Lua functions are called by those that use them.
//!
//! The function that has defined another one tells its name best, but is often gone: a module's chunk is collected once it has
//! run. What remains are the closures that have it in an upvalue, which has a name, too.
//!
//! LuaJIT's sources: [`FrameLink`].
//!
//! [`FrameLink`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L167-L205

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use lj_trace_common::layout::{ABSENT, gct};
use lj_trace_common::memory::ReadMemory;

use super::list::{ListEnd, ListWalk};
use crate::machine::Vm;
use crate::object::{Function, field, read_function, read_some};
use crate::page_cache::PageCache;
use crate::prototype::Prototype;
use crate::shape::Shape;
use crate::value::{self, Value};

/// A name by use: the best one is the smallest, so that it does not matter which is found first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedName {
    /// Whether a function of another chunk uses it under this name. One of the same chunk has the variable that it was
    /// defined as.
    pub is_foreign: bool,
    /// The upvalue.
    pub name: String,
}

/// What is called by its use.
#[derive(Debug)]
pub struct UsedNames {
    /// By the address of the prototype.
    pub names: HashMap<u64, UsedName>,
    /// Whether the program got in the way: another look may find more.
    pub is_torn: bool,
}

/// The names of Lua functions as upvalues of other functions have them. It looks at no more objects than `budget` to find
/// functions.
///
/// Never fails: what cannot be read is missing.
pub fn used_names<M: ReadMemory>(memory: &M, vm: &Vm, budget: &mut u64) -> UsedNames {
    let pages = PageCache::new(memory);
    let (layout, shape) = (&vm.layout, Shape::new(vm.layout));
    let gc64 = layout.is_gc64();
    // By prototype: its chunk's name, and those of its upvalues.
    let mut users: HashMap<u64, (u64, Vec<String>)> = HashMap::new();
    let (mut names, mut seen) = (HashMap::<u64, UsedName>::new(), HashSet::new());
    // What runs is there for certain. The list of all objects changes while it is walked, where the program makes some all
    // the time, and is seen as a whole by chance only.
    let mut left = functions_on_stack(memory, vm);
    let (listed, is_torn) = functions(memory, vm, budget);
    left.extend(listed);
    while let Some(function) = left.pop() {
        if !seen.insert(function) {
            continue;
        }
        let Ok(Function::Lua { prototype }) = read_function(&pages, layout, function) else { continue };
        let (chunk, own) = users.entry(prototype).or_insert_with(|| {
            let key = Prototype::key_at(&pages, layout, prototype);
            let read = key.and_then(|key| Prototype::read(&pages, layout, key));
            read.map(|prototype| (prototype.key.chunkname, prototype.upvalues)).unwrap_or_default()
        });
        let count = pages.read::<u8>(field(function, layout.fn_nupvalues)).unwrap_or(0);
        for (index, name) in (0..u64::from(count)).zip(own.iter()) {
            let reference = function.wrapping_add(shape.upvalue_references() + index * shape.reference);
            let value = pages
                .read_ref(gc64, reference)
                .and_then(|upvalue| pages.read_ref(gc64, upvalue.wrapping_add(shape.upvalue_pointer())))
                .and_then(|place| value::read(&pages, layout, place));
            let Ok(Value::Object { gct: gct::FUNC, address }) = value else { continue };
            left.push(address);
            let Ok(Function::Lua { prototype }) = read_function(&pages, layout, address) else { continue };
            let Ok(key) = Prototype::key_at(&pages, layout, prototype) else { continue };
            let name = UsedName { is_foreign: key.chunkname != *chunk, name: name.clone() };
            match names.get(&prototype) {
                Some(known) if *known <= name => {}
                _ => drop(names.insert(prototype, name)),
            }
        }
    }
    UsedNames { names, is_torn }
}

/// More functions are not looked at.
const MAX_FUNCTIONS: usize = 1 << 16;

/// What may be a function on the list of all objects, the newest first; and whether the end of the list was missed, since it
/// changed.
fn functions<M: ReadMemory>(memory: &M, vm: &Vm, budget: &mut u64) -> (HashSet<u64>, bool) {
    let (mut found, mut walk) = (HashSet::new(), ListWalk::default());
    let end = walk.go_on(memory, vm, budget, |_, object, _| {
        if object.kind == gct::FUNC {
            found.insert(object.address);
        }
        Some(if found.len() < MAX_FUNCTIONS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    });
    (found, end == ListEnd::Budget && walk.was_led_astray())
}

/// What may be a function on the stacks of the main thread and of the coroutine that runs.
fn functions_on_stack<M: ReadMemory>(memory: &M, vm: &Vm) -> Vec<u64> {
    /// The part of a stack that is looked through, in slots: some thousand frames.
    const MOST: u64 = 1 << 14;
    let (layout, gc64) = (&vm.layout, vm.layout.is_gc64());
    let running = (layout.g_cur_l != ABSENT).then(|| memory.read_ref(gc64, field(vm.global, layout.g_cur_l)).ok());
    let threads: BTreeSet<u64> = running.flatten().into_iter().chain([vm.main_thread]).collect();
    let slots = threads.into_iter().filter_map(|thread| {
        let stack = memory.read_ref(gc64, field(thread, layout.l_stack)).ok()?;
        let count = memory.read::<u32>(field(thread, layout.l_stacksize)).ok()?;
        Some(read_some(memory, stack, (u64::from(count).min(MOST) * value::SIZE) as usize))
    });
    let slots: Vec<Vec<u8>> = slots.collect();
    let words = slots.iter().flat_map(|bytes| bytes.as_chunks().0).map(|word| u64::from_le_bytes(*word));
    words
        .filter_map(|word| match value::decode(gc64, word) {
            Value::Object { gct: gct::FUNC, address } => Some(address),
            // Of a frame, the upper half is its link there (`FrameLink`, `lj_obj.h`).
            Value::Other if !gc64 => Some(word & 0xffff_ffff),
            _ => None,
        })
        .collect()
}
