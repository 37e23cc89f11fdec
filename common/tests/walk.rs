//! The walk of Lua stacks, in both frame layouts, over made-up memory.

mod support;

use lj_trace_common::config::MAX_FRAMES;
use lj_trace_common::ends::INNERMOST;
use lj_trace_common::event::{
    FrameRecord, NO_POSITION, RecordKind, SAMPLE_BASE_IN_REGISTERS, SAMPLE_BASE_UNCERTAIN, reg,
};
use lj_trace_common::frame::{self, WalkEnd};
use lj_trace_common::memo::Memo;
use lj_trace_common::top;
use lj_trace_common::vm::{CodeRange, VmConfig};
use support::{Lab, summary};

const CFRAME: u64 = 0x50_0000;

const C: u64 = 1;
const VARG: u64 = 3;
const CPCALL: u64 = 5;
const PCALL: u64 = 6;

fn both(test: impl Fn(Lab)) {
    for gc64 in [true, false] {
        test(Lab::new(gc64));
    }
}

/// A chunk called by `lua_pcall`, which has called a function at bytecode 5.
fn chunk_and_function(lab: &mut Lab) -> (u64, u64) {
    let chunk = lab.lua_function(0, 20);
    let function = lab.lua_function(7, 10);
    lab.push_cframe(CFRAME, 0, 0);
    lab.push_delta(CPCALL, 3, chunk);
    lab.call_from_lua(chunk, 5, function);
    (chunk, function)
}

#[test]
fn lua_calls_and_the_c_frame_below() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let (frames, end) = lab.walk(lab.pc(function, 2));
        assert_eq!((summary(&frames).as_str(), end), ("7:2 0:5 |", WalkEnd::Complete));
        assert_eq!((frames[2].code, frames[2].function), (CFRAME, support::THREAD));
        assert_ne!(frames[0].chunkname, 0);
        assert_eq!(frames[0].chunkname, frames[1].chunkname);
    });
}

#[test]
fn strings_of_the_same_place_are_told_apart() {
    both(|mut lab| {
        let texts: [&[u8]; 5] =
            [b"@gen/000123.lua", b"@gen/000124.lua", b"@a", b"@gen/a/long/path/1.lua", b"@gen/a/long/path/2.lua"];
        let identity = |lab: &Lab, string| lj_trace_common::string::identity(&lab.memory, &lab.layout, string).unwrap();
        let identities: Vec<_> = texts
            .iter()
            .map(|text| {
                let string = lab.string(text);
                identity(&lab, string)
            })
            .collect();
        for (index, first) in identities.iter().enumerate() {
            assert!(!identities[..index].contains(first), "{index}");
        }
        // Equal strings have the same identity, wherever they lie.
        let again = lab.string(texts[0]);
        assert_eq!(identity(&lab, again), identities[0]);
        // A build with string numbers needs nothing else.
        lab.layout.str_len += 4;
        lab.memory.write_u32(again + if lab.gc64() { 12 } else { 8 }, 77);
        assert_ne!(identity(&lab, again), identities[0]);
    });
}

#[test]
fn a_vararg_function_is_one_frame_with_its_callers_position() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let vararg = lab.lua_function(9, 10);
        lab.call_from_lua(function, 3, vararg);
        lab.push_delta(VARG, 5, vararg);
        let (frames, end) = lab.walk(lab.pc(vararg, 1));
        assert_eq!((summary(&frames).as_str(), end), ("9:1 7:3 0:5 |", WalkEnd::Complete));
    });
}

#[test]
fn pcall_is_a_frame_of_its_own() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let pcall = lab.c_function(20, 0);
        let inner = lab.lua_function(11, 10);
        lab.call_from_lua(function, 4, pcall);
        lab.push_delta(PCALL, 2, inner);
        let (frames, end) = lab.walk(lab.pc(inner, 6));
        assert_eq!((summary(&frames).as_str(), end), ("11:6 f 7:4 0:5 |", WalkEnd::Complete));
    });
}

