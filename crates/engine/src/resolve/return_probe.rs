//! Restores the return address of a call of the allocator that a return probe waits for: the kernel has replaced it by the
//! address of its trampoline.

use std::borrow::Cow;
use std::ops::Range;

use lj_trace_common::arch::{code_address, reg};
use lj_trace_common::event::SampleHeader;
use lj_trace_unwind::{Register, Registers};

/// Restores the return address in the registers and the copied stack of a sample. `trampoline` is the kernel's page of
/// trampolines. Only a thread that has called the allocator may be in such a call.
pub fn restore(trampoline: &Range<u64>, header: &SampleHeader, registers: &mut Registers, stack: &mut Cow<'_, [u8]>) {
    let original = header.return_address;
    match reg::LINK {
        None => {
            if trampoline.contains(&registers.pc()) {
                // The allocator has just returned into the trampoline, so its frame is not part of the stack.
                registers.set(Register::PC, Some(original));
                registers.set(Register::SP, Some(header.call_stack.wrapping_add(8)));
            } else {
                let slot = header.call_stack..header.call_stack.saturating_add(8);
                replace(stack, header.registers[reg::SP], slot, trampoline, original);
            }
        }
        Some(link) => {
            if trampoline.contains(&registers.pc()) {
                registers.set(Register::PC, Some(original));
                registers.set(Register::SP, Some(header.call_stack));
                return;
            }
            // The allocator and what it calls may have saved the register anywhere in their part of the stack.
            replace(stack, header.registers[reg::SP], 0..header.call_stack, trampoline, original);
            let link = Register::ALL[link];
            if registers.get(link).is_some_and(|address| trampoline.contains(&code_address(address))) {
                registers.set(link, Some(original));
            }
        }
    }
}

/// Replaces the trampoline's address in all words of `stack` that are at these addresses. The copy begins at `start`.
fn replace(stack: &mut Cow<'_, [u8]>, start: u64, addresses: Range<u64>, trampoline: &Range<u64>, original: u64) {
    let first = addresses.start.saturating_sub(start).next_multiple_of(8);
    let end = addresses.end.saturating_sub(start).min(stack.len() as u64);
    for offset in (first..end).step_by(8) {
        let Some(slot) = slot(stack, offset) else { return };
        let is_replaced = stack[slot.clone()]
            .first_chunk()
            .is_some_and(|word| trampoline.contains(&code_address(u64::from_le_bytes(*word))));
        if is_replaced {
            stack.to_mut()[slot].copy_from_slice(&original.to_le_bytes());
        }
    }
}

/// The range of the word at `offset`, if all of it is there.
fn slot(stack: &[u8], offset: u64) -> Option<Range<usize>> {
    let offset = usize::try_from(offset).ok()?;
    let slot = offset..offset.checked_add(8)?;
    (slot.end <= stack.len()).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAMPOLINE: Range<u64> = 0x7fff_0000..0x7fff_1000;
    const SP: u64 = 0x1000;

    /// A stack of these words, with a call that began when the stack pointer was at `call_stack`, restored.
    fn restored(words: &[u64], call_stack: u64, set: impl FnOnce(&mut Registers)) -> (Vec<u64>, Registers) {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut header = SampleHeader { call_stack, return_address: 0x40_1234, ..SampleHeader::default() };
        header.registers[reg::SP] = SP;
        let mut registers = Registers::all(header.registers);
        set(&mut registers);
        let mut stack = Cow::Borrowed(&bytes[..]);
        restore(&TRAMPOLINE, &header, &mut registers, &mut stack);
        let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
        (stack.chunks(8).map(word).collect(), registers)
    }

    #[test]
    fn the_address_of_a_call_that_has_not_returned_is_restored() {
        let words = [1, TRAMPOLINE.start, 3, TRAMPOLINE.start];
        let (stack, _) = restored(&words, SP + 8, |_| ());
        let (saved, pushed) = ([1, 0x40_1234, 3, TRAMPOLINE.start], [1, TRAMPOLINE.start, 3, TRAMPOLINE.start]);
        // Where calls push the address, it is in that word; otherwise in a word below.
        assert_eq!(stack, if reg::LINK.is_none() { saved } else { pushed });
        let (stack, _) = restored(&words, SP + 24, |_| ());
        let last = [1, TRAMPOLINE.start, 3, 0x40_1234];
        assert_eq!(stack, if reg::LINK.is_none() { last } else { saved });
    }

    #[test]
    fn a_thread_in_the_trampoline_is_back_in_the_caller() {
        let (stack, registers) =
            restored(&[TRAMPOLINE.start], SP, |registers| registers.set(Register::PC, Some(TRAMPOLINE.start)));
        assert_eq!(stack, [TRAMPOLINE.start]);
        assert_eq!(registers.pc(), 0x40_1234);
        assert_eq!(registers.sp(), if reg::LINK.is_none() { SP + 8 } else { SP });
    }

    #[test]
    fn a_call_outside_of_the_copied_stack_changes_nothing() {
        let words = [TRAMPOLINE.start + 0x1000, 5];
        for call_stack in [0, SP - 8, SP + 8, SP + 16, u64::MAX - 8] {
            assert_eq!(restored(&words, call_stack, |_| ()).0, words);
        }
    }
}
