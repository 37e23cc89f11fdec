//! What functions are, remembered: that stays true until the function is freed, and frees are events.

use crate::event::{FrameKind, FrameRecord};
use crate::frame::{Prototype, line, position, read_function};
use crate::head::Head;
use crate::layout::VmLayout;
use crate::memory::{Plain, ReadMemory};

/// How many functions of a VM are remembered. A power of two.
pub const KNOWN_FUNCTIONS: u32 = 1024;

/// What a function was when it allocated last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownFunction {
    /// Address of the `GCfunc`; 0 if nothing is known.
    pub function: u64,
    /// Address of its `GCproto`, or of the C function.
    pub code: u64,
    /// Address of the prototype's chunkname.
    pub chunkname: u64,
    /// As in [`Prototype`].
    pub bytecode: u64,
    /// As in [`Prototype`].
    pub lines: u64,
    /// The PC at which it allocated last; 0 if that is not known.
    pub pc: u64,
    /// As in [`Prototype`].
    pub line_count: u32,
    /// As in [`FrameRecord`].
    pub first_line: u32,
    /// As in [`FrameRecord`].
    pub size_bc: u32,
    /// The line of `pc`.
    pub line: u32,
    /// A [`FrameKind`].
    pub kind: u64,
}

// SAFETY: the fields are integers laid out without padding, as the assertion below proves.
unsafe impl Plain for KnownFunction {}

const _: () = assert!(size_of::<KnownFunction>() == 72);

/// Where a VM's functions are remembered.
pub trait KnownFunctions {
    /// The place for what is known of `function`, which other functions share; [`slot`] tells which.
    fn place(&mut self, function: u64) -> Option<&mut KnownFunction>;

    /// Forgets a function: the block at `address` was freed, whatever it was.
    #[inline(always)]
    fn forget(&mut self, address: u64) {
        if let Some(known) = self.place(address)
            && known.function == address
        {
            known.function = 0;
        }
    }
}

/// The index of the place for a function.
#[inline(always)]
pub const fn slot(function: u64) -> u32 {
    // Multiplicative hashing: objects are 8 bytes apart at least.
    ((function >> 3) as u32).wrapping_mul(0x9e37_79b9) >> (32 - KNOWN_FUNCTIONS.ilog2())
}

/// The function is not one, or cannot be read.
pub struct NoFunction;

impl KnownFunction {
    /// Sees to it that this is `function`; reads it if it is not.
    ///
    /// # Errors
    /// [`NoFunction`].
    #[inline(always)]
    pub fn become_function(
        &mut self,
        memory: &impl ReadMemory,
        layout: &VmLayout,
        function: u64,
        head: &mut Head,
        record: &mut FrameRecord,
    ) -> Result<(), NoFunction> {
        if self.function == function {
            return Ok(());
        }
        // What fails halfway is not known.
        self.function = 0;
        self.pc = 0;
        let prototype = read_function(memory, layout, function, head, record).map_err(|_| NoFunction)?;
        let prototype = prototype.unwrap_or(Prototype { bytecode: 0, lines: 0, line_count: 0 });
        self.code = record.code;
        self.chunkname = record.chunkname;
        self.bytecode = prototype.bytecode;
        self.lines = prototype.lines;
        self.line_count = prototype.line_count;
        self.first_line = record.first_line;
        self.size_bc = record.size_bc;
        self.kind = u64::from(record.kind);
        self.function = function;
        Ok(())
    }

    /// Whether it is of a kind.
    #[inline(always)]
    pub fn is(&self, kind: FrameKind) -> bool {
        self.kind == kind as u64
    }

    /// The line of `pc`; [`None`] if that is no position in it.
    ///
    /// # Errors
    /// [`NoFunction`] if its lines cannot be read.
    #[inline(always)]
    pub fn line_at(&mut self, memory: &impl ReadMemory, layout: &VmLayout, pc: u64) -> Result<Option<u32>, NoFunction> {
        if pc != 0 && self.pc == pc {
            return Ok(Some(self.line));
        }
        let position = position(memory, layout, self.bytecode, self.size_bc, pc);
        if position == crate::event::NO_POSITION {
            return Ok(None);
        }
        let &mut Self { lines, line_count, first_line, size_bc, .. } = self;
        let line = line(memory, (lines, line_count), (first_line, size_bc), position).map_err(|_| NoFunction)?;
        // A PC elsewhere is one of a trace, which may be another's tomorrow.
        if pc.wrapping_sub(self.bytecode) <= u64::from(self.size_bc) * 4 {
            self.line = line;
            self.pc = pc;
        }
        Ok(Some(line))
    }
}