#[test]
fn a_metamethods_caller_goes_on_at_its_continuation() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let index = lab.lua_function(13, 10);
        lab.push_continuation(lab.pc(function, 8), 0xdead_0000, index);
        let (frames, end) = lab.walk(lab.pc(index, 0));
        assert_eq!((summary(&frames).as_str(), end), ("13:0 7:8 0:5 |", WalkEnd::Complete));
    });
}

#[test]
fn an_ffi_callback_crosses_its_c_frame() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let callback = lab.lua_function(13, 10);
        lab.push_cframe(CFRAME - 0x200, 0, 0);
        lab.push_continuation(lab.pc(function, 8), 1, callback);
        let (frames, end) = lab.walk(lab.pc(callback, 0));
        assert_eq!((summary(&frames).as_str(), end), ("13:0 | 7:? 0:5 |", WalkEnd::Complete));
    });
}

#[test]
fn a_callback_from_c_crosses_to_the_c_function() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let sort = lab.c_function(93, 0x9999);
        let comparator = lab.lua_function(15, 10);
        lab.call_from_lua(function, 4, sort);
        lab.push_cframe(CFRAME - 0x200, 0, 1);
        lab.push_delta(C, 4, comparator);
        let (frames, end) = lab.walk(lab.pc(comparator, 9));
        assert_eq!((summary(&frames).as_str(), end), ("15:9 | f 7:4 0:5 |", WalkEnd::Complete));
        assert_eq!(frames[2].code, 0x9999);
    });
}

#[test]
fn a_function_below_a_finalizer_keeps_its_line_in_its_c_frame() {
    both(|mut lab| {
        let chunk = lab.lua_function(0, 20);
        let finalizer = lab.lua_function(17, 10);
        lab.push_cframe(CFRAME, lab.pc(chunk, 12), 0);
        lab.push_delta(CPCALL, 3, chunk);
        lab.push_cframe(CFRAME - 0x200, 0, 0);
        lab.push_delta(CPCALL, 4, finalizer);
        let (frames, end) = lab.walk(lab.pc(finalizer, 1));
        assert_eq!((summary(&frames).as_str(), end), ("17:1 | 0:12 |", WalkEnd::Complete));
    });
}

#[test]
fn a_protected_c_function_has_a_c_frame_but_no_lua_frame() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let load = lab.c_function(30, 0);
        lab.call_from_lua(function, 4, load);
        // lj_vm_cpcall: SAVE_NRES is the negated offset of the stack's top.
        let top = lab.base + 16 - lab.coroutine.stack;
        lab.push_cframe(CFRAME - 0x200, 0, -(top as i32));
        let (frames, end) = lab.walk(0);
        assert_eq!((summary(&frames).as_str(), end), ("| f 7:4 0:5 |", WalkEnd::Complete));
    });
}

#[test]
fn a_return_to_a_compiled_loop_is_found_through_its_trace() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        // A trace keeps the loop's original instruction; the PC points right behind that copy.
        let trace = 0x60_0000;
        lab.memory.write(trace, &[0; 128]);
        lab.memory.write(trace + if lab.gc64() { 9 } else { 5 }, &[9]);
        let start = lab.pc(function, 6) - 4;
        let startpc = trace + u64::from(lab.layout.tr_startpc);
        lab.memory.write(startpc, &start.to_le_bytes()[..if lab.gc64() { 8 } else { 4 }]);
        let pc = trace + u64::from(lab.layout.tr_startins) + 4;
        assert_eq!(summary(&lab.walk(pc).0), "7:6 0:5 |");
    });
}

#[test]
fn a_position_outside_of_the_function_is_none() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        for pc in [0, 4, lab.pc(function, 2) + 1, lab.pc(function, 10), 0x7777_7770] {
            let (frames, end) = lab.walk(pc);
            assert_eq!((frames[0].position, end), (NO_POSITION, WalkEnd::Complete));
        }
    });
}

