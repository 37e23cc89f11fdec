use fastrand::Rng;
use lj_trace_common::request::RequestLayout;
use lj_trace_common::route::{RouteKey, string_value};
use lj_trace_luajit::testing::hostile::{Dice, Hostile, Tampering};

use super::*;
use crate::test_memory::Words;

const GLOBAL: u64 = 0x7000_0000;
const REQUEST: u64 = 0x10_0000;
const MODULES: u64 = 0x11_0000;
const MODULE: u64 = 0x12_0000;
const CONTEXTS: u64 = 0x20_0000;
const ARRAY: u64 = 0x21_0000;
const CONTEXT: u64 = 0x30_0000;
const OUTER: u64 = 0x40_0000;
const NODES: u64 = 0x1_0000;
const STRINGS: u64 = 0x50_0000;
const REFERENCE: u64 = 0x108;
const NIL: u64 = u64::MAX;
/// A light userdata: what JSON has as null.
const NULL: u64 = !3 << 47;

/// Strings, in the order of their addresses: keys, and then names.
const TEXTS: [&str; 6] = ["route", "name", "id", "other", "shop-by-name", "7c9e6679"];

fn string_at(index: usize) -> u64 {
    STRINGS + index as u64 * 0x1000
}

fn string(index: usize) -> u64 {
    string_value(string_at(index))
}

fn table_value(address: u64) -> u64 {
    !u64::from(gct::TAB) << 47 | address
}

fn layout() -> VmLayout {
    VmLayout { gc64: 1, str_len: 20, sizeof_str: 24, ..VmLayout::default() }
}

/// Memory with a request, whose route is made of entries.
fn memory(context: &[(u64, u64)], outer: &[(u64, u64)], mask: u32) -> Words {
    let mut memory = Words::default();
    memory.put_words(REQUEST, &[0x5054_5448, 0, MODULES]);
    memory.put(MODULES + 3 * 8, MODULE);
    memory.put_half(MODULE + REFERENCE, 2);
    memory.put_half(MODULE + REFERENCE + 4, 0);
    for (index, text) in TEXTS.iter().enumerate() {
        put_string(&mut memory, index, text.as_bytes());
    }
    put_table(&mut memory, CONTEXTS, &[], 0);
    memory.put(CONTEXTS + 16, ARRAY);
    memory.put_half(CONTEXTS + 48, 4);
    memory.put_words(ARRAY, &[0, NIL, table_value(CONTEXT), 0]);
    put_table(&mut memory, CONTEXT, context, mask);
    put_table(&mut memory, OUTER, outer, mask);
    memory
}

fn put_string(memory: &mut Words, index: usize, text: &[u8]) {
    let at = string_at(index);
    memory.put_words(at, &[0, u64::from(gct::STR) << 8 | (hash(index) << 32), (text.len() as u64 * (1 << 32)) | 77, 0]);
    memory.text(at + 24, text);
}

/// The number of a string: some share a place.
fn hash(index: usize) -> u64 {
    index as u64 * 2 + 0x100
}

/// A table with entries whose keys are strings, chained as LuaJIT does where they share a place.
fn put_table(memory: &mut Words, at: u64, entries: &[(u64, u64)], mask: u32) {
    let nodes = at + NODES;
    memory.put_words(at, &[0, u64::from(gct::TAB) << 8, 0, 0, 0, nodes, u64::from(mask) << 32]);
    for slot in 0..=u64::from(mask) {
        memory.put_words(nodes + slot * 24, &[NIL, NIL, 0]);
    }
    let mut free = u64::from(mask);
    for (key, value) in entries {
        let index = ((key & 0xffff_ffff) - STRINGS) / 0x1000;
        let mut node = nodes + (hash(index as usize) & u64::from(mask)) * 24;
        if memory.read::<u64>(node + 8) != Ok(NIL) {
            while memory.read::<u64>(node + 16) != Ok(0) {
                node = memory.read(node + 16).unwrap();
            }
            while memory.read::<u64>(nodes + free * 24 + 8) != Ok(NIL) {
                free -= 1;
            }
            memory.put(node + 16, nodes + free * 24);
            node = nodes + free * 24;
        }
        memory.put_words(node, &[*value, *key]);
    }
}

fn key(index: usize) -> RouteKey {
    RouteKey { value: string(index), hash: hash(index) as u32, reserved: 0 }
}

fn routes() -> Routes {
    Routes::new(RouteLayout {
        global: GLOBAL,
        contexts: CONTEXTS,
        outer: key(0),
        names: [key(1), key(2)],
        reference: REFERENCE as u32,
        reserved: 0,
    })
}

fn marks(memory: &impl ReadMemory) -> RouteMarks {
    let layout = RequestLayout { lua_index: 3, routes: routes().layout(), ..RequestLayout::default() };
    let mut marks = RouteMarks::default();
    marks.read(memory, &layout, &self::layout(), REQUEST);
    marks
}

