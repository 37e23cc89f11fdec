//! Tells whether the rest of a function changes any memory.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess};

/// The most instructions to look at.
const MOST_INSTRUCTIONS: usize = 64;

/// Whether a function of which this is the rest returns without a write to memory and without a call, whichever way it goes.
pub fn only_reads_on(code: &[u8]) -> bool {
    let mut seen = Vec::new();
    let mut to_do = vec![0];
    let mut factory = InstructionInfoFactory::new();
    while let Some(at) = to_do.pop() {
        if seen.contains(&at) {
            continue;
        }
        seen.push(at);
        let rest = usize::try_from(at).ok().and_then(|at| code.get(at..));
        let Some(rest) = rest.filter(|_| seen.len() <= MOST_INSTRUCTIONS) else { return false };
        let instruction = Decoder::with_ip(64, rest, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() || writes(&instruction, &mut factory) {
            return false;
        }
        match instruction.flow_control() {
            FlowControl::Next => to_do.push(instruction.next_ip()),
            FlowControl::ConditionalBranch => {
                to_do.extend([instruction.next_ip(), instruction.near_branch_target()]);
            }
            FlowControl::UnconditionalBranch => to_do.push(instruction.near_branch_target()),
            FlowControl::Return => {}
            _ => return false,
        }
    }
    true
}

/// Whether an instruction may write memory.
fn writes(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    let is_read =
        |access| matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead);
    !factory.info(instruction).used_memory().iter().all(|memory| is_read(memory.access()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_calls_or_leaves_is_told() {
        // mov eax, edi; cdq; idiv esi; test edx, edx; je +2; mov eax, edx; ret
        let modulo = [0x89, 0xf8, 0x99, 0xf7, 0xfe, 0x85, 0xd2, 0x74, 2, 0x89, 0xd0, 0xc3];
        assert!(only_reads_on(&modulo));
        // The code ends before the function does.
        assert!(!only_reads_on(&modulo[..11]));
        let cases: [(&[u8], bool); 9] = [
            (&[0xc3], true),
            // mov rax, [rdi]; ret
            (&[0x48, 0x8b, 0x07, 0xc3], true),
            // pop rbx; ret
            (&[0x5b, 0xc3], true),
            // jmp to itself
            (&[0xeb, 0xfe], true),
            // mov [rdi], rax; ret
            (&[0x48, 0x89, 0x07, 0xc3], false),
            // push rbx; ret
            (&[0x53, 0xc3], false),
            // call +0; ret
            (&[0xe8, 0, 0, 0, 0, 0xc3], false),
            // je -4, to what was before; ret
            (&[0x74, 0xfc, 0xc3], false),
            // jmp rax
            (&[0xff, 0xe0], false),
        ];
        for (code, wanted) in cases {
            assert_eq!(only_reads_on(code), wanted, "{code:x?}");
        }
        // Only ways that begin at the interrupted instruction count: je +3; mov [rdi], rax; ret
        let both = [0x74, 3, 0x48, 0x89, 0x07, 0xc3];
        assert!(!only_reads_on(&both) && only_reads_on(&both[5..]));
        assert!(!only_reads_on(&[0x90; 200]) && !only_reads_on(&[]));
    }
}