#[test]
fn torn_stacks_end_with_a_reason() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let pc = lab.pc(function, 2);
        assert_eq!(lab.walk_from(lab.base + 4, pc).1, WalkEnd::BadBase);
        assert_eq!(lab.walk_from(lab.coroutine.stack_end + 8, pc).1, WalkEnd::BadBase);
        assert_eq!(lab.walk_from(lab.base + 0x200, pc).1, WalkEnd::Unreadable);
        // A link that leads upward, and one that leaves the stack.
        let link = if lab.gc64() { lab.base - 8 } else { lab.base - 4 };
        for (value, end) in [(CPCALL, WalkEnd::BadLink), (0x10_0000 | CPCALL, WalkEnd::BadLink)] {
            lab.memory.write_u32(link, value as u32);
            assert_eq!(lab.walk(pc).1, end);
        }
        // A function slot with a number in it.
        let slot = if lab.gc64() { lab.base - 16 } else { lab.base - 8 };
        lab.memory.write_u32(slot, support::THREAD as u32 + 16);
        assert!(matches!(lab.walk(pc).1, WalkEnd::NotAFunction | WalkEnd::Unreadable));
    });
}

#[test]
fn more_crossings_than_c_frames_are_noticed() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let inner = lab.lua_function(3, 4);
        lab.push_delta(C, 4, inner);
        let (frames, end) = lab.walk(lab.pc(function, 2));
        assert_eq!((summary(&frames).as_str(), end), ("3:? | 7:? 0:5", WalkEnd::CFrameMissing));
    });
}

/// Pushes random frames onto the stack until it has `depth` frames. Returns all of them in the form of [`summary`],
/// innermost first, and the PC.
fn random_stack(lab: &mut Lab, depth: usize, random: &mut impl FnMut(u64) -> u64) -> (Vec<String>, u64) {
    let functions: Vec<u64> = (0..30).map(|line| lab.lua_function(line, 20)).collect();
    let (pcall, sort) = (lab.c_function(20, 0), lab.c_function(93, 0x9999));
    let mut cframe = CFRAME;
    lab.push_cframe(cframe, 0, 0);
    let mut line = random(30);
    lab.push_delta(CPCALL, 3, functions[line as usize]);
    let mut frames = vec!["|".to_owned()];
    // Most stacks are recursions of a few functions.
    let many = random(2) * 27 + 3;
    while frames.len() + 1 < depth {
        let (caller, position, next) = (functions[line as usize], random(20), random(many));
        let function = functions[next as usize];
        frames.push(format!("{line}:{position}"));
        let slot = 1 + (line + position) % 5;
        match random(20) {
            0 => {
                lab.call_into(slot, caller, position, pcall);
                lab.push_delta(PCALL, 2, function);
                frames.push("f".to_owned());
            }
            1 => {
                lab.call_into(slot, caller, position, sort);
                cframe -= 0x80;
                lab.push_cframe(cframe, 0, 1);
                lab.push_delta(C, 4, function);
                frames.extend(["f", "|"].map(str::to_owned));
            }
            2 | 3 => {
                lab.call_into(slot, caller, position, function);
                lab.push_delta(VARG, 5, function);
            }
            4 => lab.push_continuation(lab.pc(caller, position), 0xdead_0000, function),
            _ => lab.call_into(slot, caller, position, function),
        }
        line = next;
    }
    frames.push(format!("{line}:7"));
    frames.reverse();
    (frames, lab.pc(functions[line as usize], 7))
}

#[test]
fn both_ends_of_a_deep_stack_are_exact() {
    // splitmix64
    let mut state = 0x6c6a_7472_6163_6521_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below
    };
    let (innermost, all) = (INNERMOST as usize, MAX_FRAMES as usize);
    let edges = [2, innermost - 1, innermost, innermost + 1, all - 2, all - 1, all, all + 1, all + 2, all + 256, 5000];
    let depths: Vec<usize> = edges.into_iter().chain((0..10).map(|_| random(5000) as usize)).collect();
    for gc64 in [true, false] {
        for &depth in &depths {
            let mut lab = Lab::with_stack(gc64, 0x8_0000);
            let (frames, pc) = random_stack(&mut lab, depth, &mut random);
            let (records, left_out, end) = lab.walk_both_ends(pc);
            let short: Vec<String> = records.iter().map(|record| summary(std::slice::from_ref(record))).collect();
            assert_eq!((end, left_out as usize), (WalkEnd::Complete, frames.len().saturating_sub(all)), "{depth}");
            if left_out == 0 {
                assert_eq!(short, frames, "{depth}");
            } else {
                assert_eq!(short[..innermost], frames[..innermost], "{depth}");
                assert_eq!(short[innermost..], frames[innermost + left_out as usize..], "{depth}");
            }
            // The frames are the same as in a walk that looks at each, whichever were passed by.
            let whole = lab.walk(pc).0;
            assert_eq!(records[..innermost.min(records.len())], whole[..innermost.min(whole.len())]);
            let outermost = records.len().saturating_sub(innermost);
            assert_eq!(records[records.len() - outermost..], whole[whole.len() - outermost..]);
        }
    }
}