fn label(routes: &mut Routes, memory: &impl ReadMemory) -> RouteOutcome {
    routes.resolve(memory, &layout(), &marks(memory), |_| false, |_| true)
}

fn found(name: &str) -> RouteOutcome {
    RouteOutcome::Found(name.into())
}

#[test]
fn a_route_is_called_by_its_name_or_by_its_id() {
    let id = (string(2), string(5));
    let context = [(string(3), NULL), (string(0), table_value(OUTER))];
    for (outer, wanted) in [
        (vec![id, (string(1), string(4))], found("shop-by-name")),
        (vec![id], found("7c9e6679")),
        (vec![(string(1), NULL), id], found("7c9e6679")),
        (vec![(string(1), NIL), id], found("7c9e6679")),
        (vec![(string(2), 17_f64.to_bits())], found("17")),
        (vec![(string(2), (-17_f64).to_bits())], found("-17")),
        (vec![(string(2), (!13 << 47) | 0xffff_fffe)], found("-2")),
        (vec![(string(2), 0.5_f64.to_bits())], RouteOutcome::Not(Unrouted::OddName)),
    ] {
        for mask in [3, 7, 31] {
            assert_eq!(label(&mut routes(), &memory(&context, &outer, mask)), wanted, "{outer:x?}, {mask}");
        }
    }
}

#[test]
fn what_has_no_route_is_believed_after_something_had_one() {
    let with = memory(&[(string(0), table_value(OUTER))], &[(string(1), string(4))], 7);
    let without = memory(&[(string(3), NULL)], &[], 7);
    let mut routes = routes();
    assert_eq!(label(&mut routes, &without), RouteOutcome::Not(Unrouted::NotProven));
    assert_eq!(label(&mut routes, &with), found("shop-by-name"));
    assert_eq!(label(&mut routes, &without), RouteOutcome::NoRoute);
    // A request whose table nobody has asked for has none in any case.
    let mut none = without.clone();
    none.put_half(MODULE + REFERENCE, -2_i32 as u32);
    assert_eq!(label(&mut self::routes(), &none), RouteOutcome::NoRoute);
}

#[test]
fn what_may_be_half_changed_is_marked() {
    let memory = memory(&[(string(0), table_value(OUTER))], &[(string(1), string(4))], 7);
    let mut asked = Vec::new();
    let is_changing = |tables: &[u64]| {
        asked = tables.to_vec();
        true
    };
    let outcome = routes().resolve(&memory, &layout(), &marks(&memory), is_changing, |_| true);
    assert_eq!(outcome, RouteOutcome::Not(Unrouted::Changing));
    assert_eq!(asked, [CONTEXTS, CONTEXT, OUTER]);
}

#[test]
fn a_string_that_is_gone_is_not_taken_for_another() {
    let mut memory = memory(&[(string(0), table_value(OUTER))], &[(string(1), string(4))], 7);
    let seen = marks(&memory);
    let resolve = |routes: &mut Routes, memory: &Words| routes.resolve(memory, &layout(), &seen, |_| false, |_| true);
    let mut knows = routes();
    assert_eq!(resolve(&mut knows, &memory), found("shop-by-name"));
    // It was freed, and only its last bytes have changed.
    let freed = routes().resolve(&memory, &layout(), &seen, |_| false, |_| false);
    assert_eq!(freed, RouteOutcome::Not(Unrouted::NameGone));
    // Another string of the same length is there now, with a number of its own.
    put_string(&mut memory, 4, b"shop-by-NAME");
    memory.put_half(string_at(4) + 12, 0x999);
    assert_eq!(resolve(&mut routes(), &memory), RouteOutcome::Not(Unrouted::NameGone));
    assert_eq!(resolve(&mut knows, &memory), found("shop-by-name"), "it was read in time");
    memory.remove(string_at(4));
    assert_eq!(resolve(&mut routes(), &memory), RouteOutcome::Not(Unrouted::NameGone));
}

#[test]
fn names_are_shown_harmless_and_bounded() {
    let mut own = memory(&[(string(0), table_value(OUTER))], &[(string(1), string(4))], 7);
    for (text, wanted) in [
        (&b"a\nb\xff"[..], "a\\nb\\xff".to_owned()),
        (b"", "[no name]".to_owned()),
        (&[b'x'; 120], "x".repeat(120)),
        (&[b'x'; 121], "x".repeat(120) + "…"),
        (&[b'x'; 2000], "x".repeat(120) + "…"),
    ] {
        put_string(&mut own, 4, text);
        assert_eq!(label(&mut routes(), &own), found(&wanted));
    }
    let mut routes = routes();
    let names: Vec<RouteOutcome> = (0..MOST_STRINGS + 10)
        .map(|number| {
            put_string(&mut own, 4, format!("route {number}").as_bytes());
            own.put_half(string_at(4) + 12, number as u32);
            label(&mut routes, &own)
        })
        .collect();
    assert_eq!(names[0], found("route 0"));
    assert_eq!(names[crate::names::MOST_NAMES], found(crate::OTHER));
    assert_eq!(routes.others(), (MOST_STRINGS - crate::names::MOST_NAMES) as u64);
    assert_eq!(names[MOST_STRINGS], RouteOutcome::Not(Unrouted::TooMany));
}

