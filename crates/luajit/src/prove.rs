//! The proof that a layout fits a VM: invariants of `global_State` that hold at any moment of its life.
//!
//! A layout is trusted only if every invariant holds. The target runs while it is read: memory that has changed
//! meanwhile is no evidence against a layout ([`Evidence`]).
//!
//! LuaJIT's sources: [`GCSpause`], [`DISPMODE_*`], [`MMDEF`], [`lj_dispatch_init`], [`LJ_TRACE_*`],
//! [`lj_trace_alloc`], [`lj_mcode_free`].
//!
//! [`GCSpause`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_gc.h#L11-L14
//! [`DISPMODE_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.c#L98-L103
//! [`MMDEF`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L557-L564
//! [`lj_dispatch_init`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_dispatch.c#L77-L78
//! [`LJ_TRACE_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_jit.h#L144-L153
//! [`lj_trace_alloc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_trace.c#L123-L142
//! [`lj_mcode_free`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_mcode.c#L374-L386

use std::cell::Cell;

use lj_trace_common::arch::code_address;
use lj_trace_common::layout::{ABSENT, BytecodeSet, VmLayout, VmStates, gct};
use lj_trace_common::memory::{ReadMemory, Unreadable};
use lj_trace_process::{Mapping, Maps};

use super::arch::cframe_return_slot;
use super::object::{field, read_string, type_of};
use super::overlay::Overlay;
use super::scan::Candidate;
use super::value::{self, Value};

/// The result of an invariant: whether it holds, or that its memory cannot be read.
type Verdict = Result<bool, Unreadable>;

/// A condition that holds in every VM, if the VM is read with the right layout.
struct Invariant<M> {
    name: &'static str,
    /// Whether it is about memory that no VM ever changes.
    fixed: bool,
    holds: fn(&Facts<'_, M>) -> Verdict,
}

/// An invariant about memory that a VM changes while it runs.
const fn moving<M>(name: &'static str, holds: fn(&Facts<'_, M>) -> Verdict) -> Invariant<M> {
    Invariant { name, fixed: false, holds }
}

/// An invariant about memory that a VM never changes.
const fn fixed<M>(name: &'static str, holds: fn(&Facts<'_, M>) -> Verdict) -> Invariant<M> {
    Invariant { name, fixed: true, holds }
}

/// One candidate VM, read with one layout.
struct Facts<'a, M> {
    memory: &'a Overlay<'a, M>,
    maps: &'a Maps,
    layout: &'a VmLayout,
    thread: u64,
    global: u64,
    /// Whether an address was outside of all mappings, which were read a moment ago and may be outdated.
    reads_elsewhere: Cell<bool>,
    /// Whether the VM had nothing that could violate the invariant.
    vacuous: Cell<bool>,
}

/// Bytes from the main thread's start that are copied at once: all of `GG_State` in every layout.
pub const GG_STATE: usize = 8192;

/// A set of failed invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures(u64);

impl Failures {
    /// None failed.
    pub const NONE: Self = Self(0);
    /// All failed: the starting point, since an invariant counts as failed only if it failed every time.
    pub const ALL: Self = Self((1 << Facts::<lj_trace_process::ProcessMemory>::INVARIANTS.len()) - 1);

    /// The number of the invariant that the main thread has a Lua stack.
    const STACK: usize = 0;

    /// The invariants in the set, with their numbers.
    fn invariants<M: ReadMemory>(self) -> impl Iterator<Item = (usize, Invariant<M>)> {
        Facts::<M>::INVARIANTS.into_iter().enumerate().filter(move |(index, _)| self.0 >> index & 1 != 0)
    }

    /// The invariants that failed both times.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many failed.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The names of the failed invariants.
    pub fn names(self) -> Vec<&'static str> {
        self.invariants::<lj_trace_process::ProcessMemory>().map(|(_, invariant)| invariant.name).collect()
    }
}

