//! Walks a Lua stack, one frame a step, in the way of [`lj_debug_frame`] and [`debug_framepc`] (`lj_debug.c`, unchanged
//! from 2.0 to 2.1 of August 2026).
//!
//! A Lua stack is an array of slots. Below each frame's BASE lie its function and its link, which tells
//! what kind of frame called it (`lj_frame.h`). Where the caller is C code, the walk crosses a *C frame*:
//! the native frame of the VM's `lua_call`, `lua_pcall` or `lua_resume`. The walk yields these crossings among the
//! frames, so that the native unwinder can merge both stacks.
//!
//! The same source runs in the kernel and in user space. The walk trusts nothing: it checks every object's type byte,
//! every bytecode position and the direction of every step, so a torn stack ends the walk with a reason.
//!
//! LuaJIT's sources: [`lj_debug_line`], [`FRAME_*`], [`LJ_GCVMASK`], [`CFRAME_RESUME`], [`LJ_CONT_FFI_CALLBACK`],
//! [`lj_err_optype_call`], [`GCfunc`], [`GCproto`], [`GCHeader`].
//!
//! [`lj_debug_frame`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L25-L47
//! [`debug_framepc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L53-L115
//! [`lj_debug_line`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_debug.c#L120-L135
//! [`FRAME_*`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L14-L27
//! [`LJ_GCVMASK`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L291
//! [`CFRAME_RESUME`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L275-L277
//! [`LJ_CONT_FFI_CALLBACK`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L87
//! [`lj_err_optype_call`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_err.c#L993-L1009
//! [`GCfunc`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L455-L473
//! [`GCproto`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L372-L396
//! [`GCHeader`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L63

use crate::c_frame::C_FRAME_WORDS;
use crate::event::{FrameRecord, NO_POSITION, RecordKind};
use crate::head::Head;
use crate::layout::{VmLayout, gct};
use crate::memo::Memo;
use crate::memory::{ReadMemory, Unreadable};

/// Bits of an address in a tagged GC64 value (`LJ_GCVMASK`, `lj_obj.h`).
pub const GC64_ADDRESS_MASK: u64 = (1 << 47) - 1;

/// Flag bits of `L->cframe` (`CFRAME_RESUME`, `CFRAME_UNWIND_FF`, `lj_frame.h`).
pub const CFRAME_FLAGS: u64 = 3;

/// Marks the frame of an FFI callback (`LJ_CONT_FFI_CALLBACK`, `lj_frame.h`).
pub const CONT_FFI_CALLBACK: u64 = 1;

/// How a walk ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkEnd {
    /// There was no Lua stack to walk.
    NoLua = 0,
    /// At the bottom of the stack: the walk is complete.
    Complete = 1,
    /// Memory that holds a frame could not be read.
    Unreadable = 2,
    /// A frame's function slot does not hold a function.
    NotAFunction = 3,
    /// A Lua function does not point to a prototype.
    NotAPrototype = 4,
    /// A frame's link does not point downward, or it points out of the stack.
    BadLink = 5,
    /// The frames show a C frame that is not on the chain of C frames.
    CFrameMissing = 6,
    /// The chain of C frames does not belong to the coroutine, or it does not go upward.
    CFrameMismatch = 7,
    /// More frames than a sample holds.
    TooDeep = 8,
    /// The start of the walk (BASE) lies outside of the coroutine's stack.
    BadBase = 9,
}

impl WalkEnd {
    /// All ends, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::NoLua,
        Self::Complete,
        Self::Unreadable,
        Self::NotAFunction,
        Self::NotAPrototype,
        Self::BadLink,
        Self::CFrameMissing,
        Self::CFrameMismatch,
        Self::TooDeep,
        Self::BadBase,
    ];

    /// The end with this number.
    pub fn from_u32(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// A short description for users.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NoLua => "no Lua stack",
            Self::Complete => "complete",
            Self::Unreadable => "Lua stack not readable",
            Self::NotAFunction => "Lua stack torn: no function in a frame",
            Self::NotAPrototype => "Lua stack torn: no prototype behind a function",
            Self::BadLink => "Lua stack torn: bad frame link",
            Self::CFrameMissing => "Lua stack torn: C frame missing",
            Self::CFrameMismatch => "Lua stack torn: C frame of another coroutine",
            Self::TooDeep => "Lua stack too deep",
            Self::BadBase => "Lua stack torn: base outside of the stack",
        }
    }
}