/// Whatever is in memory, a label is the name of the route, or there is none.
#[test]
fn memory_that_is_not_as_it_should_be_gives_no_other_name() {
    let right = memory(&[(string(3), NULL), (string(0), table_value(OUTER))], &[(string(1), string(4))], 7);
    let mut random = Rng::with_seed(7);
    let places = [MODULES + 24, CONTEXTS, ARRAY + 16, CONTEXT, OUTER, CONTEXT + NODES, OUTER + NODES, string_at(4)];
    for _ in 0..20_000 {
        let mut memory = right.clone();
        for _ in 0..random.u32(1..4) {
            let at = places[random.usize(..places.len())] + random.u64(..16) * 8;
            match random.u32(..4) {
                0 => memory.remove(at),
                1 => memory.put(at, random.u64(..)),
                2 => memory.put(at, NIL),
                _ => memory.put(at, table_value(places[random.usize(..places.len())])),
            }
        }
        match label(&mut routes(), &memory) {
            RouteOutcome::Found(name) => {
                // A changed text is another text; all else is not found.
                let is_text = (0..2).any(|word| {
                    let at = string_at(4) + 24 + word * 8;
                    memory.read::<u64>(at) != right.read::<u64>(at)
                });
                let is_short = memory.read::<u64>(string_at(4) + 16) != right.read::<u64>(string_at(4) + 16);
                assert!(&*name == "shop-by-name" || is_text || is_short || is_number(&name), "{name}");
            }
            RouteOutcome::NotLooked => panic!("somebody looks"),
            RouteOutcome::NoRoute | RouteOutcome::Not(_) => {}
        }
    }
}

fn is_number(name: &str) -> bool {
    name.parse::<f64>().is_ok()
}

#[test]
fn whatever_a_program_does_a_route_is_unknown_or_right() {
    let memory = memory(&[(string(3), NIL), (string(0), table_value(OUTER))], &[(string(1), string(4))], 3);
    let mut known = routes();
    let truth = label(&mut known, &memory);
    assert_eq!(truth, RouteOutcome::Found("shop-by-name".into()));
    let good = Hostile::new(&memory, Tampering::default(), 1, u64::MAX);
    label(&mut routes(), &good);
    for seed in 0..1000 {
        let harm = Tampering::some(&mut Dice::new(seed), good.reads());
        let hostile = Hostile::new(&memory, harm, seed, 1 << 14);
        // Proven by an earlier request, but without its names.
        let mut routes = Routes { is_proven: true, ..routes() };
        let found = label(&mut routes, &hostile);
        let is_right = found == truth || matches!(found, RouteOutcome::Not(_));
        assert!(!harm.only_hides() || is_right, "{seed}: {harm:?} {found:?}");
    }
}

/// The array part of a table becomes smaller while the keys are not in its new hash part yet.
#[test]
fn what_is_not_found_in_a_table_that_becomes_smaller_is_marked() {
    /// The array part of a table, and any other block.
    const BLOCKS: [u64; 3] = [0x77_0000, 0x78_0000, 0x79_0000];
    let entry = (string(0), table_value(OUTER));
    let none = memory(&[(string(3), NULL)], &[], 7);
    let no_name = memory(&[entry], &[], 7);
    let with = memory(&[entry], &[(string(1), string(4))], 7);
    for (mut memory, tables) in [(none, &[CONTEXT][..]), (no_name, &[CONTEXT, OUTER]), (with, &[])] {
        memory.put(CONTEXT + 16, BLOCKS[0]);
        memory.put(OUTER + 16, BLOCKS[1]);
        let at_once = marks(&memory);
        for (block, table) in BLOCKS.into_iter().chain([0]).zip([CONTEXT, OUTER, 0, 0]) {
            let mut marks = at_once;
            marks.mark_if_shrinking(&memory, block);
            let wanted = if tables.contains(&table) { RouteState::Shrinking as u32 } else { at_once.state };
            assert_eq!(marks.state, wanted, "{block:x}");
        }
    }
    let mut routes = routes();
    let marks = RouteMarks { state: RouteState::Shrinking as u32, ..RouteMarks::default() };
    let outcome = routes.resolve(&memory(&[], &[], 7), &layout(), &marks, |_| false, |_| true);
    assert_eq!(outcome, RouteOutcome::Not(Unrouted::Changing));
}