/// What looks at a running VM have shown about one layout.
///
/// An invariant that held once is proven: its fields were seen where the layout has them. But if the VM had nothing that could
/// violate the invariant, it may still be violated later. A failure speaks against the layout only if none of the memory that
/// was read for it has changed meanwhile, and if it repeats: some states last for a moment in which nothing changes.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// Invariants that have not held yet.
    unproven: Failures,
    /// How often the first of these has failed since all before it have held.
    failed: u32,
    /// How often it has failed while memory held still.
    failed_still: u32,
    /// Invariants that held only because nothing could violate them.
    vacuous: Failures,
    /// How often the vacuous ones have failed since, while memory held still.
    contradicted: u32,
}

impl Evidence {
    /// The evidence before the first look.
    pub const NONE: Self =
        Self { unproven: Failures::ALL, failed: 0, failed_still: 0, vacuous: Failures::NONE, contradicted: 0 };

    /// This many contradictions are no coincidence.
    const CONTRADICTED: u32 = 2;

    /// The weight of a failure of a fixed invariant, compared with one of a moving invariant.
    const FIXED: u32 = 16;

    /// Looks once more: tries the invariants that have not held yet, up to the first that still fails. All layouts can
    /// share `look`.
    pub fn look<M: ReadMemory>(&mut self, look: &Look<'_, M>, layout: &VmLayout) {
        // Nearly all layouts fail here, where little more than the copy is needed.
        if !self.look_at(look, layout, |index, fixed| fixed || index == Failures::STACK) {
            return;
        }
        // A copy of its own: the older a copy is, the less it fits the memory around it.
        if self.unproven != Failures::NONE || self.is_vacuous() {
            self.look_at(&look.again(), layout, |_, _| true);
        }
    }

    /// Tries the open invariants that `tries` selects by number and by whether they are fixed. Returns whether all of
    /// these hold.
    fn look_at<M: ReadMemory>(
        &mut self,
        look: &Look<'_, M>,
        layout: &VmLayout,
        tries: impl Fn(usize, bool) -> bool,
    ) -> bool {
        let facts = look.facts(layout);
        let open = Failures(self.unproven.0 | self.vacuous.0);
        for (index, invariant) in open.invariants::<M>().filter(|(index, invariant)| tries(*index, invariant.fixed)) {
            look.overlay.forget_uses();
            facts.reads_elsewhere.set(false);
            facts.vacuous.set(false);
            let (bit, was_proven) = (1 << index, self.unproven.0 >> index & 1 == 0);
            if (invariant.holds)(&facts) == Ok(true) {
                self.vacuous.0 = if facts.vacuous.get() { self.vacuous.0 | bit } else { self.vacuous.0 & !bit };
                self.unproven.0 &= !bit;
                if !was_proven {
                    (self.failed, self.failed_still) = (0, 0);
                }
                continue;
            }
            let held_still = !facts.reads_elsewhere.get() && look.overlay.is_as_used();
            if !was_proven {
                self.failed += 1;
                self.failed_still += u32::from(held_still) * if invariant.fixed { Self::FIXED } else { 1 };
                return false;
            }
            self.contradicted += u32::from(held_still);
            if self.contradicted >= Self::CONTRADICTED {
                self.unproven.0 |= bit;
                self.vacuous.0 &= !bit;
                self.failed_still = u32::MAX;
            }
        }
        true
    }

    /// Whether all invariants are proven.
    pub fn fits(&self) -> bool {
        self.unproven == Failures::NONE
    }

    /// Whether some invariant held only because nothing could violate it.
    pub fn is_vacuous(&self) -> bool {
        self.vacuous != Failures::NONE
    }

    /// The invariants that are not proven.
    pub fn unproven(&self) -> Failures {
        self.unproven
    }

    /// Whether the candidate has a Lua stack; all layouts agree about that.
    pub fn has_stack(&self) -> bool {
        self.unproven.0 >> Failures::STACK & 1 == 0
    }

    /// Whether an invariant has failed this often while memory held still.
    pub fn is_refuted(&self, times: u32) -> bool {
        self.failed_still >= times
    }

