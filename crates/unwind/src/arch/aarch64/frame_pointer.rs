//! Recovers the frame pointer of a function where it was lost.

use crate::registers::Registers;
use crate::row::UnwindRow;
use crate::{CFrame, StackCopy, Unwinder, VmCode};

impl Unwinder {
    /// The frame pointer of a frame with these registers. On this processor it does not follow from code: except for
    /// functions that allocate on the stack, functions address their frames by the stack pointer.
    #[expect(clippy::unused_self, reason = "as on other processors")]
    pub(crate) fn find_frame_pointer(
        &mut self,
        _registers: &Registers,
        _is_return: bool,
        _row: &UnwindRow,
        _stack: &StackCopy<'_>,
        _known: (&[VmCode], &[CFrame]),
    ) -> Option<u64> {
        None
    }
}
