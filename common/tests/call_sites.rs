//! Leaving LuaJIT's C code by what is known of its calls, over made-up stacks.

#[allow(dead_code, reason = "the other tests use the rest")]
mod support;

use std::collections::HashMap;

use lj_trace_common::allocation::call_site::{CallSite, CallingPlace};
use lj_trace_common::allocation::known::{KnownFunction, KnownObjects, KnownPrototype};
use lj_trace_common::allocation::on_trace::RememberedTrace;
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;
use lj_trace_common::trace::TraceIdentity;
use support::Memory;

/// Knows calls, and nothing else.
#[derive(Default)]
struct Calls(HashMap<u64, CallSite>);

impl KnownObjects for Calls {
    fn function(&mut self, _: u64) -> Option<&mut KnownFunction> {
        None
    }

    fn prototype(&mut self, _: u64) -> Option<&mut KnownPrototype> {
        None
    }

    fn trace(&mut self, _: u64) -> Option<&mut RememberedTrace> {
        None
    }

    fn call_site(&self, return_address: u64) -> Option<CallSite> {
        self.0.get(&return_address).copied()
    }

    fn name_trace(&mut self, _: &TraceIdentity, _: u32) -> bool {
        false
    }

    fn name_prototype(&mut self, _: &impl ReadMemory, _: &VmLayout, _: u64, _: u64) -> bool {
        false
    }
}

/// A generator of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The address in a trace to which the outermost C function returns.
const IN_TRACE: u64 = 0x7f00_1234;
const STACK: u64 = 0x50_0000;

/// A stack of so many C functions that a trace has called: the memory, the calls, and the innermost place.
fn stack(numbers: &mut Numbers, functions: u64) -> (Memory, Calls, CallingPlace, u64) {
    let (memory, mut calls) = (Memory::default(), Calls::default());
    let mut stack_pointer = STACK;
    let code = |function: u64| if function == functions { IN_TRACE } else { 0x40_0000 + 64 * function };
    for function in 0..functions {
        let words = 1 + numbers.below(40);
        let saved = 1 + numbers.below(words);
        let site = CallSite { frame: 16 * words as u32, saved: 16 * saved as u32 };
        // What else is in the frame looks like return addresses, too.
        for word in 0..2 * words {
            memory.write_u64(stack_pointer + 8 * word, code(numbers.below(functions + 1)));
        }
        let end = stack_pointer + u64::from(site.frame);
        memory.write_u64(end - u64::from(site.saved), code(function + 1));
        calls.0.insert(code(function), site);
        stack_pointer = end;
    }
    (memory, calls, CallingPlace { return_address: code(0), stack_pointer: STACK }, stack_pointer)
}

#[test]
fn c_code_is_left_to_the_trace_that_called_it() {
    let mut numbers = Numbers(5);
    for turn in 0..2000 {
        let functions = turn % 12;
        let (memory, calls, innermost, stack_pointer) = stack(&mut numbers, functions);
        let expected = CallingPlace { return_address: IN_TRACE, stack_pointer };
        assert_eq!(innermost.leave_c(&memory, &calls), expected, "{functions} functions");
    }
}

#[test]
fn a_stack_that_cannot_be_followed_leads_nowhere() {
    let mut numbers = Numbers(7);
    for functions in 1..12 {
        // A part of the stack is not readable.
        let (_, calls, innermost, _) = stack(&mut numbers, functions);
        assert_eq!(innermost.leave_c(&Memory::default(), &calls), CallingPlace::NONE);
        // A call that nobody knows is the end: it is in no trace.
        let (memory, mut calls, innermost, _) = stack(&mut numbers, functions);
        let unknown = 0x40_0000 + 64 * numbers.below(functions);
        calls.0.remove(&unknown);
        assert_eq!(innermost.leave_c(&memory, &calls).return_address, unknown);
    }
    // More functions than there can be, or a loop.
    let (memory, calls, innermost, _) = stack(&mut numbers, 40);
    assert_eq!(innermost.leave_c(&memory, &calls), CallingPlace::NONE);
}