    /// How many looks in a row have proven no further invariant.
    pub fn failed(&self) -> u32 {
        self.failed
    }
}

/// One look at a candidate.
pub struct Look<'a, M> {
    overlay: Overlay<'a, M>,
    maps: &'a Maps,
    candidate: Candidate,
}

impl<'a, M: ReadMemory> Look<'a, M> {
    /// Copies the candidate's `GG_State`.
    pub fn new(memory: &'a M, maps: &'a Maps, candidate: Candidate) -> Self {
        Self { overlay: Overlay::noting(memory, candidate.thread, GG_STATE), maps, candidate }
    }

    /// Like [`Self::new`], for callers that do not ask whether memory has changed since.
    pub fn once(memory: &'a M, maps: &'a Maps, candidate: Candidate) -> Self {
        Self { overlay: Overlay::new(memory, candidate.thread, GG_STATE), maps, candidate }
    }

    /// A new look at the same candidate.
    fn again(&self) -> Self {
        Self::new(self.overlay.memory(), self.maps, self.candidate)
    }

    /// The invariants that `layout` violates.
    pub fn failures(&self, layout: &VmLayout) -> Failures {
        let facts = self.facts(layout);
        let violated = Failures::ALL.invariants::<M>().filter(|(_, invariant)| (invariant.holds)(&facts) != Ok(true));
        Failures(violated.fold(0, |set, (index, _)| set | 1 << index))
    }

    fn facts<'b>(&'b self, layout: &'b VmLayout) -> Facts<'b, M> {
        let Candidate { thread, global, .. } = self.candidate;
        Facts {
            memory: &self.overlay,
            maps: self.maps,
            layout,
            thread,
            global,
            reads_elsewhere: Cell::default(),
            vacuous: Cell::default(),
        }
    }

    /// The addresses of machine code in the dispatch table of `layout`.
    pub fn dispatch_targets(&self, layout: &VmLayout) -> Vec<u64> {
        let table = field(self.candidate.global, layout.g_to_dispatch);
        let entries = (0..u64::from(layout.dispatch_len)).map(|index| self.overlay.read(table.wrapping_add(8 * index)));
        entries.filter_map(Result::ok).collect()
    }
}

