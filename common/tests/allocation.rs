//! Who causes an allocation, in both frame layouts and both numberings of VM states, over made-up memory.

#[allow(dead_code, reason = "the walk's tests use the rest")]
mod support;

use lj_trace_common::allocation::event::NAMELESS;
use lj_trace_common::allocation::known::{KNOWN_OBJECTS, KnownFunction, KnownObjects, KnownPrototype, slot};
use lj_trace_common::allocation::on_trace::{NO_LINE, RememberedTrace, TracePlace};
use lj_trace_common::allocation::{AllocationEvent, AllocationKind, AllocationSource, AttributionRoom, attribute};
use lj_trace_common::arch::STATE_NAMES_KIND;
use lj_trace_common::layout::{ABSENT, VmLayout, VmStates, gct};
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace::TraceIdentity;
use lj_trace_common::vm::VmConfig;
use support::{Lab, THREAD};

const GLOBAL: u64 = 0x60_0000;
const CFRAME: u64 = 0x50_0000;

const VARG: u64 = 3;
const CPCALL: u64 = 5;
const PCALL: u64 = 6;

/// Raw VM states: states are inverted, trace numbers are not.
const INTERP: i32 = !0;
const UPSTREAM_C: i32 = !1;
const UPSTREAM_GC: i32 = !2;
const UPSTREAM_RECORD: i32 = !4;
const TARANTOOL_LFUNC: i32 = !1;
const TARANTOOL_FFUNC: i32 = !2;
const TARANTOOL_CFUNC: i32 = !3;
const TARANTOOL_GC: i32 = !4;

/// Remembers functions and prototypes, and which prototypes and traces were announced.
struct Remembered {
    functions: Vec<KnownFunction>,
    prototypes: Vec<KnownPrototype>,
    traces: Vec<RememberedTrace>,
    /// The announced traces, and the lines at which they start.
    traces_named: Vec<(TraceIdentity, u32)>,
    /// Addresses of the announced prototypes and of their chunknames.
    named: Vec<(u64, u64)>,
    /// Whether announcements succeed.
    is_heard: bool,
}

impl Default for Remembered {
    fn default() -> Self {
        Self {
            functions: vec![KnownFunction::default(); KNOWN_OBJECTS as usize],
            prototypes: vec![KnownPrototype::default(); KNOWN_OBJECTS as usize],
            traces: vec![RememberedTrace::default(); KNOWN_OBJECTS as usize],
            traces_named: Vec::new(),
            named: Vec::new(),
            is_heard: true,
        }
    }
}

impl Remembered {
    /// The line at which a prototype is defined.
    fn first_line(&mut self, prototype: u64) -> u32 {
        self.prototype(prototype).filter(|known| known.prototype == prototype).map_or(0, |known| known.first_line)
    }
}

impl KnownObjects for Remembered {
    fn function(&mut self, function: u64) -> Option<&mut KnownFunction> {
        self.functions.get_mut(slot(function) as usize)
    }

    fn prototype(&mut self, prototype: u64) -> Option<&mut KnownPrototype> {
        self.prototypes.get_mut(slot(prototype) as usize)
    }

    fn trace(&mut self, trace: u64) -> Option<&mut RememberedTrace> {
        self.traces.get_mut(slot(trace) as usize)
    }

    fn name_trace(&mut self, trace: &TraceIdentity, line: u32) -> bool {
        if self.is_heard {
            self.traces_named.push((*trace, line));
        }
        self.is_heard
    }

    fn name_prototype(&mut self, _: &impl ReadMemory, _: &VmLayout, prototype: u64, chunkname: u64) -> bool {
        if self.is_heard {
            self.named.push((prototype, chunkname));
        }
        self.is_heard
    }
}

/// An event, and the line at which its prototype is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attributed {
    event: AllocationEvent,
    first_line: u32,
}

impl std::ops::Deref for Attributed {
    type Target = AllocationEvent;
    fn deref(&self) -> &AllocationEvent {
        &self.event
    }
}

/// A chunk, called by `lua_pcall`, that has called the Lua function at line 7 from its bytecode 5.
struct Scene {
    lab: Lab,
    states: VmStates,
    function: u64,
}