impl From<Unreadable> for WalkEnd {
    #[inline(always)]
    fn from(Unreadable: Unreadable) -> Self {
        Self::Unreadable
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// The record was filled.
    Emitted,
    /// An internal frame was passed over; the record is unchanged.
    Skipped,
}

/// A coroutine and the place of its Lua stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coroutine {
    /// Address of the `lua_State`.
    pub thread: u64,
    /// Address of its first slot (`L->stack`).
    pub stack: u64,
    /// First address after its last slot.
    pub stack_end: u64,
}

impl Coroutine {
    /// Reads the place of the stack of `thread`.
    ///
    /// # Errors
    /// [`Unreadable`] if the `lua_State` cannot be read.
    #[inline(always)]
    pub fn read(memory: &impl ReadMemory, layout: &VmLayout, thread: u64) -> Result<Self, Unreadable> {
        let stack = memory.read_ref(layout.is_gc64(), thread.wrapping_add(u64::from(layout.l_stack)))?;
        let slots = memory.read::<u32>(thread.wrapping_add(u64::from(layout.l_stacksize)))?;
        Ok(Self { thread, stack, stack_end: stack.wrapping_add(u64::from(slots) * 8) })
    }

    /// Whether a frame may begin at `base`.
    #[inline(always)]
    pub fn holds(&self, base: u64) -> bool {
        base & 7 == 0 && base >= self.stack.wrapping_add(16) && base <= self.stack_end
    }
}

impl Coroutine {
    /// Whether a frame, or the dummy frame at the bottom, may begin at `base`.
    #[inline(always)]
    pub fn holds_bottom(&self, base: u64) -> bool {
        base & 7 == 0 && base >= self.stack.wrapping_add(8) && base <= self.stack_end
    }
}

/// The state of a walk down the stack of one coroutine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// Address of the coroutine's `lua_State`.
    pub thread: u64,
    /// BASE of the next frame.
    pub base: u64,
    /// Address after the bytecode that the next frame executes; 0 if unknown.
    pub pc: u64,
    /// The innermost C frame that the walk has not crossed yet; 0 after the last.
    pub cframe: u64,
    /// BASE of the dummy frame at the bottom.
    bottom: u64,
    cframe_prev: u64,
    /// If `cframe` has no Lua frame of its own: frames below this address are older than `cframe`. Else 0.
    frameless_limit: u64,
    /// Not 0 if the next frame is the lower half of a vararg function's frame: its link counts, but its function was
    /// emitted already.
    pseudo: u32,
    /// Not 0 if the frame emitted last was called through `cframe`.
    crossing: u32,
    /// Not 0 if `pc` is the return address of the frame emitted last: it must lie in the next function, if that is a
    /// Lua function.
    linked: u32,
    unused: u32,
}

impl Walk {
    /// Starts a walk of `coroutine` at the frame with `base`. The coroutine's innermost C frame is at `cframe`. The
    /// frame executes the bytecode before `pc` (0: unknown).
    ///
    /// # Errors
    /// [`WalkEnd::BadBase`], [`WalkEnd::CFrameMismatch`] or [`WalkEnd::Unreadable`].
    #[inline(always)]
    pub fn start(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        coroutine: &Coroutine,
        cframe: u64,
        (base, pc): (u64, u64),
        memo: &mut Memo,
    ) -> Result<(), WalkEnd> {
        self.thread = coroutine.thread;
        self.base = base;
        self.pc = pc;
        self.bottom = coroutine.stack.wrapping_add(if layout.is_gc64() { 16 } else { 8 });
        self.pseudo = 0;
        self.crossing = 0;
        self.linked = 0;
        if base & 7 != 0 || base < self.bottom || base > coroutine.stack_end {
            return Err(WalkEnd::BadBase);
        }
        memo.look_at(coroutine);
        self.load_cframe(memory, layout, cframe, memo)
    }

    /// Call it before the first step if the innermost C frame has no Lua frame, so that the innermost Lua frame belongs
    /// to the C frame around it.
    #[inline(always)]
    pub fn cross_first(&mut self) {
        self.crossing = u32::from(self.cframe != 0);
    }

    /// Makes one step: fills `record` with the next frame or crossing, or skips an internal frame.
    ///
    /// # Errors
    /// The end of the walk. [`WalkEnd::Complete`] is no failure.
    #[inline(always)]
    pub fn step(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        out: (&mut FrameRecord, &mut Memo),
    ) -> Result<WalkStep, WalkEnd> {
        self.advance(memory, layout, out, true)
    }

