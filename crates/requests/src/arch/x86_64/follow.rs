//! Follows the code of a short function from its beginning to its end.

use iced_x86::{ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::arch::value::Tested;

/// The most instructions to follow.
const MOST_INSTRUCTIONS: usize = 40;

/// Knows what instructions of a function do with the values that its reader wants to follow.
pub trait CodeReader {
    /// The value of a register.
    type Value: Copy;

    /// The value that an instruction puts into its first operand, a register.
    fn result(&self, values: &Values<Self::Value>, instruction: &Instruction) -> Self::Value;

    /// What is known of a value that the function tests; [`None`] if nothing is.
    fn tested(&self, value: Self::Value) -> Option<Tested>;
}

/// Whether a jump on this condition is taken after such a value was compared with 0; [`None`] if that is not known.
fn jumps(tested: Tested, condition: ConditionCode) -> Option<bool> {
    match (tested, condition) {
        (Tested::NotZero, ConditionCode::e) | (Tested::Zero, ConditionCode::ne) => Some(false),
        (Tested::NotZero, ConditionCode::ne) | (Tested::Zero, ConditionCode::e) => Some(true),
        // Such a test leaves no overflow.
        (Tested::NotNegative, ConditionCode::s | ConditionCode::l) => Some(false),
        (Tested::NotNegative, ConditionCode::ns | ConditionCode::ge) => Some(true),
        _ => None,
    }
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

    /// The same with a second argument.
    pub fn and_second(mut self, argument: T) -> Self {
        self.registers[Register::RSI.number()] = argument;
        self
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
                let tested: Tested = tested.take()?;
                if jumps(tested, instruction.condition_code())? {
                    go_to(&mut decoder, address, instruction.near_branch_target())?;
                }
                continue;
            }
            _ => return None,
        }
        if instruction.mnemonic() == Mnemonic::Test {
            let (first, second) = (instruction.op0_register(), instruction.op1_register());
            let is_whole = first.is_gpr64() || first.is_gpr32();
            let value = (first == second && is_whole).then(|| values.of(first.full_register()));
            tested = value.and_then(|value| reader.tested(value)).filter(|tested| match tested {
                Tested::NotZero | Tested::Zero => first.is_gpr64(),
                Tested::NotNegative => first.is_gpr32(),
            });
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
