use lj_trace_luajit::testing::hostile::{Dice, Hostile, Tampering};

use super::*;
use crate::test_memory::Words;

/// Where a build has what, in bytes: in a fiber, and in the cord.
#[derive(Clone, Copy)]
struct Build {
    stack: u64,
    stack_size: u64,
    csw: u64,
    id: u64,
    is_wide: bool,
    flags: u64,
    link: u64,
    name: u64,
    alive: u64,
    scheduler: u64,
}

/// Tarantool 2.6 as in Debian, by its DWARF; and the newest of 2026, by its compiled header.
const BUILDS: [Build; 2] = [
    Build {
        stack: 0x10,
        stack_size: 0x20,
        csw: 0x60,
        id: 0x64,
        is_wide: false,
        flags: 0x68,
        link: 0x90,
        name: 0x148,
        alive: 0x70,
        scheduler: 1016,
    },
    Build {
        stack: 0x10,
        stack_size: 0x28,
        csw: 0xa8,
        id: 0xb0,
        is_wide: true,
        flags: 0xb8,
        link: 0xe0,
        name: 0x1b0,
        alive: 0x60,
        scheduler: 0x3e8,
    },
];

const POINTER: u64 = 0x7f00_0000_0000;
const OWN: FiberSelf = FiberSelf { variable: (-0x33a0_i64) as u64, fiber: 0 };
const CORD: u64 = 0x7e_0000;
const FIBERS: u64 = 0x7f01_0000_0000;
/// Fibers lie side by side.
const FIBER_SIZE: u64 = 0x1e8;
const STACKS: u64 = 0x7f02_0000_0000;
const STACK: u64 = 0x8_0000;
const HEAP: u64 = 0x7f03_0000_0000;

fn fiber(number: usize) -> u64 {
    FIBERS + number as u64 * FIBER_SIZE
}

/// The memory of a program with fibers of these names; the last one runs.
fn memory(build: &Build, names: &[&str]) -> Words {
    let mut memory = Words::default();
    memory.put(POINTER.wrapping_add(OWN.variable), CORD);
    for offset in (0..0x5000).step_by(8) {
        memory.put(CORD + offset, 0);
    }
    let scheduler = CORD + build.scheduler;
    memory.put_half(scheduler + build.csw, 3308);
    memory.put_half(scheduler + build.id, 1);
    memory.put_half(scheduler + build.flags, 1);
    memory.put(scheduler + build.name, scheduler + build.name + 8);
    memory.text(scheduler + build.name + 8, b"sched\0");
    let mut before = CORD + build.alive;
    for (number, name) in names.iter().enumerate() {
        let at = fiber(number);
        for offset in (0..FIBER_SIZE).step_by(8) {
            memory.put(at + offset, 0);
        }
        let block = STACKS + number as u64 * STACK;
        let (stack, size) = (block + 0x2000, STACK - 0x2000);
        memory.put(at, block + STACK - 0x1e8 - number as u64 * 8);
        memory.put(at + 8, block);
        memory.put(at + build.stack, stack);
        // The watermark is before the size.
        memory.put(at + build.stack_size - 8, block + STACK - 0x1_0000 + 0x18);
        memory.put(at + build.stack_size, size);
        memory.put_half(at + build.csw, 50 - number as u32);
        memory.put_half(at + build.id, 101 + 3 * number as u32);
        memory.put_half(at + build.flags, [1, 5][number % 2]);
        let text = if name.len() < 40 { at + build.name + 8 } else { HEAP + number as u64 * 0x100 };
        memory.put(at + build.name, text);
        memory.text(text, &[name.as_bytes(), &[0; 40]].concat());
        // The newest one comes first.
        let node = at + build.link;
        memory.put(node + 8, before);
        memory.put(before, node);
        before = node;
    }
    memory.put(before, CORD + build.alive);
    memory.put(CORD + build.alive + 8, before);
    memory.put(CORD + OWN.fiber, fiber(names.len() - 1));
    memory
}

fn found(memory: &impl ReadMemory) -> Fibers {
    let mut fibers = Fibers { own: Some(OWN), why_not: Some("not yet"), ..Fibers::default() };
    fibers.look(memory, || Some(POINTER));
    fibers
}

