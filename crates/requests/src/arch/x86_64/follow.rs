//! Follows the code of a short function from its beginning to its end.

use iced_x86::{ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The most instructions to follow.
const MOST_INSTRUCTIONS: usize = 40;

/// Knows what instructions of a function do with the values that its reader wants to follow.
pub trait CodeReader {
    /// The value of a register.
    type Value: Copy;

    /// The value that an instruction puts into its first operand, a register.
    fn result(&self, values: &Values<Self::Value>, instruction: &Instruction) -> Self::Value;

    /// Whether the function goes on where this value is not zero: a pointer that it tests first.
    fn is_tested(&self, value: Self::Value) -> bool;
}

/// The values of the general registers.
pub struct Values<T> {
    registers: [T; 16],
    unknown: T,
}

impl<T: Copy> Values<T> {
    /// All of them `unknown`, but for the first argument.
    pub fn of_argument(argument: T, unknown: T) -> Self {
        let mut registers = [unknown; 16];
        registers[Register::RDI.number()] = argument;
        Self { registers, unknown }
    }

    /// The value of a register.
    pub fn of(&self, register: Register) -> T {
        if register.is_gpr64() { self.registers[register.number()] } else { self.unknown }
    }
}

/// What the function with this `code` at `address` returns; [`None`] if it does something else than to compute a value.
pub fn follow<R: CodeReader>(reader: &R, mut values: Values<R::Value>, code: &[u8], address: u64) -> Option<R::Value> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut tested = None;
    for _ in 0..MOST_INSTRUCTIONS {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return => return Some(values.of(Register::RAX)),
            FlowControl::UnconditionalBranch => {
                go_to(&mut decoder, address, instruction.near_branch_target())?;
                continue;
            }
            FlowControl::ConditionalBranch => {
                // Continue where the pointer is not null.
                tested.take()?;
                match instruction.condition_code() {
                    ConditionCode::e => {}
                    ConditionCode::ne => go_to(&mut decoder, address, instruction.near_branch_target())?,
                    _ => return None,
                }
                continue;
            }
            _ => return None,
        }
        if instruction.mnemonic() == Mnemonic::Test {
            let (first, second) = (instruction.op0_register(), instruction.op1_register());
            tested = (first == second && reader.is_tested(values.of(first))).then_some(());
            continue;
        }
        if instruction.op_count() >= 1 && instruction.op0_kind() == OpKind::Register && writes_first(&instruction) {
            let register = instruction.op0_register().full_register();
            if register.is_gpr64() {
                values.registers[register.number()] = reader.result(&values, &instruction);
            }
        }
    }
    None
}

/// Whether the instruction writes its first operand.
fn writes_first(instruction: &Instruction) -> bool {
    !matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop)
}

fn go_to(decoder: &mut Decoder<'_>, start: u64, target: u64) -> Option<()> {
    decoder.set_position(usize::try_from(target.checked_sub(start)?).ok()?).ok()?;
    decoder.set_ip(target);
    Some(())
}