impl<M: ReadMemory> Facts<'_, M> {
    /// The invariants with their names. They are tried in this order: first those that most layouts fail and that need
    /// nothing but the copy of `GG_State`.
    const INVARIANTS: [Invariant<M>; 25] = [
        moving("the main thread has a Lua stack", |f| f.main_thread_has_a_stack()),
        fixed("mainthref is the main thread", |f| Ok(f.g_ref(f.layout.g_mainthref)? == f.thread)),
        fixed("dispatch is a table of code", |f| f.dispatch_table()),
        fixed("bcff is the list of fast functions' headers", |f| f.fast_function_headers()),
        moving("allocf is code", |f| Ok(f.is_code(f.memory.read(f.g(f.layout.g_allocf))?))),
        moving("gc.currentwhite is a white", |f| Ok(matches!(f.g_byte(f.layout.g_gc_currentwhite)?, 0x21 | 0x22))),
        // GCSpause to GCSfinalize (`lj_gc.h`).
        moving("gc.state is a state", |f| Ok(f.g_byte(f.layout.g_gc_state)? <= 5)),
        // A closed VM has nothing left but its own state.
        moving("gc.total covers more than the state itself", |f| {
            let total = f.g_ref(f.layout.g_gc_total)?;
            Ok(total > u64::from(f.layout.g_to_bcff) && total < 1 << 46)
        }),
        moving("gc.root is an object", |f| {
            let root = type_of(f.memory, f.layout, f.g_ref(f.layout.g_gc_root)?)?;
            Ok((gct::STR..=12).contains(&root))
        }),
        moving("the string table is a table of a power of two", |f| f.string_table()),
        fixed("strempty is the empty string", |f| f.empty_string()),
        moving("hookmask and dispatchmode are possible", |f| {
            // DISPMODE_* (`lj_dispatch.c`): CALL 1, RET 2, INS 4, JIT 16, REC 32, PROF 64.
            Ok(f.g_byte(f.layout.g_dispatchmode)? & !0x77 == 0)
        }),
        moving("vmstate is a VM state or a trace's number", |f| f.vm_state()),
        moving("the registry is a table", |f| f.registry()),
        fixed("nilnode is nil", |f| f.nil_node()),
        moving("uvhead links open upvalues", |f| f.upvalue_list()),
        fixed("bc_cfunc_int and bc_cfunc_ext are headers of C functions", |f| f.c_function_headers()),
        moving("cur_L is a thread of this VM", |f| match f.layout.g_cur_l {
            ABSENT => Ok(true),
            offset => f.is_thread_or_null(f.g_ref(offset)?),
        }),
        moving("mem_L is a thread or null", |f| match f.layout.g_mem_l {
            ABSENT => Ok(true),
            // The coroutine that allocated last; it may have been collected since.
            offset => Ok(f.g_ref(offset).is_ok_and(|thread| thread == 0 || f.is_data(thread))),
        }),
        moving("jit_base is in the running thread's stack", |f| f.jit_base()),
        fixed("gcroot begins with the names of metamethods", |f| f.metamethod_names()),
        moving("C frames link the thread, the previous frame and a return address", |f| f.c_frames()),
        moving("jit_State is in a possible state", |f| f.or_without_jit(|f| f.jit_state())),
        moving("J->mcarea is code", |f| f.or_without_jit(|f| f.machine_code_area())),
        moving("J->trace lists traces", |f| f.or_without_jit(|f| f.traces())),
    ];

    fn g(&self, offset: u16) -> u64 {
        field(self.global, offset)
    }

    fn g_byte(&self, offset: u16) -> Result<u8, Unreadable> {
        self.memory.read(self.g(offset))
    }

    fn g_ref(&self, offset: u16) -> Result<u64, Unreadable> {
        self.memory.read_ref(self.layout.is_gc64(), self.g(offset))
    }

    fn j(&self, offset: u16) -> u64 {
        self.g(self.layout.g_to_j) + u64::from(offset)
    }

    fn field_ref(&self, object: u64, offset: u16) -> Result<u64, Unreadable> {
        self.memory.read_ref(self.layout.is_gc64(), field(object, offset))
    }

    /// The mapping at an address.
    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let mapping = self.maps.find(address);
        self.reads_elsewhere.set(self.reads_elsewhere.get() || mapping.is_none());
        mapping
    }

    fn is_code(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|mapping| mapping.exec)
    }

    fn is_data(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|mapping| mapping.write)
    }

    fn is_thread(&self, address: u64) -> Verdict {
        Ok(self.is_data(address)
            && type_of(self.memory, self.layout, address)? == gct::THREAD
            && self.field_ref(address, self.layout.l_glref)? == self.global)
    }

    fn is_thread_or_null(&self, address: u64) -> Verdict {
        if address == 0 { Ok(true) } else { self.is_thread(address) }
    }

    /// The range of a thread's Lua stack.
    fn stack_of(&self, thread: u64) -> Result<std::ops::Range<u64>, Unreadable> {
        let stack = self.field_ref(thread, self.layout.l_stack)?;
        let slots: u32 = self.memory.read(field(thread, self.layout.l_stacksize))?;
        Ok(stack..stack.saturating_add(value::SIZE * u64::from(slots)))
    }

    fn main_thread_has_a_stack(&self) -> Verdict {
        let stack = self.stack_of(self.thread)?;
        let base: u64 = self.memory.read(field(self.thread, self.layout.l_base))?;
        let top: u64 = self.memory.read(field(self.thread, self.layout.l_top))?;
        let end = self.field_ref(self.thread, self.layout.l_maxstack)?;
        Ok(self.is_data(stack.start)
            && (stack.start | base | top | end).is_multiple_of(value::SIZE)
            && base > stack.start
            && [base, top, end].iter().all(|pointer| stack.contains(pointer)))
    }

    fn string_table(&self) -> Verdict {
        let mask: u32 = self.memory.read(self.g(self.layout.g_str_mask))?;
        let table = self.g_ref(self.layout.g_str_tab)?;
        let reference = if self.layout.is_gc64() { 8 } else { 4 };
        let last = table.saturating_add(u64::from(mask) * reference);
        // LJ_MIN_STRTAB is 256.
        Ok(mask >= 255 && mask.wrapping_add(1).is_power_of_two() && self.is_data(table) && self.is_data(last))
    }

    fn empty_string(&self) -> Verdict {
        let string = self.g(self.layout.g_strempty);
        let length: u32 = self.memory.read(field(string, self.layout.str_len))?;
        let terminator: u8 = self.memory.read(field(string, self.layout.sizeof_str))?;
        Ok(type_of(self.memory, self.layout, string)? == gct::STR && length == 0 && terminator == 0)
    }

    fn vm_state(&self) -> Verdict {
        let state: i32 = self.memory.read(self.g(self.layout.g_vmstate))?;
        let lowest = match self.layout.states() {
            VmStates::Upstream => -7,
            VmStates::Tarantool => -9,
        };
        Ok((lowest..65536).contains(&state))
    }

    fn registry(&self) -> Verdict {
        match value::read(self.memory, self.layout, self.g(self.layout.g_registrytv))? {
            Value::Object { gct: gct::TAB, address } => Ok(type_of(self.memory, self.layout, address)? == gct::TAB),
            _ => Ok(false),
        }
    }

    fn nil_node(&self) -> Verdict {
        let node = self.g(self.layout.g_nilnode);
        let is_nil = |offset| Ok(value::read(self.memory, self.layout, field(node, offset))? == Value::Nil);
        Ok(is_nil(0)? && is_nil(value::SIZE as u16)?)
    }

    fn upvalue_list(&self) -> Verdict {
        let head = self.g(self.layout.g_uvhead);
        // GCupval.prev and next.
        let (previous, next) = if self.layout.is_gc64() { (16, 24) } else { (8, 12) };
        for offset in [previous, next] {
            let upvalue = self.field_ref(head, offset)?;
            if upvalue != head && type_of(self.memory, self.layout, upvalue)? != gct::UPVAL {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn c_function_headers(&self) -> Verdict {
        let [internal, external]: [u32; 2] = self.memory.read(self.g(self.layout.g_bc_cfunc_int))?;
        let header = u32::from(self.layout.bc_funcc);
        // A is LUA_MINSTACK. A wrapper function (LUAJIT_MODE_WRAPCFUNC) makes the second one FUNCCW.
        Ok(internal == header | 20 << 8 && [header, header + 1].contains(&(external & 0xff)))
    }

    fn jit_base(&self) -> Verdict {
        let base = self.g_ref(self.layout.g_jit_base)?;
        if base == 0 {
            return Ok(true);
        }
        if self.layout.g_cur_l == ABSENT {
            return Ok(base.is_multiple_of(value::SIZE) && self.is_data(base));
        }
        Ok(self.stack_of(self.g_ref(self.layout.g_cur_l)?)?.contains(&base))
    }

    fn metamethod_names(&self) -> Verdict {
        // The first entries of MMDEF (`lj_obj.h`), the same in every build.
        const NAMES: [&str; 6] = ["__index", "__newindex", "__gc", "__mode", "__eq", "__len"];
        let width = if self.layout.is_gc64() { 8 } else { 4 };
        for (name, offset) in NAMES.iter().zip((0..).step_by(width)) {
            let string = self.g_ref(self.layout.g_gcroot + offset)?;
            let text = read_string(self.memory, self.layout, string, 16).map_err(|_| Unreadable)?;
            if text != name.as_bytes() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn dispatch_table(&self) -> Verdict {
        let table = self.g(self.layout.g_to_dispatch);
        for index in 0..u64::from(self.layout.dispatch_len) {
            if !self.is_code(self.memory.read(table.wrapping_add(8 * index))?) {
                return Ok(false);
            }
        }
        // The hot counters lie right before the table.
        Ok(!self.is_code(self.memory.read(table.wrapping_sub(8))?))
    }

    fn fast_function_headers(&self) -> Verdict {
        // The headers of assembler fast functions are pseudo bytecodes after the last one (`lj_dispatch.c`).
        let first = u32::from(self.layout.bc_funcc) + 2;
        let headers: [u32; 4] = self.memory.read(self.g(self.layout.g_to_bcff))?;
        Ok(headers == [first, first + 1, first + 2, first + 3])
    }

    /// Follows the main thread's C frames: the flags in the lowest bits of `cframe` are `CFRAME_RESUME` and
    /// `CFRAME_UNWIND_FF`.
    fn c_frames(&self) -> Verdict {
        let mut frame: u64 = self.memory.read(field(self.thread, self.layout.l_cframe))?;
        for _ in 0..16 {
            frame &= !3;
            if frame == 0 {
                return Ok(true);
            }
            let thread = self.field_ref(frame, self.layout.cframe_l)?;
            let return_address: u64 = self.memory.read(field(frame, cframe_return_slot(self.layout)))?;
            let previous: u64 = self.memory.read(field(frame, self.layout.cframe_prev))?;
            if thread != self.thread
                || !self.is_code(code_address(return_address))
                || previous != 0 && previous <= frame
            {
                return Ok(false);
            }
            frame = previous;
        }
        Ok(true)
    }

    /// True in a build without the JIT compiler; else the result of `holds`.
    fn or_without_jit(&self, holds: impl Fn(&Self) -> Verdict) -> Verdict {
        if self.layout.g_to_j == ABSENT { Ok(true) } else { holds(self) }
    }

    fn jit_state(&self) -> Verdict {
        let state: u32 = self.memory.read(self.j(self.layout.j_state))?;
        let free: u32 = self.memory.read(self.j(self.layout.j_freetrace))?;
        let size: u32 = self.memory.read(self.j(self.layout.j_sizetrace))?;
        let traces: u64 = self.memory.read(self.j(self.layout.j_trace))?;
        let exit: [u32; 2] =
            [self.memory.read(self.j(self.layout.j_parent))?, self.memory.read(self.j(self.layout.j_exitno))?];
        // LJ_TRACE_* (`lj_jit.h`) are below 0x40; numbers of traces and exits are 16 bits wide.
        let possible = state < 0x40 && free <= size && size <= 65536 && exit.iter().all(|number| *number < 65536);
        Ok(possible && if size == 0 { traces == 0 } else { self.is_data(traces) })
    }

    fn machine_code_area(&self) -> Verdict {
        let area: u64 = self.memory.read(self.j(self.layout.j_mcarea))?;
        let size: u64 = self.memory.read(self.j(self.layout.j_szmcarea))?;
        let is_size = size.is_multiple_of(4096) && size <= 1 << 30;
        if area == 0 {
            // After a flush, the size is still that of the freed areas:
            // https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_mcode.c#L374-L378
            self.vacuous.set(true);
            return Ok(is_size);
        }
        // While a trace is assembled, its area is writable instead of executable.
        let mapped = self.mapping(area).is_some_and(|mapping| !mapping.is_file() && (mapping.exec || mapping.write));
        Ok(area.is_multiple_of(4096) && mapped && size != 0 && is_size)
    }

    fn traces(&self) -> Verdict {
        /// How many trace numbers are checked: more of them prove nothing more.
        const ENOUGH: u64 = 32;
        let size: u32 = self.memory.read(self.j(self.layout.j_sizetrace))?;
        let array: u64 = self.memory.read(self.j(self.layout.j_trace))?;
        let width = if self.layout.is_gc64() { 8 } else { 4 };
        self.vacuous.set(true);
        for number in 1..u64::from(size).min(ENOUGH) {
            let trace = self.memory.read_ref(self.layout.is_gc64(), array.wrapping_add(width * number))?;
            // The trace that is being recorded is still a part of `jit_State`.
            if trace != 0 && trace != self.j(0) {
                self.vacuous.set(false);
                if !self.is_trace(trace, number)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn is_trace(&self, trace: u64, number: u64) -> Verdict {
        let l = self.layout;
        let at = |offset: u16| field(trace, offset);
        let m = self.memory;
        let traceno = u64::from(m.read::<u16>(at(l.tr_traceno))?);
        let mcode: u64 = m.read(at(l.tr_mcode))?;
        let (ir, nins, nk) = (m.read::<u64>(at(l.tr_ir))?, m.read::<u32>(at(l.tr_nins))?, m.read::<u32>(at(l.tr_nk))?);
        // A trace is one block: header, IR, snapshots, map of snapshots (`lj_trace_alloc`).
        let snapshots: u64 = m.read(at(l.tr_snap))?;
        let map: u64 = m.read(at(l.tr_snapmap))?;
        let count = u64::from(m.read::<u16>(at(l.tr_nsnap))?);
        let map_length = if l.sizeof_snap == 8 {
            u64::from(m.read::<u16>(at(l.tr_nsnapmap))?)
        } else {
            u64::from(m.read::<u32>(at(l.tr_nsnapmap))?)
        };
        let header = ir.wrapping_add(8 * u64::from(nk)).wrapping_sub(trace);
        Ok(type_of(m, l, trace)? == gct::TRACE
            && traceno == number
            && self.mapping(mcode).is_some_and(|mapping| mapping.exec || mapping.write)
            && (96..=160).contains(&header)
            && snapshots == ir.wrapping_add(8 * u64::from(nins))
            && count > 0
            && map == snapshots.wrapping_add(count * u64::from(l.sizeof_snap))
            && map_length < 1 << 24)
    }
}

/// The numbering of bytecodes in a layout. The value comes from a table; an unknown one counts as that of 2.1.
pub fn bytecode_set(layout: &VmLayout) -> BytecodeSet {
    match layout.bytecode_set {
        0 => BytecodeSet::V20,
        2 => BytecodeSet::V21Jul2026,
        _ => BytecodeSet::V21,
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::memory::Pod;

    use super::*;
    use crate::layouts;
    use crate::overlay::plain_at;

    /// Memory full of the same byte, which may change with each read.
    struct Noise {
        byte: Cell<u8>,
        moves: bool,
    }

    impl ReadMemory for Noise {
        fn read<T: Pod>(&self, _: u64) -> Result<T, Unreadable> {
            self.byte.set(self.byte.get().wrapping_add(u8::from(self.moves)));
            plain_at(&vec![self.byte.get(); size_of::<T>()], 0).ok_or(Unreadable)
        }
    }

    #[test]
    fn what_moves_is_no_evidence_against_a_layout() {
        let candidate = Candidate { thread: 0x1_0000, global: 0x1_0060, gc64: true };
        let layout = layouts::known_layouts().iter().find(|known| known.layout.is_gc64()).unwrap().layout;
        let maps = Maps::parse("0-ffffffffffffffff rw-p 00000000 00:00 0\n");
        let looks = |moves, times| {
            let memory = Noise { byte: Cell::new(1), moves };
            let mut evidence = Evidence::NONE;
            for _ in 0..times {
                evidence.look(&Look::new(&memory, &maps, candidate), &layout);
            }
            assert!(!evidence.fits() && !evidence.has_stack());
            evidence
        };
        assert!(looks(false, 5).is_refuted(5));
        assert!(!looks(false, 4).is_refuted(5), "once is no proof");
        let moving = looks(true, 50);
        assert!(!moving.is_refuted(1));
        assert_eq!(moving.failed(), 50);
    }
}
