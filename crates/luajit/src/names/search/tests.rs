//! Lists of prototypes, made by hand.

use super::*;
use crate::machine::InterpreterText;
use crate::testing::{Saved, x64_layout};

const BASE: u64 = 0x10_0000;
const OBJECT: u64 = 0x100;
/// The chunk's name, behind all objects.
const NAME: u64 = BASE + 0xf000;
const GLOBAL: u64 = BASE + 0xe000;
const PLENTY: u64 = 1_000_000;

/// An object on the list: a table, or a prototype that makes those with these numbers.
#[derive(Clone, Copy)]
enum Object {
    Table,
    Makes(&'static [u64]),
}

fn place(number: u64) -> u64 {
    BASE + OBJECT * number
}

/// A VM with these objects, the newest first; `next` tells which one follows another.
fn vm_with(objects: &[Object], next: impl Fn(u64) -> u64) -> (Saved, Vm) {
    let layout = x64_layout("Debian", "x64gc64");
    let mut bytes = vec![0_u8; 0x10000];
    let mut put = |address: u64, word: &[u8]| bytes[(address - BASE) as usize..][..word.len()].copy_from_slice(word);
    let fnew = crate::bytecode::opcodes(crate::bytecode_set(&layout))
        .position(|opcode| opcode.op == crate::bytecode::Op::FNEW);
    put(field(GLOBAL, layout.g_gc_root), &place(0).to_le_bytes());
    put(NAME + 9, &[gct::STR]);
    for (number, object) in (0..).zip(objects) {
        let address = place(number);
        put(address, &place(next(number)).to_le_bytes());
        let Object::Makes(children) = object else {
            put(address + 9, &[gct::TAB]);
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
        put(address + 9, &[gct::PROTO]);
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

fn key(memory: &Saved, vm: &Vm, number: u64) -> PrototypeKey {
    Prototype::key_at(memory, &vm.layout, place(number)).unwrap()
}

const NESTED: [Object; 6] =
    [Object::Table, Object::Makes(&[3, 4]), Object::Table, Object::Makes(&[5]), Object::Makes(&[]), Object::Makes(&[])];

#[test]
fn parents_are_found_and_those_without_are_said_to_have_none() {
    let (memory, vm) = vm_with(&NESTED, |number| number + 1);
    let mut search = ParentSearch::default();
    let mut budget = PLENTY;
    for (child, parent) in [(3, Some(1)), (4, Some(1)), (5, Some(3)), (1, None)] {
        let expected = parent.map_or(FoundParent::None, |parent| FoundParent::Parent(place(parent)));
        assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, child), &mut budget), expected, "{child}");
    }
    let used = PLENTY - budget;
    assert!(used < 200, "{used}");
    // Once the list was looked at, nothing more is read for what was there.
    assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, 1), &mut budget), FoundParent::None);
    assert_eq!(PLENTY - budget, used);
}

#[test]
fn a_search_goes_on_where_its_budget_ended() {
    let (memory, vm) = vm_with(&NESTED, |number| number + 1);
    let child = key(&memory, &vm, 5);
    let mut search = ParentSearch::default();
    let found = (0..1000).find_map(|_| match search.parent(&memory, &vm, &child, &mut 6) {
        FoundParent::Unknown => None,
        found => Some(found),
    });
    assert_eq!(found, Some(FoundParent::Parent(place(3))));
}

#[test]
fn new_prototypes_are_found_before_what_is_known() {
    let objects = [&[Object::Makes(&[1]), Object::Makes(&[])], &[Object::Table; 50][..], &NESTED[3..5]].concat();
    // What was there at first: all from number 2 on.
    let (now, vm) = vm_with(&objects, |number| number + 1);
    let old = key(&now, &vm, 53);
    let mut search = ParentSearch::default();
    let mut budget = PLENTY;
    let (first, _) = vm_with(&objects, |number| if number == 0 { 2 } else { number + 1 });
    assert_eq!(search.parent(&first, &vm, &old, &mut budget), FoundParent::None);
    assert_eq!(search.parent(&now, &vm, &key(&now, &vm, 1), &mut budget), FoundParent::Parent(place(0)));
}

#[test]
fn another_prototype_at_the_same_address_is_searched_again() {
    let (memory, vm) = vm_with(&NESTED, |number| number + 1);
    let mut search = ParentSearch::default();
    let mut budget = PLENTY;
    let alone = key(&memory, &vm, 1);
    assert_eq!(search.parent(&memory, &vm, &alone, &mut budget), FoundParent::None);
    let left = budget;
    let other = PrototypeKey { firstline: 77, ..alone };
    assert_eq!(search.parent(&memory, &vm, &other, &mut budget), FoundParent::None);
    assert!(budget < left, "the list was not looked at");
}

#[test]
fn rings_and_torn_lists_end() {
    for entry in 0..6 {
        let (memory, vm) = vm_with(&NESTED, |number| if number == 5 { entry } else { number + 1 });
        let mut search = ParentSearch::default();
        let mut budget = 20_000;
        let child = key(&memory, &vm, 1);
        assert_eq!(search.parent(&memory, &vm, &child, &mut budget), FoundParent::Unknown, "{entry}");
        assert_eq!(budget, 0);
        // What lies on it is found all the same.
        assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, 5), &mut budget), FoundParent::Parent(place(3)));
    }
    let (memory, vm) = vm_with(&NESTED, |number| if number == 3 { 0x1000_0000 } else { number + 1 });
    let mut budget = 20_000;
    let mut search = ParentSearch::default();
    assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, 4), &mut budget), FoundParent::Parent(place(1)));
}
