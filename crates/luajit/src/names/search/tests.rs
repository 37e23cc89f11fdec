//! Searches on hand-made lists.

use lj_trace_common::memory::{Pod, Unreadable};

use super::*;
use crate::names::tests::{NESTED, Object, PLENTY, key, place, vm_with};
use crate::names::used::used_names;
use crate::overlay::plain_at;
use crate::shape::Shape;
use crate::testing::Saved;
use crate::testing::hostile::Hostile;

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
    // After the whole list was read, nothing more is read for prototypes on it.
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
    // The state at first: all objects from number 2 on.
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
fn beyond_what_is_kept_those_of_one_parent_take_one_walk() {
    const CHILDREN: [u64; 8] = [42, 43, 44, 45, 46, 47, 48, 49];
    // Other prototypes that come earlier on the list fill the table.
    let objects = [&[Object::Makes(&[]); 41][..], &[Object::Makes(&CHILDREN)], &[Object::Makes(&[]); 8]].concat();
    let (memory, vm) = vm_with(&objects, |number| number + 1);
    let mut search = ParentSearch::keeping(16);
    let mut budget = PLENTY;
    let mut used = Vec::new();
    for child in CHILDREN {
        let left = budget;
        let found = search.parent(&memory, &vm, &key(&memory, &vm, child), &mut budget);
        assert_eq!(found, FoundParent::Parent(place(41)), "{child}");
        used.push(left - budget);
    }
    assert!(used[0] > 0 && used[1..].iter().all(|used| *used == 0), "{used:?}");
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
        // Objects on the list are found all the same.
        assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, 5), &mut budget), FoundParent::Parent(place(3)));
    }
    let (memory, vm) = vm_with(&NESTED, |number| if number == 3 { 0x1000_0000 } else { number + 1 });
    let mut budget = 20_000;
    let mut search = ParentSearch::default();
    assert_eq!(search.parent(&memory, &vm, &key(&memory, &vm, 4), &mut budget), FoundParent::Parent(place(1)));
}

#[test]
fn a_search_ends_when_the_process_does() {
    let (memory, vm) = vm_with(&NESTED, |number| number + 1);
    let child = key(&memory, &vm, 5);
    for reads in 0..100 {
        let exiting = Hostile::exiting(&memory, reads);
        let (mut search, mut budget) = (ParentSearch::default(), PLENTY);
        let found = search.parent(&exiting, &vm, &child, &mut budget);
        assert!(found == FoundParent::Unknown || budget > 0, "{reads}: {found:?}");
        // A walk returns to the beginning once for each 16 thousand objects of its budget.
        assert!(exiting.refused() <= PLENTY / 1000 + 100, "{reads}: {} reads", exiting.refused());
        let exiting = Hostile::exiting(&memory, reads);
        used_names(&exiting, &vm, &mut PLENTY.clone());
        assert!(exiting.refused() <= PLENTY / 1000 + 100, "{reads}: {} reads", exiting.refused());
    }
}

/// Functions without an end: the upvalue of each is another one, which exists as soon as it is read.
struct EndlessFunctions {
    image: Saved,
    layout: VmLayout,
    reads: std::cell::Cell<u64>,
}

impl EndlessFunctions {
    const FIRST: u64 = 0x10_0000_0000;
    const EACH: u64 = 0x100;
}

impl ReadMemory for EndlessFunctions {
    fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < 100_000, "it reads on and on");
        if address < Self::FIRST {
            return self.image.read(address);
        }
        let (begin, shape) = (address & !(Self::EACH - 1), Shape::new(self.layout));
        let mut bytes = vec![0_u8; size_of::<T>().next_multiple_of(0x100) + 0x100];
        for (at, object) in (begin..).step_by(0x100).zip(bytes.as_chunks_mut::<0x100>().0) {
            let mut put = |offset: u64, word: &[u8]| object[offset as usize..][..word.len()].copy_from_slice(word);
            put(9, &[gct::FUNC]);
            put(self.layout.fn_nupvalues.into(), &[1]);
            put(self.layout.fn_pc.into(), &(place(1) + u64::from(self.layout.sizeof_pt)).to_le_bytes());
            // The upvalue and its value are in the second half.
            put(shape.upvalue_references(), &(at + 0x80).to_le_bytes());
            put(0x80 + shape.upvalue_pointer(), &(at + 0xf0).to_le_bytes());
            put(0xf0, &(!u64::from(gct::FUNC) << 47 | (at + Self::EACH)).to_le_bytes());
        }
        plain_at(&bytes, address - begin).ok_or(Unreadable)
    }

    fn read_words(&self, address: u64, words: &mut [u64]) -> Result<(), Unreadable> {
        for (page, at) in words.chunks_mut(512).zip((address..).step_by(4096)) {
            page.copy_from_slice(&self.read::<[u64; 512]>(at)?[..page.len()]);
        }
        Ok(())
    }
}

#[test]
fn functions_without_an_end_end_the_search_for_users() {
    let (mut image, vm) = vm_with(&NESTED, |number| number + 1);
    let layout = vm.layout;
    let (name, slots) = (place(1) + 0xf0, place(20));
    image.put(name, b"up\0");
    image.put(field(place(1), layout.pt_sizept), &0x100_u32.to_le_bytes());
    image.put(field(place(1), layout.pt_uvinfo), &name.to_le_bytes());
    image.put(field(place(1), layout.pt_sizeuv), &[1]);
    image.put(field(vm.main_thread, layout.l_stack), &slots.to_le_bytes());
    image.put(field(vm.main_thread, layout.l_stacksize), &1_u32.to_le_bytes());
    image.put(slots, &(!u64::from(gct::FUNC) << 47 | EndlessFunctions::FIRST).to_le_bytes());
    let endless = EndlessFunctions { image, layout, reads: 0.into() };
    let found = used_names(&endless, &vm, &mut PLENTY.clone());
    assert_eq!(found.names.get(&place(1)).map(|used| used.name.as_str()), Some("up"));
    assert!(endless.reads.get() > 1000);
}