#[test]
fn a_frame_that_cannot_be_looked_at_says_why() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let mut record = FrameRecord::EMPTY;
        record.pass_by(0x7777_7000, lab.pc(function, 2));
        frame::look_at(&lab.memory, &lab.layout, (&mut record, &mut Memo::default()));
        assert_eq!((record.kind, record.position), (RecordKind::Passed as u8, WalkEnd::Unreadable as u32));
    });
}

/// The start of a walk when the sample hits the interpreter, with these registers.
fn at_interpreter(lab: &Lab, base: u64, pc: u64) -> top::Top {
    at_interpreter_with(lab, base, pc, 0)
}

/// Like `at_interpreter`, with a given `L->base`.
fn at_interpreter_with(lab: &Lab, base: u64, pc: u64, thread_base: u64) -> top::Top {
    at_interpreter_in(lab, (base, pc, 0), thread_base, CFRAME)
}

/// Like `at_interpreter_with`, with BASE of a frame above in `rbp`, and in a given C frame.
fn at_interpreter_in(lab: &Lab, (base, pc, above): (u64, u64, u64), thread_base: u64, cframe: u64) -> top::Top {
    let global = 0x70_0000;
    lab.memory.write(global, &[0; 64]);
    lab.memory.write_u32(global + 16, -1_i32 as u32);
    lab.memory.write(support::THREAD, &[0; 128]);
    let mut vm = VmConfig { global, text_start: 0x1000, text_end: 0x2000, layout: lab.layout, ..VmConfig::default() };
    vm.edges.continuing = [CodeRange { start: 0x900, end: 0x910 }];
    let mut registers = [0; 17];
    registers[reg::PC] = if above == 0 { 0x1800 } else { 0x1908 };
    registers[reg::BASE] = base;
    registers[reg::BYTECODE_PC] = pc;
    registers[reg::KEPT_BASE] = above;
    registers[reg::SP] = cframe;
    let (mut record, mut memo) = (FrameRecord::default(), Memo::default());
    top::find(&lab.memory, &vm, &registers, (&lab.coroutine, thread_base), cframe, (&mut record, &mut memo)).unwrap()
}

#[test]
fn a_callback_that_has_returned_is_not_in_its_c_frame() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let sort = lab.c_function(93, 0x9999);
        lab.call_from_lua(function, 4, sort);
        let (caller, callback) = (lab.base, lab.lua_function(13, 10));
        let cframe = CFRAME - 0x200;
        lab.push_cframe(cframe, 0, 0);
        // Other continuations have a PC in this word; a callback has the type of its result there.
        lab.push_continuation(9, 1, callback);
        let delta = lab.base - caller;
        for pc in [delta, delta | 2, 9, 0] {
            let top = at_interpreter_in(&lab, (caller, pc, lab.base), lab.base, cframe);
            assert_eq!((top.base, top.pc, top.crosses), (caller, 0, 1), "PC {pc:#x}");
        }
    });
}

#[test]
fn a_metamethod_that_has_returned_leaves_its_callers_position() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let (caller, index) = (lab.base, lab.lua_function(13, 10));
        lab.push_continuation(lab.pc(function, 8), 0xdead_0000, index);
        for pc in [lab.base - caller, lab.pc(function, 8)] {
            let top = at_interpreter_in(&lab, (caller, pc, lab.base), 0, CFRAME);
            assert_eq!((top.base, top.pc, top.crosses), (caller, lab.pc(function, 8), 0), "PC {pc:#x}");
        }
    });
}