    /// Like [`Self::step`], but without `look` it does not read the frame's function: [`look_at`] can do that later. In
    /// a stack deeper than a sample holds, most frames are not kept, so there is no need to look at them.
    ///
    /// # Errors
    /// As [`Self::step`].
    #[inline(always)]
    pub fn advance(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        (record, memo): (&mut FrameRecord, &mut Memo),
        look: bool,
    ) -> Result<WalkStep, WalkEnd> {
        if self.crossing != 0 || self.is_frameless() || self.base <= self.bottom {
            if self.cframe == 0 {
                return Err(if self.crossing != 0 { WalkEnd::CFrameMissing } else { WalkEnd::Complete });
            }
            return self.cross(memory, layout, (record, memo));
        }
        let (function, link) = read_frame_with(memory, layout, self.base, memo)?;
        let emitted = if self.pseudo != 0 || function == self.thread {
            // The dummy frame holds the coroutine itself (lj_err_optype_call, lj_err.c).
            self.pseudo = 0;
            WalkStep::Skipped
        } else {
            if look {
                describe(memory, layout, function, self.pc, (record, memo))?;
                // The function is not the one that the frame above returns to: the stack is torn.
                if self.linked != 0 && record.ffid == 0 && record.position == NO_POSITION {
                    return Err(WalkEnd::BadLink);
                }
            } else {
                record.pass_by(function, self.pc);
            }
            record.base = self.base;
            WalkStep::Emitted
        };
        self.follow(memory, layout, link, memo)?;
        Ok(emitted)
    }

    /// Makes the same step as [`Self::advance`] without `look`, if it needs no memory reads: from a function to the Lua
    /// function or the `pcall` that called it, if the walk has read both the frame and the call before. Else it changes
    /// nothing and returns false.
    #[inline(always)]
    pub fn pass(&mut self, layout: &VmLayout, (record, memo): (&mut FrameRecord, &Memo)) -> bool {
        let gc64 = layout.is_gc64();
        if (self.crossing | self.pseudo) != 0 || self.is_frameless() || self.base <= self.bottom {
            return false;
        }
        let Some(words) = memo.known_words_below(self.base) else { return false };
        let (function, link) = frame_of(gc64, words);
        let (size, pc) = match link & 7 {
            // FRAME_LUA, FRAME_LUAP
            0 | 4 if link != 0 => match memo.known_slot_of_call(link) {
                Some(slot) => ((slot + header(gc64)) * 8, link),
                None => return false,
            },
            // FRAME_PCALL, FRAME_PCALLH
            6 | 7 => (link & !7, 0),
            _ => return false,
        };
        let base = self.base.wrapping_sub(size);
        if function == self.thread || base >= self.base || base < self.bottom {
            return false;
        }
        record.pass_by(function, self.pc);
        record.base = self.base;
        (self.base, self.pc) = (base, pc);
        self.linked = u32::from(pc != 0);
        true
    }

    /// Whether the current C frame has no Lua frame yet, or no longer one. A frame's position is defined as in
    /// `lj_debug.c`: one slot below BASE.
    #[inline(always)]
    fn is_frameless(&self) -> bool {
        self.frameless_limit != 0 && self.base.wrapping_sub(8) < self.frameless_limit
    }

    /// Moves to the frame that `link` leads to.
    #[inline(always)]
    fn follow(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        link: u64,
        memo: &mut Memo,
    ) -> Result<(), WalkEnd> {
        let gc64 = layout.is_gc64();
        let base = self.base;
        if link & 3 == 0 {
            // FRAME_LUA: the link is the return address; operand A of the call before it gives the slot (frame_prevl).
            if link == 0 {
                return Err(WalkEnd::BadLink);
            }
            let slots = memo.slot_of_call(memory, link)? + header(gc64);
            self.base = base.wrapping_sub(slots * 8);
            self.pc = link;
            self.linked = 1;
        } else {
            self.base = base.wrapping_sub(link & !7);
            self.pc = 0;
            self.linked = 0;
            match link & 7 {
                // FRAME_VARG
                3 => self.pseudo = 1,
                // FRAME_CONT
                2 => {
                    let (id, pc) = if gc64 {
                        let words = memory.read::<[u64; 2]>(base.wrapping_sub(32))?;
                        (words[0], words[1])
                    } else {
                        let words = memory.read::<[u32; 2]>(base.wrapping_sub(16))?;
                        (u64::from(words[0]), u64::from(words[1]))
                    };
                    self.pc = pc;
                    if id == CONT_FFI_CALLBACK {
                        self.crossing = 1;
                    }
                }
                // FRAME_C, FRAME_CP
                1 | 5 => self.crossing = 1,
                // FRAME_PCALL, FRAME_PCALLH: the frame of `pcall` itself comes next.
                _ => {}
            }
        }
        if self.base >= base || self.base < self.bottom {
            return Err(WalkEnd::BadLink);
        }
        Ok(())
    }

