//! Names of Lua functions from the functions that use them.
//!
//! The function that has defined another one gives the best name, but it is often gone: a module's chunk is collected
//! after it has run. What remains are the closures that hold the function in an upvalue, which has a name, too.
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

/// A name by use. The smallest one is the best, so it does not matter which is found first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedName {
    /// Whether a function of another chunk uses this name. A function of the same chunk sees the variable of the definition.
    pub is_foreign: bool,
    /// The name of the upvalue.
    pub name: String,
}

/// Functions that have a name by use.
#[derive(Debug)]
pub struct UsedNames {
    /// Names by the address of the prototype.
    pub names: HashMap<u64, UsedName>,
    /// Whether the list of objects changed during the walk: another walk may find more names.
    pub is_torn: bool,
}

/// The names of Lua functions as upvalues of other functions. It reads no more objects than `budget` to find functions.
///
/// Never fails: what cannot be read is missing.
pub fn used_names<M: ReadMemory>(memory: &M, vm: &Vm, budget: &mut u64) -> UsedNames {
    let pages = PageCache::reading_ahead(memory);
    let (layout, shape) = (&vm.layout, Shape::new(vm.layout));
    let gc64 = layout.is_gc64();
    // For each prototype: address of its chunkname, and names of its upvalues.
    let mut users: HashMap<u64, (u64, Vec<String>)> = HashMap::new();
    let (mut names, mut seen) = (HashMap::<u64, UsedName>::new(), HashSet::new());
    // Functions on the stack certainly exist. If the program creates objects all the time, the list of all objects
    // changes during the walk, and only by chance is it seen as a whole.
    let mut left = functions_on_stack(memory, vm);
    let (listed, is_torn) = functions(memory, vm, budget);
    left.extend(listed);
    let mut upvalues = 0;
    while let Some(function) = left.pop() {
        if !seen.insert(function) {
            continue;
        }
        // Upvalues lead to functions that are on no list: in memory that was made for it, to any number of them.
        if seen.len() > 2 * MAX_FUNCTIONS || upvalues > MAX_UPVALUES {
            break;
        }
        let Ok(Function::Lua { prototype }) = read_function(&pages, layout, function) else { continue };
        let (chunk, own) = users.entry(prototype).or_insert_with(|| {
            let key = Prototype::key_at(&pages, layout, prototype);
            let read = key.and_then(|key| Prototype::read(&pages, layout, key));
            let (chunk, own) = read.map(|prototype| (prototype.key.chunkname, prototype.upvalues)).unwrap_or_default();
            upvalues += own.len();
            (chunk, own)
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

/// The most functions that are read from the list of all objects.
const MAX_FUNCTIONS: usize = 1 << 16;

/// The most names of upvalues that are kept.
const MAX_UPVALUES: usize = 1 << 20;

/// Possible functions on the list of all objects, the newest first. The second result tells whether the end of the list
/// was missed because the list changed.
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

/// Possible functions on the stacks of the main thread and of the running coroutine.
fn functions_on_stack<M: ReadMemory>(memory: &M, vm: &Vm) -> Vec<u64> {
    /// The most slots of a stack that are read: some thousand frames.
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
            // There, the upper half of a frame's slot is its link (`FrameLink`, `lj_obj.h`).
            Value::Other if !gc64 => Some(word & 0xffff_ffff),
            _ => None,
        })
        .collect()
}
