//! Searches on hand-made lists.

use super::*;
use crate::names::tests::{NESTED, Object, PLENTY, key, place, vm_with};
use crate::names::used::used_names;
use crate::testing::Exiting;

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
        let exiting = Exiting::after(reads, &memory);
        let (mut search, mut budget) = (ParentSearch::default(), PLENTY);
        let found = search.parent(&exiting, &vm, &child, &mut budget);
        assert!(found == FoundParent::Unknown || budget > 0, "{reads}: {found:?}");
        // A walk returns to the beginning once for each 16 thousand objects of its budget.
        assert!(exiting.refused() <= PLENTY / 1000 + 100, "{reads}: {} reads", exiting.refused());
        let exiting = Exiting::after(reads, &memory);
        used_names(&exiting, &vm, &mut PLENTY.clone());
        assert!(exiting.refused() <= PLENTY / 1000 + 100, "{reads}: {} reads", exiting.refused());
    }
}
