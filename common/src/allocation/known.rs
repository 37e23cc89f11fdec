//! Remembers the descriptions of functions, prototypes and traces. They stay true until the objects are freed, and
//! frees are events.
//!
//! LuaJIT's sources: [`memprof_write_lfunc`].
//!
//! [`memprof_write_lfunc`]: https://github.com/tarantool/luajit/blob/b52fe9795db249e7803aeef22c2ed6129a97aaeb/src/lj_memprof.c#L57-L87

use super::call_site::CallSite;
use super::event::{AllocationEvent, NAMELESS};
use super::on_trace::RememberedTrace;
use crate::event::{NO_POSITION, RecordKind};
use crate::frame::{FunctionCode, WalkEnd, line, position, read_code, read_prototype};
use crate::head::Head;
use crate::layout::VmLayout;
use crate::memory::{Pod, ReadMemory, Unreadable, clear};
use crate::trace::TraceIdentity;
use crate::vm::VmConfig;

/// How many functions of a VM are remembered; also how many prototypes, and how many traces. A power of two.
pub const KNOWN_OBJECTS: u32 = 1024;

/// How many positions of a prototype are remembered with their lines. A power of two.
const LINES: usize = 8;

/// A function: a closure, or a C function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownFunction {
    /// Address of the `GCfunc`; 0 if nothing is known.
    pub function: u64,
    /// Address of its `GCproto`, or of the C function.
    pub code: u64,
    /// A [`RecordKind`].
    pub kind: u32,
    /// The window in which this entry was valid.
    pub window: u32,
}

/// A prototype.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownPrototype {
    /// Address of the `GCproto`; 0 if nothing is known.
    pub prototype: u64,
    /// Address of its first bytecode.
    pub bytecode: u64,
    /// Address of its line table; 0 if the bytecode is stripped.
    lines: u64,
    /// How many lines it has.
    line_count: u32,
    /// Line where it is defined.
    pub first_line: u32,
    /// Number of its bytecodes.
    pub size_bc: u32,
    /// The window in which this entry was valid.
    window: u32,
    /// Positions that have allocated, with their lines.
    positions: [Located; LINES],
}

/// The line of a position.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Located {
    /// The position plus 1; 0 for an unused entry.
    position: u32,
    line: u32,
}

// SAFETY: the fields are integers laid out without padding, as the assertions below prove.
unsafe impl Pod for KnownFunction {}
// SAFETY: as above.
unsafe impl Pod for KnownPrototype {}
// SAFETY: as above.
unsafe impl Pod for Located {}

const _: () = {
    assert!(size_of::<KnownFunction>() == 24);
    assert!(size_of::<KnownPrototype>() == 3 * 8 + 4 * 4 + 8 * LINES);
};

/// Storage for what is known of a VM's functions, prototypes and traces.
pub trait KnownObjects {
    /// The entry for `function`. Functions with the same [`slot`] share one entry.
    fn function(&mut self, function: u64) -> Option<&mut KnownFunction>;

    /// The entry for `prototype`, shared in the same way.
    fn prototype(&mut self, prototype: u64) -> Option<&mut KnownPrototype>;

    /// The entry for `trace`, shared in the same way.
    fn trace(&mut self, trace: u64) -> Option<&mut RememberedTrace>;

    /// The call in LuaJIT's C code that returns to this address, where user space has told about such calls.
    #[inline(always)]
    fn call_site(&self, _return_address: u64) -> Option<CallSite> {
        None
    }

    /// The number of the trace that has this return address in its machine code; 0 for none. Where the VM's state does
    /// not name the running trace, this finds it. If `searches`, all traces are looked at; otherwise the result is that
    /// of the last search for this address, and may be out of date.
    #[inline(always)]
    fn trace_around(&mut self, _memory: &impl ReadMemory, _vm: &VmConfig, _address: u64, _searches: bool) -> u32 {
        0
    }

    /// Announces a trace that later events refer to by its number, with the line at which it starts. Returns whether
    /// that succeeded.
    fn name_trace(&mut self, trace: &TraceIdentity, line: u32) -> bool;

    /// Announces a prototype that later events refer to. Returns whether that succeeded.
    fn name_prototype(&mut self, memory: &impl ReadMemory, layout: &VmLayout, prototype: u64, chunkname: u64) -> bool;

    /// Number of the open window. Entries from another window are no longer true: the probes see no frees between windows.
    #[inline(always)]
    fn window(&self) -> u32 {
        0
    }

    /// Forgets an object: the block at `address` was freed, whatever it was.
    #[inline(always)]
    fn forget(&mut self, address: u64) {
        if let Some(known) = self.function(address)
            && known.function == address
        {
            known.function = 0;
        }
        if let Some(known) = self.prototype(address)
            && known.prototype == address
        {
            known.prototype = 0;
        }
        if let Some(known) = self.trace(address)
            && known.trace == address
        {
            known.trace = 0;
        }
    }
}