/// Runs a test with both widths of references and both numberings.
fn all(test: impl Fn(Scene)) {
    for (gc64, states) in [
        (true, VmStates::Upstream),
        (false, VmStates::Upstream),
        (true, VmStates::Tarantool),
        (false, VmStates::Tarantool),
    ] {
        let mut lab = Lab::new(gc64);
        lab.layout.vm_states = states as u16;
        lab.layout.g_cur_l = 32;
        lab.layout.g_mem_l = if states == VmStates::Tarantool { 40 } else { ABSENT };
        let chunk = lab.lua_function(0, 20);
        let function = lab.lua_function(7, 10);
        lab.push_cframe(CFRAME, 0, 0);
        lab.push_delta(CPCALL, 3, chunk);
        lab.call_from_lua(chunk, 5, function);
        test(Scene { lab, states, function });
    }
}

impl Scene {
    /// The raw state in the scene's numbering.
    fn state(&self, upstream: i32, tarantool: i32) -> i32 {
        if self.states == VmStates::Tarantool { tarantool } else { upstream }
    }

    /// Attributes an allocation while the VM is in this state, with `pc` saved in the C frame.
    fn attribute(&self, vmstate: i32, pc: u64) -> Attributed {
        let Lab { memory, layout, base, cframe, .. } = &self.lab;
        let write_ref = |address: u64, value: u64| match self.lab.gc64() {
            true => memory.write_u64(address, value),
            false => memory.write_u32(address, value as u32),
        };
        memory.write(GLOBAL, &[0; 512]);
        memory.write_u32(GLOBAL + u64::from(layout.g_vmstate), vmstate as u32);
        write_ref(GLOBAL + u64::from(layout.g_cur_l), THREAD);
        if layout.g_mem_l != ABSENT {
            write_ref(GLOBAL + u64::from(layout.g_mem_l), THREAD);
        }
        memory.write(THREAD, &vec![0; if self.lab.gc64() { 88 } else { 56 }]);
        memory.write(THREAD + if self.lab.gc64() { 9 } else { 5 }, &[gct::THREAD]);
        write_ref(THREAD + u64::from(layout.l_glref), GLOBAL);
        memory.write_u64(THREAD + u64::from(layout.l_base), *base);
        // The lowest bits are flags (CFRAME_UNWIND_FF, CFRAME_RESUME).
        memory.write_u64(THREAD + u64::from(layout.l_cframe), cframe | u64::from(*cframe != 0));
        if *cframe != 0 {
            write_ref(cframe + u64::from(layout.cframe_pc), pc);
        }
        self.attribute_now()
    }

    /// Attributes an allocation in the memory as it is.
    fn attribute_now(&self) -> Attributed {
        let mut objects = Remembered::default();
        let event = self.attribute_with(&mut objects);
        // The second time, most of it is known already.
        let again = self.attribute_with(&mut objects);
        assert_eq!(event, again);
        if event.source == AllocationSource::Lua as u8 {
            let names: Vec<u64> = objects.named.iter().map(|&(prototype, _)| prototype).collect();
            assert_eq!(names, [event.place], "each prototype is named once");
        }
        event
    }

    /// Attributes an allocation in the memory as it is, with the given knowledge.
    fn attribute_with(&self, objects: &mut Remembered) -> Attributed {
        self.attribute_block(objects, 0)
    }

    /// The same, if the VM gives the block at `pointer` another size.
    fn attribute_block(&self, objects: &mut Remembered, pointer: u64) -> Attributed {
        let vm = VmConfig::new(GLOBAL, GLOBAL - 96, (0, 0), self.lab.layout);
        let mut event = AllocationEvent { place: 1, line: 1, source: 9, pointer, ..AllocationEvent::default() };
        attribute(&self.lab.memory, &vm, objects, &mut { AttributionRoom::EMPTY }, &mut event);
        Attributed { event, first_line: objects.first_line(event.place) }
    }
}

/// The line where the function is defined, and the current line; if it is no Lua function, its address or number.
fn summary(event: &Attributed) -> String {
    match AllocationSource::from_u8(event.source) {
        Some(AllocationSource::Internal) => "internal".into(),
        Some(AllocationSource::Lua) => format!("{}:{}", event.first_line, event.line),
        Some(AllocationSource::C) => format!("c {:#x}", event.place),
        Some(AllocationSource::Trace) => {
            let place = TracePlace::of(event);
            format!("trace {} at {:x?}", place.number, place.at)
        }
        Some(AllocationSource::LostTrace) => format!("lost trace {}", event.place),
        None => format!("source {}", event.source),
    }
}