fn label(fibers: &mut Fibers, marks: &FiberMarks, circumstances: FiberCircumstances) -> Result<(String, u64), String> {
    match fibers.resolve(marks, circumstances) {
        RequestOutcome::Found(ServedRequest { fiber: Some(RunningFiber { name, id }), .. }) => {
            Ok((name.to_string(), id))
        }
        other => Err(format!("{other:?}")),
    }
}

const LUA: FiberCircumstances = FiberCircumstances { runs_lua: true, is_being_named: false, is_other_thread: false };

#[test]
fn the_places_of_builds_are_proven() {
    for build in BUILDS {
        let memory = memory(&build, &["main", "", "a name that has no room in the fiber itself, far from it", "w1"]);
        let fibers = found(&memory);
        assert_eq!(fibers.why_not(), None);
        let proven = fibers.proven.unwrap();
        let expected = FiberLayout {
            current: CORD,
            id: build.id as u32,
            id_mask: if build.is_wide { u32::MAX } else { 0 },
            name: build.name as u32,
            stack: build.stack as u32,
            stack_size: build.stack_size as u32,
            reserved: 0,
        };
        assert_eq!(proven, ProvenFibers { layout: expected, alive: CORD + build.alive, link: build.link });
    }
}

#[test]
fn a_fiber_is_the_one_whose_stack_it_is() {
    for build in BUILDS {
        let mut memory = memory(&build, &["main", "", &"ä".repeat(30), "w1"]);
        let mut fibers = found(&memory);
        let layout = fibers.layout().unwrap();
        let names = ["main", UNNAMED, &format!("{}…", "ä".repeat(20)), "w1"];
        for (number, name) in names.iter().enumerate() {
            memory.put(CORD, fiber(number));
            let stack = STACKS + number as u64 * STACK + 0x2000;
            for (sp, is_own) in
                [(stack, true), (stack + 0x7_dfff, true), (stack - 1, false), (stack + 0x7_e000, false), (0, false)]
            {
                let mut marks = FiberMarks::default();
                marks.read(&memory, &layout, sp);
                let id = 101 + 3 * number as u64;
                let expected = if is_own { Ok(((*name).to_owned(), id)) } else { Err("Not(BetweenFibers)".to_owned()) };
                assert_eq!(label(&mut fibers, &marks, LUA), expected, "{number} {sp:#x}");
                let named = FiberCircumstances { is_being_named: true, ..LUA };
                assert!(label(&mut fibers, &marks, named).is_err());
            }
            // The same from a C frame, whichever fiber runs.
            let marks = fibers.of_stack(&memory, stack + 0x100);
            assert_eq!(label(&mut fibers, &marks, LUA), Ok(((*name).to_owned(), 101 + 3 * number as u64)));
        }
        let marks = fibers.of_stack(&memory, HEAP);
        assert_eq!(label(&mut fibers, &marks, LUA), Err("Not(BetweenFibers)".to_owned()));
        memory.put(CORD, CORD + build.scheduler);
        let mut marks = FiberMarks::default();
        marks.read(&memory, &layout, 0x7ffc_0000_0000);
        assert_eq!(fibers.resolve(&marks, FiberCircumstances::default()), RequestOutcome::NoRequest);
        assert_eq!(label(&mut fibers, &marks, LUA), Err("Not(BetweenFibers)".to_owned()));
        let elsewhere = FiberCircumstances { is_other_thread: true, ..LUA };
        assert_eq!(label(&mut fibers, &FiberMarks::default(), elsewhere), Err("Not(OtherThread)".to_owned()));
        memory.put_half(fiber(0) + build.id, 0);
        memory.put(CORD, fiber(0));
        marks.read(&memory, &layout, STACKS + 0x3000);
        assert_eq!(label(&mut fibers, &marks, LUA), Err("Not(EndedFiber)".to_owned()));
    }
}