/// Index of the entry for the object at `address`.
#[inline(always)]
pub const fn slot(address: u64) -> u32 {
    // Multiplicative hashing: objects are at least 8 bytes apart.
    ((address >> 3) as u32).wrapping_mul(0x9e37_79b9) >> (32 - KNOWN_OBJECTS.ilog2())
}

/// The address holds no function or prototype, or it cannot be read.
pub struct NoFunction;

impl From<Unreadable> for NoFunction {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self
    }
}

impl From<WalkEnd> for NoFunction {
    #[inline(always)]
    fn from(_: WalkEnd) -> Self {
        Self
    }
}

impl KnownFunction {
    /// Makes this the entry of `function`: reads the function unless the entry holds it already.
    ///
    /// # Errors
    /// [`NoFunction`].
    #[inline(always)]
    pub fn become_function(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        function: u64,
        window: u32,
        head: &mut Head,
    ) -> Result<(), NoFunction> {
        if self.function == function && self.window == window {
            return Ok(());
        }
        // If a read fails halfway, the entry must count as empty.
        self.function = 0;
        let FunctionCode { ffid, address } = read_code(memory, layout, function, head)?;
        self.code = address;
        self.kind = FunctionCode::kind_of(ffid) as u32;
        self.window = window;
        self.function = function;
        Ok(())
    }

    /// Whether the function is of this kind.
    #[inline(always)]
    pub fn is(&self, kind: RecordKind) -> bool {
        self.kind == kind as u32
    }
}

/// Fills in a Lua function and the line of `pc` in it. Returns whether `pc` is a position in it; else there is no
/// function, as in memprof itself (`memprof_write_lfunc`, `lj_memprof.c`).
///
/// # Errors
/// [`NoFunction`] if the prototype is not one, or its lines cannot be read.
#[inline(always)]
pub fn locate(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    objects: &mut impl KnownObjects,
    head: &mut Head,
    prototype: u64,
    pc: u64,
    event: &mut AllocationEvent,
) -> Result<bool, NoFunction> {
    let (named, line) = line_at(memory, layout, objects, head, prototype, pc)?;
    let Some(line) = line else { return Ok(false) };
    event.line = line;
    event.place = if named { prototype } else { NAMELESS };
    Ok(true)
}

/// Announces a prototype if that is still to be done, and finds the line of `pc` in it. Returns whether the prototype
/// is announced, and the line; the line is [`None`] if `pc` is no position in the prototype.
///
/// # Errors
/// As [`locate`].
#[inline(always)]
pub(super) fn line_at(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    objects: &mut impl KnownObjects,
    head: &mut Head,
    prototype: u64,
    pc: u64,
) -> Result<(bool, Option<u32>), NoFunction> {
    let mut named = true;
    let window = objects.window();
    let known = objects.prototype(prototype).ok_or(NoFunction)?;
    if known.prototype != prototype || known.window != window {
        let chunkname = known.become_prototype(memory, layout, prototype, head)?;
        known.window = window;
        named = objects.name_prototype(memory, layout, prototype, chunkname);
    }
    let known = objects.prototype(prototype).ok_or(NoFunction)?;
    let line = known.line_at(memory, layout, pc);
    if !named {
        // The announcement failed: the next event tries again.
        known.prototype = 0;
    }
    Ok((named, line?))
}

impl KnownPrototype {
    /// Reads `prototype`. Returns the address of its chunkname.
    #[inline(always)]
    fn become_prototype(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        prototype: u64,
        head: &mut Head,
    ) -> Result<u64, NoFunction> {
        self.prototype = 0;
        let read = read_prototype(memory, layout, prototype, head)?;
        self.bytecode = read.bytecode;
        self.lines = read.lines;
        self.line_count = read.line_count;
        self.first_line = read.first_line;
        self.size_bc = read.size_bc;
        clear(&mut self.positions);
        self.prototype = prototype;
        Ok(read.chunkname)
    }

    /// The line of `pc`; [`None`] if `pc` is no position in the prototype.
    #[inline(always)]
    fn line_at(&mut self, memory: &impl ReadMemory, layout: &VmLayout, pc: u64) -> Result<Option<u32>, NoFunction> {
        let position = position(memory, layout, self.bytecode, self.size_bc, pc);
        if position == NO_POSITION {
            return Ok(None);
        }
        let located = &mut self.positions[position as usize % LINES];
        if located.position == position.wrapping_add(1) {
            return Ok(Some(located.line));
        }
        let line = line(memory, (self.lines, self.line_count), (self.first_line, self.size_bc), position)?;
        *located = Located { position: position.wrapping_add(1), line };
        Ok(Some(line))
    }
}
