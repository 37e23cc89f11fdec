//! Exit stubs: the few instructions through which a trace is left. They lie after the trace's code, one `bl` for each
//! exit. The link register tells the exit ([`asm_exitstub_setup`], [`vm_exit_handler`]).
//!
//! The VM's state does not name the running trace, but the stubs contain its number.
//!
//! [`asm_exitstub_setup`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_asm_arm64.h#L51-L77
//! [`vm_exit_handler`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_arm64.dasc#L2033-L2085

use lj_trace_common::memory::ReadMemory;

use crate::arch::instruction::ExitStub;

/// Size in bytes of the stack frame that the handler makes at once (`vm_exit_handler`).
const HANDLER_FRAME: u64 = 512;

/// The exit that the stub at an address leads to. Not needed here: it is only asked for where the VM's state names the trace.
pub fn exit_at<M: ReadMemory>(_memory: &M, _pc: u64, _stack: [Option<u64>; 2]) -> Option<u16> {
    None
}

/// `nop`.
const NOP: u32 = 0xd503_201f;

/// The stub of one exit of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stub {
    number: u16,
    exit: u32,
    /// Address of the first stub of the trace.
    begin: u64,
    /// Address after the call of the handler.
    handler_returns: u64,
}

/// The trace that is being left, and the exit, while its stubs or the beginning of the handler run; [`None`] if neither is
/// known. They follow from the program counter, the stack pointer, and the link register; `stack` reads the native stack.
pub fn left_by<M: ReadMemory>(
    memory: &M,
    (pc, sp, link): (u64, u64, u64),
    stack: impl Fn(u64) -> Option<u64>,
) -> Option<ExitStub> {
    let called_from = |back: u64| stub_at(memory, back.wrapping_sub(4));
    let stub = stub_at(memory, pc)
        .or_else(|| called_from(link).filter(|stub| (stub.begin..stub.handler_returns).contains(&pc)))
        .or_else(|| {
            let kept = [sp, sp.wrapping_add(HANDLER_FRAME)].into_iter().filter_map(&stack);
            kept.filter_map(called_from).find(|stub| stub.handler_returns == link)
        })?;
    // The end of the code may be padded (`asm_tail_fixup`).
    let ends = (1..=4).map(|back| stub.begin.wrapping_sub(4 * back));
    let code = ends.into_iter().find(|end| memory.read::<u32>(*end).is_ok_and(|word| word != NOP))?;
    Some(ExitStub { code, number: stub.number, exit: u16::try_from(stub.exit).ok()? })
}

/// The return address in a trace that called the helper of the VM's own code that runs at `pc`: its callers leave the
/// return address in the link register. The jump to a trace (`BC_JLOOP`) is not called.
pub fn called_at<M: ReadMemory>(memory: &M, pc: u64, link: u64) -> Option<u64> {
    let word: u32 = memory.read(pc).ok()?;
    let is_jump = word & 0xffff_fc1f == 0xd61f_0000;
    (!is_jump).then(|| link.wrapping_sub(4))
}

/// The lowest byte of the exit whose stub begins at an address. A stub that leads to another trace shows none.
pub fn exit_byte_at<M: ReadMemory>(memory: &M, address: u64) -> Option<u8> {
    stub_at(memory, address).map(|stub| stub.exit as u8)
}

/// The stub at an address: a `bl` to the first of the trace's stubs. The exits are counted from there.
fn stub_at<M: ReadMemory>(memory: &M, address: u64) -> Option<Stub> {
    /// `str x30, [sp]`: all stubs begin with it.
    const BEGIN: u32 = 0xf900_03fe;
    let call: u32 = memory.read(address).ok()?;
    let words = if call >> 26 == 0x25 { (call << 6) as i32 >> 6 } else { 0 };
    // After this, one or two instructions call the handler, and one contains the trace's number.
    let begin = address.checked_add_signed(i64::from(words) * 4).filter(|_| words <= -3)?;
    let [first, second, third, fourth]: [u32; 4] = memory.read(begin).ok()?;
    let is_number = |word: u32| word & 0xffe0_001f == 0x5280_0000;
    let (before, number) = match (first, second >> 26, third) {
        (BEGIN, 0x25, number) if is_number(number) => (3, number),
        // `blr x30`, after `ldr x30`
        (BEGIN, _, 0xd63f_03c0) if is_number(fourth) => (4, fourth),
        _ => return None,
    };
    let exit = u32::try_from(-words).ok()?.checked_sub(before)?;
    let handler_returns = begin.wrapping_add(u64::from(before - 1) * 4);
    Some(Stub { number: (number >> 5) as u16, exit, begin, handler_returns })
}

