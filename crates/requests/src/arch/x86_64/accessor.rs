//! Interprets `ngx_http_lua_ffi_get_phase` as the expression `request->ctx[module.ctx_index]->context`, and
//! `ngx_http_lua_ffi_get_ctx_ref` as `request->ctx[module.ctx_index]->ctx_ref`.

use iced_x86::{Code, Instruction, OpKind, Register};
use lj_trace_common::memory::ReadMemory;

use super::follow::{CodeReader, Values, follow};
use crate::arch::Accessor;
use crate::arch::value::{CONTEXTS, RequestValue as Value, Tested};

/// The fields that such a function reads; [`None`] if the code is not of that form.
pub fn read_accessor(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Accessor> {
    let values = Values::of_argument(Value::Request, Value::Unknown);
    match follow(&FieldReader(memory), values, code, address)? {
        Value::Field(accessor) => Some(accessor),
        _ => None,
    }
}

/// The field that the function for `ngx.ctx` returns wherever the field is not negative. Its second argument is null where
/// nobody asks for more. [`None`] if the code is not of that form.
pub fn read_reference(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Accessor> {
    let values = Values::of_argument(Value::Request, Value::Unknown).and_second(Value::Null);
    match follow(&FieldReader(memory), values, code, address)? {
        Value::Field(accessor) if accessor.mask == u32::MAX => Some(accessor),
        _ => None,
    }
}

/// Knows what instructions do with a request.
struct FieldReader<'m, M>(&'m M);

impl<M: ReadMemory> CodeReader for FieldReader<'_, M> {
    type Value = Value;

    fn result(&self, values: &Values<Value>, instruction: &Instruction) -> Value {
        result(self.0, values, instruction)
    }

    fn tested(&self, value: Value) -> Option<Tested> {
        value.tested()
    }
}

