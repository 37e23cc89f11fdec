//! Hand-made lists of prototypes, and lists that a program tears.

use std::cell::Cell;

use lj_trace_common::memory::{Pod, Unreadable};

use super::*;
use crate::machine::InterpreterText;
use crate::object::field;
use crate::testing::{Saved, x64_layout};

const BASE: u64 = 0x10_0000;
const OBJECT: u64 = 0x100;
/// Address of the chunkname, after all objects.
const NAME: u64 = BASE + 0xf000;
const GLOBAL: u64 = BASE + 0xe000;
pub(super) const PLENTY: u64 = 1_000_000;

/// An object on the list: a table, or a prototype whose children have these numbers.
#[derive(Clone, Copy)]
pub(super) enum Object {
    Table,
    Makes(&'static [u64]),
}

pub(super) fn place(number: u64) -> u64 {
    BASE + OBJECT * number
}

/// A VM with these objects, the newest first; `next` gives the object that follows another.
pub(super) fn vm_with(objects: &[Object], next: impl Fn(u64) -> u64) -> (Saved, Vm) {
    let layout = x64_layout("Debian", "x64gc64");
    let mut bytes = vec![0_u8; 0x10000];
    let mut put = |address: u64, word: &[u8]| bytes[(address - BASE) as usize..][..word.len()].copy_from_slice(word);
    let fnew = crate::bytecode::opcodes(crate::bytecode_set(&layout))
        .position(|opcode| opcode.op == crate::bytecode::Op::FNEW);
    put(field(GLOBAL, layout.g_gc_root), &place(0).to_le_bytes());
    put(NAME + 9, &[lj_trace_common::layout::gct::STR]);
    for (number, object) in (0..).zip(objects) {
        let address = place(number);
        put(address, &place(next(number)).to_le_bytes());
        let Object::Makes(children) = object else {
            put(address + 9, &[lj_trace_common::layout::gct::TAB]);
            continue;
        };
        // Constants lie between the bytecode and `k`.
        let code_end = address + u64::from(layout.sizeof_pt) + 4 * children.len() as u64;
        let k = code_end.next_multiple_of(8) + 8 * children.len() as u64;
        for (index, child) in (0_u64..).zip(*children) {
            let word = fnew.unwrap() as u32 | (index as u32) << 16;
            put(address + u64::from(layout.sizeof_pt) + 4 * index, &word.to_le_bytes());
            put(k - 8 * (index + 1), &place(*child).to_le_bytes());
        }
        put(address + 9, &[lj_trace_common::layout::gct::PROTO]);
        put(field(address, layout.pt_flags), &[u8::from(!children.is_empty())]);
        put(field(address, layout.pt_sizebc), &(children.len() as u32).to_le_bytes());
        put(field(address, layout.pt_sizekgc), &(children.len() as u32).to_le_bytes());
        put(field(address, layout.pt_sizept), &(k as u32 - address as u32).to_le_bytes());
        put(field(address, layout.pt_k), &k.to_le_bytes());
        put(field(address, layout.pt_chunkname), &NAME.to_le_bytes());
        put(field(address, layout.pt_firstline), &(number as u32 + 1).to_le_bytes());
    }
    let text = InterpreterText { range: 0..0, exact: true, edges: lj_trace_unwind::vm_edges::Edges::default() };
    let main_thread = place(objects.len() as u64);
    let vm = Vm { global: GLOBAL, main_thread, layout, builds: Vec::new(), undecided: Vec::new(), text };
    (Saved::new(BASE, bytes), vm)
}

pub(super) fn key(memory: &Saved, vm: &Vm, number: u64) -> PrototypeKey {
    Prototype::key_at(memory, &vm.layout, place(number)).unwrap()
}

pub(super) const NESTED: [Object; 6] =
    [Object::Table, Object::Makes(&[3, 4]), Object::Table, Object::Makes(&[5]), Object::Makes(&[]), Object::Makes(&[])];

/// Memory with a list of objects that is torn at first.
struct Torn {
    torn: Saved,
    whole: Saved,
    is_whole: Cell<bool>,
}

impl ReadMemory for Torn {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        if self.is_whole.get() { self.whole.read(address) } else { self.torn.read(address) }
    }
}

#[test]
fn what_the_program_hid_is_looked_for_once_more() {
    // Nowhere, and to a string, which is the last of its chain.
    for astray in [0x1000_0000, (NAME - BASE) / OBJECT] {
        check_that_it_is_looked_for_again(astray);
    }
}

/// The first object leads astray, and there is no prototype before it to return to.
fn check_that_it_is_looked_for_again(astray: u64) {
    let (whole, vm) = vm_with(&NESTED, |number| number + 1);
    let (torn, _) = vm_with(&NESTED, |number| if number == 0 { astray } else { number + 1 });
    let memory = Torn { torn, whole, is_whole: Cell::new(false) };
    let key = key(&memory.whole, &vm, 1);
    let mut namer = FunctionNamer::default();
    // Searching the parent is not part of this test, so do it first.
    while namer.search.parent(&memory.whole, &vm, &key, &mut PLENTY.clone()) != FoundParent::None {}
    let looks = |namer: &mut FunctionNamer| {
        let before = namer.allowance;
        assert_eq!(namer.name(&memory, &vm, &key), None);
        before - namer.allowance
    };
    assert!(looks(&mut namer) > 0);
    assert_eq!(looks(&mut namer), 0, "once in each batch");
    namer.begin_batch();
    assert!(looks(&mut namer) > 0);
    memory.is_whole.set(true);
    namer.begin_batch();
    assert!(looks(&mut namer) > 0);
    // The list was read to its end.
    namer.begin_batch();
    assert_eq!(looks(&mut namer), 0);
}