#[test]
fn a_lua_function_allocates_at_its_current_bytecode() {
    all(|scene| {
        let event = scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, 4));
        assert_eq!(summary(&event), "7:47");
        assert_eq!(event.first_line, 7);
        let at_first = scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, 0));
        assert_eq!(summary(&at_first), "7:7");
        // A PC of another function: the JIT compiler is running.
        let event = scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), 0x7777_0000);
        assert_eq!(summary(&event), "internal");
    });
}

#[test]
fn lines_are_as_wide_as_they_must_be() {
    all(|scene| {
        let (lab, layout) = (&scene.lab, scene.lab.layout);
        let (state, pc) = (scene.state(INTERP, TARANTOOL_LFUNC), lab.pc(scene.function, 4));
        let prototype = scene.attribute(state, pc).place;
        const TABLE: u64 = 0x70_0000;
        let with_lines = |count: u32, bytes: &[u8], address: u64| {
            lab.memory.write_u32(prototype + u64::from(layout.pt_numline), count);
            lab.write_ref(prototype + u64::from(layout.pt_lineinfo), address);
            lab.memory.write(TABLE, bytes);
            scene.attribute(state, pc)
        };
        assert_eq!(with_lines(255, &[0, 0, 0, 250], TABLE).line, 257);
        assert_eq!(with_lines(256, &[0, 0, 0, 0, 0, 0, 0x34, 0x12], TABLE).line, 7 + 0x1234);
        let wide = [&[0; 12][..], &0x12_3456_u32.to_le_bytes()].concat();
        assert_eq!(with_lines(65_536, &wide, TABLE).line, 7 + 0x12_3456);
        // A stripped function has no lines, but it is still the source.
        assert_eq!(summary(&with_lines(0, &[], 0)), "7:0");
    });
}

#[test]
fn a_fast_function_allocates_for_the_lua_function_that_called_it() {
    all(|mut scene| {
        let fast = scene.lab.c_function(60, 0x9999);
        scene.lab.call_from_lua(scene.function, 3, fast);
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_FFUNC), 0);
        assert_eq!(summary(&event), "7:37");
    });
}

#[test]
fn a_fast_function_as_a_metamethod_allocates_for_the_function_that_goes_on_after_it() {
    all(|mut scene| {
        let fast = scene.lab.c_function(60, 0x9999);
        let pc = scene.lab.pc(scene.function, 8);
        scene.lab.push_continuation(pc, 0xdead_0000, fast);
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_FFUNC), 0);
        assert_eq!(summary(&event), "7:87");
    });
}

#[test]
fn a_fast_function_called_by_anything_else_is_a_c_function() {
    all(|mut scene| {
        let fast = scene.lab.c_function(60, 0x9999);
        scene.lab.push_delta(CPCALL, 4, fast);
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_FFUNC), 0);
        assert_eq!((summary(&event), event.line), ("c 0x9999".into(), 0));
    });
}

#[test]
fn a_c_function_allocates_itself() {
    all(|mut scene| {
        let c = scene.lab.c_function(1, 0x8888);
        scene.lab.call_from_lua(scene.function, 3, c);
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_CFUNC), 0);
        assert_eq!(summary(&event), "c 0x8888");
    });
}

#[test]
fn a_trace_allocates_whatever_the_stack_says() {
    all(|scene| {
        // What an FFI callback leaves behind in Tarantool's VM is no state at all.
        let garbage = summary(&scene.attribute(0x8cd0_3d78_u32 as i32, 0));
        assert_eq!(garbage, if scene.states == VmStates::Tarantool { "lost trace 2362457464" } else { "internal" });
        // It is not known where the VM keeps its traces.
        let event = scene.attribute(17, scene.lab.pc(scene.function, 4));
        assert_eq!((summary(&event), event.line), ("lost trace 17".into(), 0));
    });
}

/// Address of the trace array of a [`Scene`].
const ARRAY: u64 = 0x80_0000;
const MCODE: u64 = 0x90_0000;

impl Scene {
    /// Gives the VM a layout of traces, and the coroutine a return address into machine code.
    fn with_traces(&mut self) {
        let layout = &mut self.lab.layout;
        (layout.j_trace, layout.j_sizetrace, layout.j_mcarea, layout.j_szmcarea) = (0, 8, 16, 24);
        (layout.tr_nsnap, layout.tr_nsnapmap) = (10, 12);
        (layout.tr_nins, layout.tr_nk, layout.tr_startpt, layout.tr_snapmap) = (16, 20, 24, 32);
        (layout.tr_startpc, layout.tr_mcode, layout.tr_szmcode) = (40, 48, 56);
        (layout.tr_spadjust, layout.tr_traceno) = (60, 62);
        let Lab { memory, layout, .. } = &self.lab;
        let jit_state = GLOBAL + u64::from(layout.g_to_j);
        memory.write(jit_state, &[0; 32]);
        memory.write_u64(jit_state, ARRAY);
        memory.write_u32(jit_state + 8, 100);
        memory.write(ARRAY, &[0; 800]);
        // What a trace's call leaves below the C frame.
        memory.write_u64(CFRAME - 24 - 16, MCODE + 0x30);
    }

