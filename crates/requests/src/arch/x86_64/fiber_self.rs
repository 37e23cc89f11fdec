//! Interprets Tarantool's `fiber_self` as the expression `cord_ptr->fiber`, where `cord_ptr` belongs to the thread.

use iced_x86::{Code, Instruction, OpKind, Register};
use lj_trace_common::memory::ReadMemory;

use super::follow::{CodeReader, Values, follow};
use crate::arch::FiberSelf;
use crate::arch::value::Tested;

/// The value of a register. Offsets are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    /// A number.
    Number(u64),
    /// The address of the thread's variable at this offset.
    Variable(u64),
    /// What the thread's variable at this offset points to.
    Cord(u64),
    /// The current fiber.
    Fiber(FiberSelf),
}

/// Where such a function finds the fiber; [`None`] if the code is not of that form.
pub fn read_fiber_self(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<FiberSelf> {
    let values = Values::of_argument(Value::Unknown, Value::Unknown);
    match follow(&FiberReader(memory), values, code, address)? {
        Value::Fiber(found) => Some(found),
        _ => None,
    }
}

/// Knows how instructions get at variables of the thread.
struct FiberReader<'m, M>(&'m M);

impl<M: ReadMemory> CodeReader for FiberReader<'_, M> {
    type Value = Value;

    fn result(&self, values: &Values<Value>, instruction: &Instruction) -> Value {
        match instruction.code() {
            Code::Mov_r64_imm64 => Value::Number(instruction.immediate64()),
            Code::Mov_rm64_imm32 => Value::Number(instruction.immediate32to64() as u64),
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
                values.of(instruction.op1_register())
            }
            Code::Mov_r64_rm64 => self.load(values, instruction),
            Code::Lea_r64_m => match place(values, instruction) {
                Some(Place::Variable(offset)) => Value::Variable(offset),
                Some(Place::Address(address)) => Value::Number(address),
                _ => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    fn tested(&self, value: Value) -> Option<Tested> {
        matches!(value, Value::Cord(_)).then_some(Tested::NotZero)
    }
}

/// Where an operand in memory lies.
enum Place {
    /// At an address that is known.
    Address(u64),
    /// In the thread's variables.
    Variable(u64),
    /// In the cord that the thread's variable points to.
    Cord { variable: u64, offset: u64 },
}

fn place(values: &Values<Value>, instruction: &Instruction) -> Option<Place> {
    let (base, offset) = (instruction.memory_base(), instruction.memory_displacement64());
    if instruction.memory_index() != Register::None {
        return None;
    }
    // For addresses relative to the instruction, iced already gives the absolute one.
    let base = if matches!(base, Register::None | Register::RIP) { Value::Number(0) } else { values.of(base) };
    let is_of_thread = instruction.segment_prefix() == Register::FS;
    match base {
        Value::Number(number) if is_of_thread => Some(Place::Variable(number.wrapping_add(offset))),
        Value::Number(number) => Some(Place::Address(number.wrapping_add(offset))),
        Value::Variable(start) if !is_of_thread => Some(Place::Variable(start.wrapping_add(offset))),
        Value::Cord(variable) if !is_of_thread => Some(Place::Cord { variable, offset }),
        _ => None,
    }
}

impl<M: ReadMemory> FiberReader<'_, M> {
    fn load(&self, values: &Values<Value>, instruction: &Instruction) -> Value {
        /// The most bytes of a cord in which the pointer may be.
        const CORD: u64 = 1 << 12;
        match place(values, instruction) {
            // The first of the thread's variables is the address that they lie at.
            Some(Place::Variable(0)) => Value::Variable(0),
            Some(Place::Variable(offset)) => Value::Cord(offset),
            Some(Place::Cord { variable, offset: fiber }) if fiber < CORD && fiber % 8 == 0 => {
                Value::Fiber(FiberSelf { variable, fiber })
            }
            Some(Place::Address(address)) => self.0.read::<u64>(address).map_or(Value::Unknown, Value::Number),
            _ => Value::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use lj_trace_common::memory::{Pod, Unreadable};

    use super::*;

    /// Memory with one word, an offset of a variable, behind the code.
    struct Offset;

    impl ReadMemory for Offset {
        fn read<T: Pod>(&self, address: u64) -> Result<T, Unreadable> {
            assert_eq!(size_of::<T>(), 8);
            // SAFETY: both are plain data of the same size.
            if address == 0x2000 { Ok(unsafe { std::mem::transmute_copy(&(-8_i64)) }) } else { Err(Unreadable) }
        }
    }

    fn read(code: &[u8]) -> Option<FiberSelf> {
        read_fiber_self(&Offset, code, 0x1000)
    }

    /// Tarantool 2.6 as in Debian: `mov %fs:-0x33a0,%rax; mov (%rax),%rax; ret`.
    const SHORT: [u8; 13] = [0x64, 0x48, 0x8b, 0x04, 0x25, 0x60, 0xcc, 0xff, 0xff, 0x48, 0x8b, 0x00, 0xc3];

    /// The code of Tarantool 2.11 and later, which makes a cord where the thread has none yet, by gcc for an executable at
    /// any address.
    const ON_DEMAND: [u8; 46] = [
        0x53, // push %rbx
        0x48, 0xc7, 0xc3, 0xf8, 0xff, 0xff, 0xff, // mov $-8,%rbx
        0x64, 0x48, 0x8b, 0x03, // mov %fs:(%rbx),%rax
        0x48, 0x85, 0xc0, // test %rax,%rax
        0x74, 0x0f, // je
        0x48, 0x8b, 0x00, // mov (%rax),%rax
        0x5b, 0xc3, // pop %rbx; ret
        0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00, // nop
        0xe8, 0x0b, 0x00, 0x00, 0x00, // call
        0x64, 0x48, 0x89, 0x03, // mov %rax,%fs:(%rbx)
        0x48, 0x8b, 0x00, 0x5b, 0xc3, // mov (%rax),%rax; pop %rbx; ret
    ];

    #[test]
    fn the_code_of_builds_tells_where_the_fiber_is() {
        assert_eq!(read(&SHORT), Some(FiberSelf { variable: (-0x33a0_i64) as u64, fiber: 0 }));
        let own = FiberSelf { variable: -8_i64 as u64, fiber: 0 };
        assert_eq!(read(&ON_DEMAND), Some(own));
        // As for a library, what the linker has made cheaper: mov %fs:0,%rax; lea -8(%rax),%rax; mov %rax,%rbx;
        // mov (%rax),%rax; test %rax,%rax; je; mov (%rax),%rax; pop %rbx; ret.
        let relaxed = [
            0x53, 0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x8d, 0x80, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xc3,
            0x48, 0x8b, 0x00, 0x48, 0x85, 0xc0, 0x74, 0x0c, 0x48, 0x8b, 0x00, 0x5b, 0xc3,
        ];
        assert_eq!(read(&relaxed), Some(own));
        // The offset is in a table: mov 0xff9(%rip),%rax; mov %fs:(%rax),%rax; mov 0x18(%rax),%rax; ret.
        let table = [0x48, 0x8b, 0x05, 0xf9, 0x0f, 0, 0, 0x64, 0x48, 0x8b, 0x00, 0x48, 0x8b, 0x40, 0x18, 0xc3];
        assert_eq!(read(&table), Some(FiberSelf { fiber: 0x18, ..own }));
    }

    #[test]
    fn other_code_is_not_understood() {
        let cases = [
            &[][..],
            &[0xc3],
            &[0x90; 64],
            // The variable itself; a word of the first argument; a call.
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x60, 0xcc, 0xff, 0xff, 0xc3],
            &[0x48, 0x8b, 0x07, 0x48, 0x8b, 0x00, 0xc3],
            &[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x00, 0xc3],
        ];
        for code in cases {
            assert_eq!(read(code), None, "{code:x?}");
        }
    }

    #[test]
    fn no_change_of_a_byte_leads_to_memory_that_is_not_the_threads() {
        for at in 0..SHORT.len() {
            for bit in 0..8 {
                let mut changed = SHORT;
                changed[at] ^= 1 << bit;
                if let Some(found) = read(&changed) {
                    assert!(found.fiber < 1 << 12 && found.variable != 0, "byte {at}, bit {bit}: {found:?}");
                }
            }
        }
    }
}