#[test]
fn what_does_not_fit_is_not_proven() {
    type Change = fn(&mut Words, &Build);
    let changes: [(&str, Change); 9] = [
        ("no cord", |memory, _| memory.put(POINTER.wrapping_add(OWN.variable), 0)),
        ("another scheduler", |memory, build| memory.text(CORD + build.scheduler + build.name + 8, b"scheX\0")),
        ("a scheduler with a stack", |memory, build| memory.put(CORD + build.scheduler + build.stack, 0x1000)),
        ("a scheduler with another id", |memory, build| memory.put_half(CORD + build.scheduler + build.id, 2)),
        ("a ring that is cut", |memory, build| memory.put(fiber(1) + build.link + 8, fiber(1) + build.link)),
        ("ids out of order", |memory, build| memory.put_half(fiber(1) + build.id, 500)),
        ("a saved stack pointer elsewhere", |memory, _| memory.put(fiber(1), HEAP)),
        ("a name nowhere", |memory, build| memory.put(fiber(1) + build.name, 0x1000)),
        ("another fiber runs", |memory, _| memory.put(CORD, HEAP)),
    ];
    for build in BUILDS {
        for (what, change) in changes {
            let mut memory = memory(&build, &["main", "a", "b", "c"]);
            change(&mut memory, &build);
            let mut fibers = found(&memory);
            assert!(fibers.layout().is_none() && fibers.why_not().is_some(), "{what}");
            assert_eq!(
                label(&mut fibers, &FiberMarks::default(), LUA),
                Err("Not(UnprovenFibers)".to_owned()),
                "{what}"
            );
        }
    }
}

#[test]
fn it_is_tried_again_once_there_are_more_fibers() {
    let mut fibers = found(&memory(&BUILDS[0], &["main"]));
    assert!(fibers.why_not().unwrap().contains("too few"), "{:?}", fibers.why_not());
    let more = memory(&BUILDS[0], &["main", "second"]);
    assert!(!fibers.look(&more, || Some(POINTER)), "not at once");
    std::thread::sleep(FIRST_PAUSE);
    assert!(fibers.look(&more, || Some(POINTER)));
    assert!(!fibers.look(&more, || None), "only once");
}

#[test]
fn names_are_shown_whole_and_harmless() {
    let name = |bytes: &[u8]| {
        let mut words = [u64::from_ne_bytes([b'x'; 8]); NAME_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut own = word.to_ne_bytes();
            own[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(own);
        }
        shown(&words).to_string()
    };
    assert_eq!(name(b"worker\0"), "worker");
    assert_eq!(name(b"\0"), UNNAMED);
    assert_eq!(name("три\n\0".as_bytes()), "три\\n");
    assert_eq!(name(b"\xff\x1b[1m\0"), "\\xff\\x1b[1m");
    assert_eq!(name(&[b'a'; 40]), format!("{}…", "a".repeat(40)));
    let odd = [&b"a"[..], "ä".repeat(20).as_bytes()].concat();
    assert_eq!(name(&odd[..40]), format!("a{}…", "ä".repeat(19)));
}

#[test]
fn whatever_a_program_does_the_proof_ends_and_is_none_or_right() {
    for build in BUILDS {
        let memory = memory(&build, &["main", "a", "b", "c", "d"]);
        let truth = found(&memory).proven;
        let good = Hostile::new(&memory, Tampering::default(), 1, u64::MAX);
        assert!(found(&good).proven == truth && truth.is_some());
        for seed in 40..100 {
            let harm = Tampering::some(&mut Dice::new(seed), good.reads());
            let hostile = Hostile::new(&memory, harm, seed, 1 << 19);
            let mut fibers = found(&hostile);
            let proven = fibers.proven.take();
            assert!(!harm.only_hides() || proven.is_none() || proven == truth, "{seed}: {proven:?}");
            for layout in [proven, truth] {
                fibers.proven = layout;
                fibers.stacks = FiberStacks::default();
                let hostile = Hostile::new(&memory, harm, seed, 1 << 19);
                let marks = fibers.of_stack(&hostile, STACKS + STACK + 0x3000);
                let label = label(&mut fibers, &marks, LUA);
                assert!(
                    !harm.only_hides() || label.is_err() || label == Ok(("a".to_owned(), 104)),
                    "{seed}: {label:?}"
                );
            }
        }
    }
}
