//! What Lua functions are called by those that use them.
//!
//! The function that has defined another one tells its name best, but is often gone: a chunk is collected once it has
//! run. What remains are the closures that have it in an upvalue, which has a name, too.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lj_trace_common::layout::gct;
use lj_trace_common::memory::ReadMemory;

use super::heap;
use super::machine::Vm;
use super::object::{Function, field, read_function};
use super::page_cache::PageCache;
use super::prototype::Prototype;
use super::value::{self, Value};
use crate::heap::shape::Shape;

/// It takes no longer: somebody is waiting.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// The names of Lua functions by the addresses of their prototypes, as upvalues of other functions have them.
///
/// Never fails: what cannot be read is missing.
pub fn used_names<M: ReadMemory>(memory: &M, vm: &Vm) -> HashMap<u64, String> {
    let started = Instant::now();
    let pages = PageCache::new(memory);
    let (layout, shape) = (&vm.layout, Shape::new(vm.layout));
    let gc64 = layout.is_gc64();
    let mut upvalues: HashMap<u64, Vec<String>> = HashMap::new();
    let mut names = HashMap::new();
    for function in heap::functions(memory, vm) {
        if started.elapsed() > TIME_LIMIT {
            break;
        }
        let Ok(Function::Lua { prototype }) = read_function(&pages, layout, function) else { continue };
        let own = upvalues.entry(prototype).or_insert_with(|| {
            let read =
                Prototype::key_at(&pages, layout, prototype).and_then(|key| Prototype::read(&pages, layout, key));
            read.map(|prototype| prototype.upvalues).unwrap_or_default()
        });
        let count = pages.read::<u8>(field(function, layout.fn_nupvalues)).unwrap_or(0);
        for (index, name) in (0..u64::from(count)).zip(own.iter()) {
            let reference = function.wrapping_add(shape.upvalue_references() + index * shape.reference);
            let value = pages
                .read_ref(gc64, reference)
                .and_then(|upvalue| pages.read_ref(gc64, upvalue.wrapping_add(shape.upvalue_pointer())))
                .and_then(|place| value::read(&pages, layout, place));
            let Ok(Value::Object { gct: gct::FUNC, address }) = value else { continue };
            if let Ok(Function::Lua { prototype }) = read_function(&pages, layout, address) {
                names.entry(prototype).or_insert_with(|| name.clone());
            }
        }
    }
    names
}
