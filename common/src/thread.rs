//! The fields of a coroutine ([`lua_State`], `lj_obj.h`) that a walk needs, in one read.
//!
//! [`lua_State`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L692-L706

use crate::frame::{CFRAME_FLAGS, Coroutine, gct_offset};
use crate::head::Head;
use crate::layout::{VmLayout, gct};
use crate::memory::{ReadMemory, Unreadable};

/// What a `lua_State` says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuaThread {
    /// The `global_State` of its VM.
    pub global: u64,
    /// Whether the object is a coroutine at all: if not, the other fields mean nothing.
    pub is_thread: bool,
    /// Its innermost C frame, or 0.
    pub cframe: u64,
    /// `L->base`.
    pub base: u64,
    /// Its stack.
    pub coroutine: Coroutine,
}

impl LuaThread {
    /// Reads the `lua_State` at `thread`; `head` is working memory.
    ///
    /// # Errors
    /// [`Unreadable`] if the `lua_State` cannot be read.
    #[inline(always)]
    pub fn read(memory: &impl ReadMemory, layout: &VmLayout, thread: u64, head: &mut Head) -> Result<Self, Unreadable> {
        let gc64 = layout.is_gc64();
        head.read::<12, 8>(memory, gc64, thread)?;
        let stack = head.reference(gc64, layout.l_stack)?;
        let slots = head.u32(layout.l_stacksize)?;
        Ok(Self {
            global: head.reference(gc64, layout.l_glref)?,
            is_thread: head.u8(gct_offset(gc64) as u16)? == gct::THREAD,
            cframe: head.u64(layout.l_cframe)? & !CFRAME_FLAGS,
            base: head.u64(layout.l_base)?,
            coroutine: Coroutine { thread, stack, stack_end: stack.wrapping_add(u64::from(slots) * 8) },
        })
    }
}