/// The value that an instruction puts into its first operand.
fn result(memory: &impl ReadMemory, values: &Values<Value>, instruction: &Instruction) -> Value {
    let (width, is_load) = match instruction.code() {
        Code::Mov_r64_rm64 => (64, instruction.op1_kind() == OpKind::Memory),
        Code::Mov_r32_rm32 => (32, instruction.op1_kind() == OpKind::Memory),
        // Between registers: the caller has seen that the first operand is one.
        Code::Mov_rm64_r64 => (64, false),
        Code::Mov_rm32_r32 => (32, false),
        Code::Movzx_r32_rm16 | Code::Movzx_r64_rm16 => (16, instruction.op1_kind() == OpKind::Memory),
        Code::Lea_r64_m if instruction.memory_base() == Register::RIP => {
            return Value::Number(instruction.memory_displacement64());
        }
        _ => return Value::Unknown,
    };
    if !is_load {
        let source = instruction.op1_register();
        return match (width, values.of(source.full_register())) {
            (64, value) => value,
            // A field of four bytes is as it was.
            (32, value @ Value::Field(_)) => value,
            _ => Value::Unknown,
        };
    }
    let displacement = instruction.memory_displacement64();
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let load = |address: u64| match width {
        64 => memory.read::<u64>(address).map_or(Value::Unknown, Value::Number),
        _ => Value::Unknown,
    };
    // For this form, iced already gives the absolute address as the displacement.
    if base == Register::RIP || base == Register::None && index == Register::None {
        return load(displacement);
    }
    match (values.of(base), index, width) {
        (Value::Number(number), Register::None, 64) => load(number.wrapping_add(displacement)),
        (Value::Request, Register::None, 64) if displacement == CONTEXTS => Value::Contexts,
        (Value::Contexts, Register::None, 64) if displacement.is_multiple_of(8) => Value::context(displacement / 8),
        (Value::Contexts, index, 64) if instruction.memory_index_scale() == 8 && displacement == 0 => {
            if let Value::Number(number) = values.of(index) {
                Value::context(number)
            } else {
                Value::Unknown
            }
        }
        (Value::Context(index), Register::None, 16 | 32) if displacement < 1 << 16 => {
            let mask = if width == 16 { 0xffff } else { u32::MAX };
            Value::Field(Accessor { index, offset: displacement as u32, mask })
        }
        _ => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::value::testing::Table;

    /// `mov off(%rip), %rax` at the start of the code, followed by `rest`.
    fn code(rest: &[u8]) -> Vec<u8> {
        let mut code = vec![0x48, 0x8b, 0x05, 0x19, 0, 0, 0];
        code.extend(rest);
        code
    }

    const REST: [u8; 30] = [
        0x48, 0x8b, 0x10, // mov (%rax), %rdx
        0x48, 0x8b, 0x47, 0x10, // mov 0x10(%rdi), %rax
        0x48, 0x8b, 0x04, 0xd0, // mov (%rax,%rdx,8), %rax
        0x48, 0x85, 0xc0, // test %rax, %rax
        0x74, 0x08, // je
        0x0f, 0xb7, 0x80, 0xa4, 0x01, 0, 0,    // movzwl 0x1a4(%rax), %eax
        0xc3, // ret
        0x48, 0x89, 0x06, // mov %rax, (%rsi)
        0x31, 0xc0, 0xc3, // xor %eax, %eax; ret
    ];

    #[test]
    fn the_code_of_a_build_tells_index_and_place() {
        let found = read_accessor(&Table, &code(&REST), 0x1000);
        assert_eq!(found, Some(Accessor { index: 9, offset: 0x1a4, mask: 0xffff }));
    }

    #[test]
    fn a_program_that_is_not_relocated_has_the_index_in_place() {
        // mov off(%rip), %rdx: the module itself; mov 0x10(%rdi), %rax; mov (%rax,%rdx,8), %rax; mov 0x1c8(%rax), %eax; ret.
        let bytes = [
            0x48, 0x8b, 0x15, 0x29, 0, 0, 0, 0x48, 0x8b, 0x47, 0x10, 0x48, 0x8b, 0x04, 0xd0, 0x48, 0x85, 0xc0, 0x75,
            0x02, 0x31, 0xc0, 0x8b, 0x80, 0xc8, 0x01, 0, 0, 0xc3,
        ];
        let found = read_accessor(&Table, &bytes, 0x1000);
        assert_eq!(found, Some(Accessor { index: 9, offset: 0x1c8, mask: u32::MAX }));
    }

    /// The code of a build, from behind its first instruction: it also tells the number of the TLS connection's table.
    const REFERENCE: [u8; 118] = [
        0x53, // push %rbx
        0x48, 0x89, 0xd3, // mov %rdx, %rbx
        0x48, 0x8b, 0x10, // mov (%rax), %rdx
        0x48, 0x8b, 0x47, 0x10, // mov 0x10(%rdi), %rax
        0x48, 0x8b, 0x04, 0xd0, // mov (%rax,%rdx,8), %rax
        0x48, 0x85, 0xc0, // test %rax, %rax
        0x74, 0x5b, // je: returns -100
        0x8b, 0x90, 0x08, 0x01, 0, 0, // mov 0x108(%rax), %edx
        0x85, 0xd2, // test %edx, %edx
        0x79, 0x05, // jns
        0x48, 0x85, 0xf6, // test %rsi, %rsi
        0x75, 0x06, // jne
        0x89, 0xd0, // mov %edx, %eax
        0x5b, // pop %rbx
        0xc3, // ret
        0x66, 0x90, 0x0f, 0xb7, 0x80, 0xa4, 0x01, 0, 0, 0x25, 0, 0x5c, 0, 0, 0x89, 0x06, 0x48, 0x8b, 0x47, 0x08, 0xc7,
        0x03, 0xfe, 0xff, 0xff, 0xff, 0x48, 0x8b, 0x80, 0x90, 0, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x1b, 0x48, 0x8b, 0x15,
        0xbd, 0xd3, 0x04, 0, 0x48, 0x8b, 0x38, 0x8b, 0x32, 0xe8, 0xeb, 0x19, 0xff, 0xff, 0x48, 0x85, 0xc0, 0x74, 0x05,
        0x8b, 0x40, 0x34, 0x89, 0x03, 0xba, 0xfe, 0xff, 0xff, 0xff, 0xeb, 0xb4, 0xba, 0x9c, 0xff, 0xff, 0xff, 0xeb,
        0xad,
    ];

    #[test]
    fn the_number_of_the_context_is_what_is_returned_where_it_is_not_negative() {
        let right = Accessor { index: 9, offset: 0x108, mask: u32::MAX };
        assert_eq!(read_reference(&Table, &code(&REFERENCE), 0x1000), Some(right));
        // Older versions of the module have no more than this.
        let short = [&REFERENCE[4..18], &[0x74, 0x07, 0x8b, 0x80, 0x08, 0x01, 0, 0, 0xc3]].concat();
        assert_eq!(read_reference(&Table, &code(&short), 0x1000), Some(right));
        for at in 0..code(&REFERENCE).len() {
            for bit in 0..8 {
                let mut changed = code(&REFERENCE);
                changed[at] ^= 1 << bit;
                if let Some(found) = read_reference(&Table, &changed, 0x1000) {
                    assert!(found.index == 9 && found.mask == u32::MAX, "byte {at}, bit {bit}: {found:?}");
                }
            }
        }
        assert_eq!(read_reference(&Table, &code(&REST), 0x1000), None, "the phase has fewer bits");
    }

    #[test]
    fn no_change_of_a_byte_is_taken_for_something_else() {
        let right = read_accessor(&Table, &code(&REST), 0x1000);
        for at in 0..code(&REST).len() {
            for bit in 0..8 {
                let mut changed = code(&REST);
                changed[at] ^= 1 << bit;
                if let Some(found) = read_accessor(&Table, &changed, 0x1000).filter(|found| Some(*found) != right) {
                    // Only the offset in the context, or the mask, may differ.
                    assert_eq!(found.index, 9, "byte {at}, bit {bit}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn other_code_is_not_understood() {
        for code in [&[][..], &[0xc3], &[0x90; 64], &[0x0f, 0xb7, 0x87, 0, 0, 0, 0, 0xc3], &[0xe8, 0, 0, 0, 0, 0xc3]] {
            assert_eq!(read_accessor(&Table, code, 0x1000), None);
        }
    }
}