    /// Yields the crossing of the current C frame and moves on to the C frame around it.
    #[inline(always)]
    fn cross(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        (record, memo): (&mut FrameRecord, &mut Memo),
    ) -> Result<WalkStep, WalkEnd> {
        record.base = self.base;
        record.function = self.thread;
        record.code = self.cframe;
        record.forget_prototype();
        record.position = NO_POSITION;
        record.kind = RecordKind::CFrame as u8;
        record.ffid = 0;
        self.crossing = 0;
        self.linked = 0;
        let outer = self.cframe_prev;
        if outer != 0 && outer <= self.cframe {
            return Err(WalkEnd::CFrameMismatch);
        }
        self.load_cframe(memory, layout, outer, memo)?;
        if outer != 0 {
            // A Lua function below a C frame, where a hook, a finalizer or an error handler was called, has its PC
            // saved in the C frame that it runs in.
            self.pc = memo.head.reference(layout.is_gc64(), layout.cframe_pc)?;
        }
        Ok(WalkStep::Emitted)
    }

    /// Moves on to the C frame at `cframe` and reads its head into `memo`.
    #[inline(always)]
    fn load_cframe(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        cframe: u64,
        memo: &mut Memo,
    ) -> Result<(), WalkEnd> {
        self.cframe = cframe;
        if cframe == 0 {
            (self.cframe_prev, self.frameless_limit) = (0, 0);
            return Ok(());
        }
        let (gc64, head) = (layout.is_gc64(), &mut memo.head);
        head.read::<C_FRAME_WORDS, C_FRAME_WORDS>(memory, gc64, cframe)?;
        if head.reference(gc64, layout.cframe_l)? != self.thread {
            return Err(WalkEnd::CFrameMismatch);
        }
        self.cframe_prev = head.u64(layout.cframe_prev)? & !CFRAME_FLAGS;
        let results = head.u32(layout.cframe_nres)? as i32;
        self.frameless_limit = if results < 0 {
            // A C function that lj_vm_cpcall runs without a frame: SAVE_NRES then holds the negated offset of the
            // stack's top.
            let offset = if gc64 { 16 } else { 8 };
            self.bottom.wrapping_sub(offset).wrapping_add(u64::from(results.unsigned_abs()))
        } else {
            0
        };
        Ok(())
    }
}

/// Reads the function and the link of the frame with `base`.
#[inline(always)]
pub fn read_frame(memory: &impl ReadMemory, layout: &VmLayout, base: u64) -> Result<(u64, u64), Unreadable> {
    if layout.is_gc64() {
        let words = memory.read::<[u64; 2]>(base.wrapping_sub(16))?;
        Ok((words[0] & GC64_ADDRESS_MASK, words[1]))
    } else {
        Ok(split(memory.read::<u64>(base.wrapping_sub(8))?))
    }
}

/// Like [`read_frame`], but also reads the neighbouring words into `memo`, for the next frames.
#[inline(always)]
pub fn read_frame_with(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    base: u64,
    memo: &mut Memo,
) -> Result<(u64, u64), Unreadable> {
    Ok(frame_of(layout.is_gc64(), memo.two_words_below(memory, base)?))
}

/// The function and the link of a frame, from the two words below its BASE.
#[inline(always)]
const fn frame_of(gc64: bool, words: [u64; 2]) -> (u64, u64) {
    if gc64 { (words[0] & GC64_ADDRESS_MASK, words[1]) } else { split(words[1]) }
}

/// Number of slots in a frame's header.
#[inline(always)]
const fn header(gc64: bool) -> u64 {
    if gc64 { 2 } else { 1 }
}

/// The function and the link of a frame with 32-bit references.
#[inline(always)]
const fn split(slot: u64) -> (u64, u64) {
    (slot & 0xffff_ffff, slot >> 32)
}