    /// Puts a trace that starts at a bytecode of a function into the array at `number`, and returns it.
    fn trace(&self, number: u32, address: u64, position: u64) -> u64 {
        let Lab { memory, layout, .. } = &self.lab;
        memory.write(address, &[0; 120]);
        let bytecode = self.lab.pc(self.function, position) - 4;
        let prototype = self.lab.pc(self.function, 0) - 4 - u64::from(layout.sizeof_pt);
        self.lab.write_ref(address + u64::from(layout.tr_startpt), prototype);
        self.lab.write_ref(address + u64::from(layout.tr_startpc), bytecode);
        memory.write_u64(address + u64::from(layout.tr_mcode), MCODE);
        memory.write_u32(address + u64::from(layout.tr_szmcode), 0x100);
        memory.write(address + u64::from(layout.tr_spadjust), &[16, 0]);
        memory.write(address + u64::from(layout.tr_traceno), &[number as u8, 0]);
        self.lab.write_ref(ARRAY + u64::from(number) * if self.lab.gc64() { 8 } else { 4 }, address);
        address
    }
}

#[test]
fn a_trace_is_named_before_it_allocates_and_again_when_another_gets_its_number() {
    all(|mut scene| {
        scene.with_traces();
        let gives = |scene: &Scene, objects: &mut Remembered| {
            scene.attribute(3, 0);
            summary(&scene.attribute_with(objects))
        };
        let mut objects = Remembered::default();
        let first = scene.trace(3, 0xa0_0000, 4);
        assert_eq!(gives(&scene, &mut objects), "trace 3 at Some((900000, 30))");
        let named = |objects: &Remembered| -> Vec<_> {
            objects.traces_named.iter().map(|(identity, line)| (identity.address, identity.number, *line)).collect()
        };
        assert_eq!(named(&objects), [(first, 3, 47)]);
        assert_eq!(objects.named.len(), 1, "the function in which it starts");
        gives(&scene, &mut objects);
        assert_eq!(named(&objects).len(), 1, "once");

        // After a flush, another trace gets the number: first at another address, then at the same one.
        let second = scene.trace(3, 0xa1_0000, 6);
        gives(&scene, &mut objects);
        assert_eq!(named(&objects)[1..], [(second, 3, 67)]);
        objects.forget(second);
        scene.trace(3, second, 8);
        gives(&scene, &mut objects);
        assert_eq!(named(&objects)[2..], [(second, 3, 87)]);

        // No trace has the number, the trace is not complete yet, or it has no start.
        scene.lab.write_ref(ARRAY + 3 * if scene.lab.gc64() { 8 } else { 4 }, 0);
        assert_eq!(gives(&scene, &mut objects), "lost trace 3");
        let jit_state = GLOBAL + u64::from(scene.lab.layout.g_to_j);
        scene.lab.write_ref(ARRAY + 3 * if scene.lab.gc64() { 8 } else { 4 }, jit_state);
        assert_eq!(gives(&scene, &mut objects), "lost trace 3");
        let third = scene.trace(3, 0xa2_0000, 1000);
        assert_eq!(gives(&scene, &mut objects), "trace 3 at Some((900000, 30))");
        assert_eq!(named(&objects)[3..], [(third, 3, NO_LINE)]);
    });
}

#[test]
fn a_trace_that_nobody_was_told_of_is_lost() {
    all(|mut scene| {
        scene.with_traces();
        scene.trace(3, 0xa0_0000, 4);
        let mut objects = Remembered { is_heard: false, ..Remembered::default() };
        scene.attribute(3, 0);
        assert_eq!(summary(&scene.attribute_with(&mut objects)), "lost trace 3");
        // The next event tries again.
        objects.is_heard = true;
        assert_eq!(summary(&scene.attribute_with(&mut objects)), "trace 3 at Some((900000, 30))");
    });
}