#[test]
fn base_and_pc_come_from_the_registers_of_the_interpreter() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let pc = lab.pc(function, 2);
        let top = at_interpreter(&lab, lab.base, pc);
        assert_eq!((top.base, top.pc, top.flags), (lab.base, pc, SAMPLE_BASE_IN_REGISTERS));
    });
}

#[test]
fn within_a_call_the_caller_is_on_top_until_the_link_is_stored() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let caller = lab.base;
        let callee = lab.lua_function(30, 5);
        lab.call_from_lua(function, 3, callee);
        let pc = lab.pc(function, 3);
        // Link stored, PC not fetched yet (or, in a return, fetched again): the frame is the callee's, its position unknown.
        let top = at_interpreter(&lab, lab.base, pc);
        assert_eq!((top.base, top.pc), (lab.base, 0));
        // Link not stored yet: the slot still has an old value.
        lab.memory.write_u32(lab.base - if lab.gc64() { 8 } else { 4 }, 0x1111);
        let top = at_interpreter(&lab, lab.base, pc);
        assert_eq!((top.base, top.pc), (caller, pc));
    });
}

#[test]
fn returning_to_c_code_the_pc_holds_the_link() {
    both(|mut lab| {
        let chunk = lab.lua_function(0, 20);
        lab.push_cframe(CFRAME, 0, 0);
        lab.push_delta(CPCALL, 3, chunk);
        let top = at_interpreter(&lab, lab.base, (3 * 8) | CPCALL);
        assert_eq!((top.base, top.pc, top.flags), (lab.base, 0, SAMPLE_BASE_IN_REGISTERS));
    });
}

#[test]
fn registers_that_make_no_sense_are_not_believed() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        for (base, pc) in [(0, lab.pc(function, 1)), (lab.base, 0x1234_5678), (lab.coroutine.stack_end + 8, 0)] {
            assert_eq!(at_interpreter(&lab, base, pc).flags, SAMPLE_BASE_UNCERTAIN);
        }
    });
}

#[test]
fn entering_a_function_its_pc_points_at_the_header() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let header = lab.pc(function, 0) - 4;
        let top = at_interpreter(&lab, lab.base, header);
        assert_eq!((top.base, top.pc), (lab.base, header + 4));
    });
}

#[test]
fn within_lua_call_the_c_function_is_on_top_until_the_link_is_stored() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let sort = lab.c_function(93, 0x9999);
        let comparator = lab.lua_function(15, 10);
        lab.call_from_lua(function, 4, sort);
        let thread_base = lab.base;
        lab.push_delta(C, 4, comparator);
        lab.memory.write_u32(lab.base - if lab.gc64() { 8 } else { 4 }, 0x1111);
        let top = at_interpreter_with(&lab, lab.base, (4 * 8) | C, thread_base);
        assert_eq!((top.base, top.pc, top.flags), (thread_base, 0, SAMPLE_BASE_IN_REGISTERS));
    });
}

#[test]
fn within_a_call_of_a_fast_function_the_caller_is_on_top_until_the_link_is_stored() {
    both(|mut lab| {
        let (_, function) = chunk_and_function(&mut lab);
        let caller = lab.base;
        let fast = lab.c_function(50, 0);
        lab.call_from_lua(function, 3, fast);
        let pc = lab.pc(function, 3);
        assert_eq!(at_interpreter(&lab, lab.base, pc).base, lab.base);
        lab.memory.write_u32(lab.base - if lab.gc64() { 8 } else { 4 }, 0x1111);
        assert_eq!(at_interpreter(&lab, lab.base, pc).base, caller);
        // The frame is whole, and the register holds something else. If the frame is not whole, nothing is known.
        assert_eq!(at_interpreter(&lab, lab.base, 0x9990).flags, SAMPLE_BASE_UNCERTAIN);
        lab.memory.write_u32(lab.base - if lab.gc64() { 8 } else { 4 }, pc as u32);
        assert_eq!(at_interpreter(&lab, lab.base, 0x9990).base, lab.base);
    });
}