/// The exit that the trace exit handler works on: not known here.
pub fn exit_in_handler(_frame: (u64, u16), _stack: impl Fn(u64) -> Option<u64>, _kept: u64) -> Option<u16> {
    None
}

/// Whether a trace that ends has released its part of the stack; `distance` is from the stack pointer up to the C
/// frame, in bytes.
pub const fn has_left_its_frame(distance: u64) -> bool {
    distance == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Saved;

    const START: u64 = 0x1000;
    const BL: u32 = 0x9400_0000;
    const CALLS: [&[u32]; 2] = [&[BL | 0x1234], &[0xf945_aede, 0xd63f_03c0]];

    /// The stubs of a trace as LuaJIT generates them; the last one leads to another trace.
    fn stubs(call: &[u32], exits: u32) -> Saved {
        let mut code = vec![0x1400_0000, NOP, NOP, 0xf900_03fe];
        code.extend(call);
        code.push(0x5280_0000 | 77 << 5);
        for _ in 0..exits {
            code.push(BL | (3u32.wrapping_sub(code.len() as u32) & 0x03ff_ffff));
        }
        code.push(0x1400_0100);
        Saved::new(START - 12, code.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    #[test]
    fn every_stub_tells_its_exit() {
        for call in CALLS {
            let memory = stubs(call, 300);
            let first = START + 8 + 4 * call.len() as u64;
            for exit in 0..300 {
                assert_eq!(exit_byte_at(&memory, first + 4 * exit), Some(exit as u8), "{exit}");
            }
            assert!(memory.read::<u32>(first + 4 * 300).is_ok());
            assert_eq!(exit_byte_at(&memory, first + 4 * 300), None, "it leads to another trace");
        }
    }

    #[test]
    fn all_of_the_way_out_tells_the_exit() {
        for (call, exit) in CALLS.into_iter().flat_map(|call| [0, 1, 255, 256, 299].map(|exit| (call, exit))) {
            let memory = stubs(call, 300);
            let number = START + 4 + 4 * call.len() as u64;
            let stub = number + 4 + 4 * exit;
            let at = |pc: u64, link: u64, kept: [(u64, u64); 1]| {
                left_by(&memory, (pc, 0x8000, link), |address| {
                    kept.iter().find(|kept| kept.0 == address).map(|kept| kept.1)
                })
            };
            let nothing = [(0, 0)];
            let left = Some(ExitStub { code: START - 12, number: 77, exit: exit as u16 });
            assert_eq!(at(stub, 0, nothing), left);
            assert_eq!(at(START, stub + 4, nothing), left);
            assert_eq!(at(number - 4, stub + 4, nothing), left);
            assert_eq!(at(0x100_0000, number, [(0x8000, stub + 4)]), left, "the handler's first instruction");
            assert_eq!(at(0x100_0000, number, [(0x8000 + HANDLER_FRAME, stub + 4)]), left);
            assert_eq!(at(0x100_0000, number + 4, [(0x8000, stub + 4)]), None, "an old return address");
            assert_eq!(at(0x100_0000, stub + 4, nothing), None, "an old link register");
        }
    }

    #[test]
    fn only_a_jump_to_a_trace_is_called_by_none() {
        // `fmov d0, d1; br x27; ret`
        let memory = Saved::new(START, [0x1e60_4020, 0xd61f_0360, 0xd65f_03c0_u32].map(u32::to_le_bytes).concat());
        let called = [0, 4, 8, 12].map(|at| called_at(&memory, START + at, 0x2004));
        assert_eq!(called, [Some(0x2000), None, Some(0x2000), None]);
    }

    #[test]
    fn other_code_tells_nothing() {
        for call in CALLS {
            let memory = stubs(call, 3);
            for at in 0..2 + call.len() as u64 {
                assert_eq!(exit_byte_at(&memory, START + 4 * at), None, "word {at}");
            }
            assert_eq!(exit_byte_at(&memory, START + 0x1000), None, "no memory");
        }
        // Calls of code that does not begin as stubs do, or does not come right before them.
        let code = [0xf900_03ff, BL | 9, 0x5280_0000, 0x97ff_fffd, 0xf900_03fe, BL | 9, 0x5280_0001, 0x97ff_fffd];
        let memory = Saved::new(START, code.iter().flat_map(|word: &u32| word.to_le_bytes()).collect());
        assert_eq!([12, 28].map(|at| exit_byte_at(&memory, START + at)), [None; 2]);
    }
}