#[test]
fn the_vm_itself_is_internal() {
    all(|scene| {
        let pc = scene.lab.pc(scene.function, 4);
        // 0 is the state of a VM that is being made.
        for state in [scene.state(UPSTREAM_GC, TARANTOOL_GC), scene.state(UPSTREAM_RECORD, !6), !8, 0] {
            assert_eq!(summary(&scene.attribute(state, pc)), "internal");
        }
        // Between functions. Upstream builds do not distinguish this from code within functions.
        let between = summary(&scene.attribute(INTERP, pc));
        let is_known = scene.states == VmStates::Tarantool && STATE_NAMES_KIND;
        assert_eq!(between, if is_known { "internal" } else { "7:47" });
    });
}

#[test]
fn the_stack_that_tarantool_moves_is_internal() {
    const STACK: u64 = 0x77_0000;
    all(|scene| {
        scene.attribute(INTERP, scene.lab.pc(scene.function, 4));
        scene.lab.memory.write_u64(THREAD + u64::from(scene.lab.layout.l_stack), STACK);
        let seen = |block| summary(&scene.attribute_block(&mut Remembered::default(), block));
        let is_tarantool = scene.states == VmStates::Tarantool;
        assert_eq!(seen(STACK), if is_tarantool { "internal" } else { "7:47" });
        assert_eq!(seen(STACK + 16), if is_tarantool && STATE_NAMES_KIND { "internal" } else { "7:47" });
    });
}

#[test]
fn tarantool_notes_who_allocates() {
    all(|scene| {
        if scene.states != VmStates::Tarantool {
            return;
        }
        let layout = scene.lab.layout;
        scene.attribute(TARANTOOL_LFUNC, scene.lab.pc(scene.function, 4));
        // Another coroutine is current, or none is: mem_L counts.
        scene.lab.memory.write_u64(GLOBAL + u64::from(layout.g_cur_l), 0);
        scene.lab.memory.write_u64(GLOBAL + u64::from(layout.g_mem_l), THREAD);
        assert_eq!(summary(&scene.attribute_now()), "7:47");
    });
}

#[test]
fn what_cannot_be_read_or_is_not_what_it_should_be_is_internal() {
    all(|scene| {
        let (state, pc) = (scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, 4));
        let damaged = |address: u64, bytes: &[u8]| {
            scene.attribute(state, pc);
            scene.lab.memory.write(address, bytes);
            summary(&scene.attribute_now())
        };
        let layout = scene.lab.layout;
        let gct_at = if scene.lab.gc64() { 9 } else { 5 };
        assert_eq!(damaged(THREAD + gct_at, &[gct::FUNC]), "internal");
        assert_eq!(damaged(THREAD + u64::from(layout.l_glref), &[1]), "internal");
        assert_eq!(damaged(THREAD + u64::from(layout.l_base), &[0; 8]), "internal");
        assert_eq!(damaged(scene.function + gct_at, &[gct::PROTO]), "internal");
        let nowhere = VmConfig::new(0x1000, 0x900, (0, 0), layout);
        let mut event = AllocationEvent { source: 9, ..AllocationEvent::default() };
        attribute(&scene.lab.memory, &nowhere, &mut Remembered::default(), &mut { AttributionRoom::EMPTY }, &mut event);
        assert_eq!(summary(&Attributed { event, first_line: 0 }), "internal");
    });
}

/// LuaJIT 2.0: the caller has found out which coroutine runs.
#[test]
fn a_vm_that_does_not_name_its_coroutine_is_told() {
    all(|mut scene| {
        scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, 4));
        let named = summary(&scene.attribute_now());
        assert_ne!(named, "internal");
        (scene.lab.layout.g_cur_l, scene.lab.layout.g_mem_l) = (ABSENT, ABSENT);
        assert_eq!(summary(&scene.attribute_now()), "internal");
        let vm = VmConfig::new(GLOBAL, GLOBAL - 96, (0, 0), scene.lab.layout);
        let (mut objects, mut room) = (Remembered::default(), AttributionRoom::EMPTY);
        for (thread, expected) in [(THREAD, named.as_str()), (GLOBAL, "internal"), (0, "internal")] {
            let mut event = AllocationEvent::default();
            room.note_thread(thread);
            attribute(&scene.lab.memory, &vm, &mut objects, &mut room, &mut event);
            let first_line = objects.first_line(event.place);
            assert_eq!(summary(&Attributed { event, first_line }), expected);
        }
    });
}