/// Fills `record` with the description of `function` and with the bytecode position of `pc` in it.
///
/// # Errors
/// [`WalkEnd::NotAFunction`], [`WalkEnd::NotAPrototype`], [`WalkEnd::Unreadable`].
#[inline(always)]
pub fn describe(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    function: u64,
    pc: u64,
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Result<(), WalkEnd> {
    record.function = function;
    record.position = NO_POSITION;
    if !memo.fill(function, record) {
        read_function(memory, layout, function, (record, memo))?;
        memo.note(function, record);
    }
    record.kind = FunctionCode::kind_of(record.ffid) as u8;
    if record.ffid == 0 {
        let bytecode = record.code.wrapping_add(u64::from(layout.sizeof_pt));
        record.position = position(memory, layout, bytecode, record.size_bc, pc);
    }
    Ok(())
}

/// Memory that can check whether there is a frame at an address.
pub trait ReadFrames: ReadMemory + Sized {
    /// Calls the free function [`is_frame`].
    ///
    /// It is a function of its own that returns one bit. Inlined at every use, it would multiply the paths that the
    /// kernel's verifier has to follow.
    #[inline(never)]
    fn is_frame(&self, layout: &VmLayout, record: &mut FrameRecord, memo: &mut Memo) -> bool {
        is_frame(self, layout, record, memo)
    }
}

/// Whether there is a frame at the BASE in `record.base`, whose PC is in `record.code`. If there is, `record` then
/// describes its function, and `record.base` holds the frame's link instead of BASE.
#[inline(always)]
pub fn is_frame(memory: &impl ReadMemory, layout: &VmLayout, record: &mut FrameRecord, memo: &mut Memo) -> bool {
    let pc = record.code;
    let Ok((function, link)) = read_frame_with(memory, layout, record.base, memo) else { return false };
    record.base = link;
    describe(memory, layout, function, pc, (record, memo)).is_ok()
}

/// Describes a frame that was passed by. If it cannot, `record.position` says why. Other records stay unchanged.
#[inline(always)]
pub fn look_at(memory: &impl ReadMemory, layout: &VmLayout, (record, memo): (&mut FrameRecord, &mut Memo)) {
    if record.kind != RecordKind::Passed as u8 {
        return;
    }
    let (function, pc) = (record.function, record.code);
    if let Err(end) = describe(memory, layout, function, pc, (record, memo)) {
        record.position = end as u32;
    }
}

/// Fills `record` with the description of `function`.
#[inline(always)]
fn read_function(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    function: u64,
    (record, memo): (&mut FrameRecord, &mut Memo),
) -> Result<(), WalkEnd> {
    let FunctionCode { ffid, address } = read_code(memory, layout, function, &mut memo.head)?;
    record.code = address;
    record.ffid = ffid;
    record.forget_prototype();
    if ffid == 0 {
        let prototype = read_prototype(memory, layout, address, &mut memo.head)?;
        record.first_line = prototype.first_line;
        record.size_bc = prototype.size_bc;
        // Without the chunkname the function has no name, but it is still on the stack.
        record.chunkname = memo.identity(memory, layout, prototype.chunkname).unwrap_or(0);
    }
    Ok(())
}

/// What a function runs (`GCfunc`, `lj_obj.h`).
pub struct FunctionCode {
    /// Its fast-function id: 0 Lua, 1 C, else a built-in.
    pub ffid: u8,
    /// Address of its `GCproto`, or of the C function.
    pub address: u64,
}

impl FunctionCode {
    /// The kind of a function with this id.
    #[inline(always)]
    pub const fn kind_of(ffid: u8) -> RecordKind {
        match ffid {
            0 => RecordKind::Lua,
            1 => RecordKind::C,
            _ => RecordKind::Fast,
        }
    }
}

/// Reads what `function` runs. `head` is working memory.
///
/// # Errors
/// [`WalkEnd::NotAFunction`], [`WalkEnd::Unreadable`].
#[inline(always)]
pub fn read_code(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    function: u64,
    head: &mut Head,
) -> Result<FunctionCode, WalkEnd> {
    let gc64 = layout.is_gc64();
    head.read::<5, 3>(memory, gc64, function)?;
    if head.u8(gct_offset(gc64) as u16)? != gct::FUNC {
        return Err(WalkEnd::NotAFunction);
    }
    let ffid = head.u8(layout.fn_ffid)?;
    let address = if ffid == 0 {
        head.reference(gc64, layout.fn_pc)?.wrapping_sub(u64::from(layout.sizeof_pt))
    } else {
        memory.read::<u64>(function.wrapping_add(u64::from(layout.fn_c)))?
    };
    Ok(FunctionCode { ffid, address })
}

/// What a prototype says about itself (`GCproto`, `lj_obj.h`).
pub struct PrototypeHead {
    /// Address of its first bytecode.
    pub bytecode: u64,
    /// Number of its bytecodes.
    pub size_bc: u32,
    /// Line where it is defined.
    pub first_line: u32,
    /// How many lines it has.
    pub line_count: u32,
    /// Address of its line table; 0 if the bytecode is stripped.
    pub lines: u64,
    /// Address of its chunkname, a `GCstr`.
    pub chunkname: u64,
}

/// Reads the prototype at `address`. `head` is working memory.
///
/// # Errors
/// [`WalkEnd::NotAPrototype`], [`WalkEnd::Unreadable`].
#[inline(always)]
pub fn read_prototype(
    memory: &impl ReadMemory,
    layout: &VmLayout,
    address: u64,
    head: &mut Head,
) -> Result<PrototypeHead, WalkEnd> {
    let gc64 = layout.is_gc64();
    head.read::<11, 7>(memory, gc64, address)?;
    if head.u8(gct_offset(gc64) as u16)? != gct::PROTO {
        return Err(WalkEnd::NotAPrototype);
    }
    Ok(PrototypeHead {
        bytecode: address.wrapping_add(u64::from(layout.sizeof_pt)),
        size_bc: head.u32(layout.pt_sizebc)?,
        first_line: head.u32(layout.pt_firstline)?,
        line_count: head.u32(layout.pt_numline)?,
        lines: head.reference(gc64, layout.pt_lineinfo)?,
        chunkname: head.reference(gc64, layout.pt_chunkname)?,
    })
}

/// The source line of the bytecode at `position`, computed as `lj_debug_line` does (`lj_debug.c`); 0 if there are no
/// lines. It needs the prototype's line table, line count, first line and number of bytecodes.
///
/// # Errors
/// [`Unreadable`] if the line numbers cannot be read.
#[inline(always)]
pub fn line(
    memory: &impl ReadMemory,
    (lines, count): (u64, u32),
    (first, size_bc): (u32, u32),
    position: u32,
) -> Result<u32, Unreadable> {
    if lines == 0 || position > size_bc {
        return Ok(0);
    }
    if position == size_bc {
        return Ok(first.wrapping_add(count));
    }
    if position == 0 {
        return Ok(first);
    }
    // The table starts with the second bytecode. Its entries count from the first line, in the narrowest integer type
    // that fits.
    let index = u64::from(position - 1);
    let offset = if count < 256 {
        u32::from(memory.read::<u8>(lines.wrapping_add(index))?)
    } else if count < 65_536 {
        u32::from(memory.read::<u16>(lines.wrapping_add(index * 2))?)
    } else {
        memory.read::<u32>(lines.wrapping_add(index * 4))?
    };
    Ok(first.wrapping_add(offset))
}

/// The index of the bytecode before `pc` in the function whose bytecode starts at `bytecode`.
#[inline(always)]
pub fn position(memory: &impl ReadMemory, layout: &VmLayout, bytecode: u64, size_bc: u32, pc: u64) -> u32 {
    let offset = pc.wrapping_sub(bytecode);
    let size = u64::from(size_bc) * 4;
    if offset & 3 != 0 {
        return NO_POSITION;
    }
    if offset >= 4 && offset <= size {
        return (offset / 4 - 1) as u32;
    }
    if pc == 0 || layout.g_to_j == crate::layout::ABSENT {
        return NO_POSITION;
    }
    // A return into a loop that was compiled in the meantime: the PC points behind a copy of the loop's original
    // instruction, kept in the trace (debug_framepc: "undo the effects of lj_trace_exit for JLOOP").
    let trace = pc.wrapping_sub(4).wrapping_sub(u64::from(layout.tr_startins));
    let is_trace = memory.read::<u8>(trace.wrapping_add(gct_offset(layout.is_gc64())));
    if is_trace != Ok(gct::TRACE) {
        return NO_POSITION;
    }
    let Ok(start) = memory.read_ref(layout.is_gc64(), trace.wrapping_add(u64::from(layout.tr_startpc))) else {
        return NO_POSITION;
    };
    let offset = start.wrapping_sub(bytecode);
    if offset & 3 == 0 && offset < size { (offset / 4) as u32 } else { NO_POSITION }
}

/// Offset of the type byte in a collectable object's header (`GCHeader`, `lj_obj.h`).
#[inline(always)]
pub const fn gct_offset(gc64: bool) -> u64 {
    if gc64 { 9 } else { 5 }
}
