//! The calls in LuaJIT's C code, with what the unwind table says about each: the allocation probes leave that code with it.

use std::ops::Range;

use lj_trace_common::allocation::call_site::{CallSite, MAX_CALL_SITES};

use super::modules::CodePlace;
use super::registers::Register;
use super::row::{CfaRule, SavedRule, UnwindRow};
use super::{Unwinder, arch};

/// How far from the interpreter LuaJIT's other code is at most, in bytes. It has some 500 KB, and the linker puts it in one
/// place, also where it is a part of a larger program.
const NEAR: u64 = 1 << 20;

impl Unwinder {
    /// The calls in the code around the interpreter, which is at `text`, by their return addresses: at most
    /// [`MAX_CALL_SITES`]. Nothing where calls push the return address.
    pub fn call_sites(&mut self, text: &Range<u64>) -> Vec<(u64, CallSite)> {
        let Ok(maps) = self.modules.process().maps() else { return Vec::new() };
        let Some(mapping) = maps.find(text.start) else { return Vec::new() };
        let start = mapping.start.max(text.start.saturating_sub(NEAR)) & !3;
        let end = mapping.end.min(text.end.saturating_add(NEAR));
        let CodePlace::Module(located) = self.modules.find(text.start).0 else { return Vec::new() };
        let Some(table) = located.module.table() else { return Vec::new() };
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        let Ok(code) = self.modules.process().memory().read_bytes(start, length) else { return Vec::new() };
        let returns = arch::returns_of_calls(&code).map(|offset| start + offset as u64);
        let mut site = |address: u64| {
            // The call is the instruction before.
            let row = table.row(address.wrapping_sub(located.bias).wrapping_sub(1), &mut self.context)?;
            Some((address, call_site(&row)?))
        };
        let outside = returns.filter(|address| !text.contains(address));
        outside.filter_map(&mut site).take(MAX_CALL_SITES as usize).collect()
    }
}

/// What a row says, if its frame is found by the stack pointer, and the return address is in the frame.
fn call_site(row: &UnwindRow) -> Option<CallSite> {
    let CfaRule::Offset(Register::SP, frame) = row.cfa else { return None };
    let (_, SavedRule::AtCfa(saved)) = row.saved.iter().find(|(register, _)| *register == Register::PC)? else {
        return None;
    };
    Some(CallSite { frame: u32::try_from(frame).ok()?, saved: u32::try_from(saved.checked_neg()?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_if_its_frame_is_at_the_stack_pointer() {
        let row = UnwindRow::simple(Register::SP, 48, &[]);
        assert_eq!(call_site(&row), Some(CallSite { frame: 48, saved: 8 }));
        assert_eq!(call_site(&UnwindRow::simple(Register::FP, 48, &[])), None);
        assert_eq!(call_site(&UnwindRow::simple(Register::SP, -16, &[])), None);
        let without = UnwindRow { saved: Box::default(), ..row };
        assert_eq!(call_site(&without), None, "the return address is still in its register");
    }
}