#[test]
fn a_coroutine_that_has_yielded_does_not_allocate() {
    all(|mut scene| {
        // A C host goes on after `lua_resume`: upstream's cur_L still names the coroutine.
        let c = scene.lab.c_function(1, 0x8888);
        scene.lab.call_from_lua(scene.function, 3, c);
        scene.lab.cframe = 0;
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_CFUNC), 0);
        let expected = if scene.states == VmStates::Tarantool { "c 0x8888" } else { "internal" };
        assert_eq!(summary(&event), expected);
    });
}

#[test]
fn the_coroutine_itself_in_a_frame_is_nobody() {
    all(|mut scene| {
        // The dummy frame at the bottom: lua_newtable and the like, called by a host outside of any function.
        scene.lab = {
            let mut lab = Lab::new(scene.lab.gc64());
            lab.layout = scene.lab.layout;
            lab
        };
        assert_eq!(summary(&scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_CFUNC), 0)), "internal");
    });
}

#[test]
fn a_vararg_function_has_one_place() {
    all(|mut scene| {
        let vararg = scene.lab.lua_function(9, 10);
        scene.lab.call_from_lua(scene.function, 3, vararg);
        scene.lab.push_delta(VARG, 5, vararg);
        let event = scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(vararg, 1));
        assert_eq!(summary(&event), "9:19");
    });
}

#[test]
fn a_fast_function_called_through_pcall_is_a_c_function() {
    all(|mut scene| {
        let (pcall, fast) = (scene.lab.c_function(20, 0x7777), scene.lab.c_function(60, 0x9999));
        scene.lab.call_from_lua(scene.function, 3, pcall);
        scene.lab.push_delta(PCALL, 2, fast);
        let event = scene.attribute(scene.state(UPSTREAM_C, TARANTOOL_FFUNC), 0);
        assert_eq!(summary(&event), "c 0x9999");
    });
}

#[test]
fn a_calls_arguments_tell_what_it_does() {
    use AllocationKind::{Alloc, Free, Realloc};
    let cases = [(0, 16, Alloc), (0x1000, 16, Realloc), (0x1000, 0, Free), (0, 0, Free)];
    for (pointer, size, kind) in cases {
        assert_eq!(AllocationKind::of_call(pointer, size), kind);
        assert_eq!(AllocationKind::from_u8(kind as u8), Some(kind));
    }
    assert_eq!(AllocationKind::from_u8(3), None);
}

#[test]
fn what_is_freed_is_forgotten() {
    all(|scene| {
        let mut objects = Remembered::default();
        let attribute_at = |objects: &mut Remembered, position| {
            scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, position));
            scene.attribute_with(objects)
        };
        let before = attribute_at(&mut objects, 4);
        assert_eq!(summary(&attribute_at(&mut objects, 5)), "7:57");
        // Another prototype takes the same address: what lies there is not read again until the old one is forgotten.
        scene.lab.memory.write_u32(before.place + u64::from(scene.lab.layout.pt_firstline), 100);
        assert_eq!(summary(&attribute_at(&mut objects, 5)), "7:57");
        objects.forget(scene.function + 8);
        objects.forget(scene.function);
        assert_eq!(summary(&attribute_at(&mut objects, 5)), "7:57");
        assert_eq!(objects.named.len(), 1);
        objects.forget(before.place);
        assert_eq!(summary(&attribute_at(&mut objects, 5)), "100:150");
        assert_eq!(objects.named.len(), 2);
    });
}

#[test]
fn a_prototype_that_cannot_be_named_is_nameless_until_it_can() {
    all(|scene| {
        scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, 4));
        let mut objects = Remembered { is_heard: false, ..Remembered::default() };
        for _ in 0..2 {
            let event = scene.attribute_with(&mut objects);
            assert_eq!((event.source, event.place, event.line), (AllocationSource::Lua as u8, NAMELESS, 47));
        }
        objects.is_heard = true;
        assert_eq!(summary(&scene.attribute_with(&mut objects)), "7:47");
        assert_eq!(objects.named.len(), 1);
    });
}

#[test]
fn many_lines_of_a_prototype_are_told_apart() {
    all(|scene| {
        let mut objects = Remembered::default();
        for _ in 0..3 {
            for position in 1..10 {
                scene.attribute(scene.state(INTERP, TARANTOOL_LFUNC), scene.lab.pc(scene.function, position));
                let event = scene.attribute_with(&mut objects);
                assert_eq!(summary(&event), format!("7:{}", 7 + 10 * position));
            }
        }
    });
}
