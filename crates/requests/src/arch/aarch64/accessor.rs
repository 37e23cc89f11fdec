//! Interprets `ngx_http_lua_ffi_get_phase` as the expression `request->ctx[module.ctx_index]->context`, and
//! `ngx_http_lua_ffi_get_ctx_ref` as `request->ctx[module.ctx_index]->ctx_ref`.

use lj_trace_common::memory::ReadMemory;

use super::flags::Flags;
use crate::arch::Accessor;
use crate::arch::value::{CONTEXTS, RequestValue as Value, Tested};

/// The most instructions to follow: such a function has some twenty.
const MOST: usize = 64;

/// The stack pointer, or the zero register.
const SP: usize = 31;

/// `ret`.
const RET: u32 = 0xd65f_03c0;

/// The fields that such a function reads; [`None`] if the code is not of that form.
pub fn read_accessor(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Accessor> {
    match Machine::new(memory, Value::Unknown).run(code, address)? {
        Value::Field(accessor) => Some(accessor),
        _ => None,
    }
}

/// The field that the function for `ngx.ctx` returns wherever the field is not negative. Its second argument is null where
/// nobody asks for more. [`None`] if the code is not of that form.
pub fn read_reference(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<Accessor> {
    match Machine::new(memory, Value::Null).run(code, address)? {
        Value::Field(accessor) if accessor.mask == u32::MAX => Some(accessor),
        _ => None,
    }
}

/// What is known while the function runs.
struct Machine<'m, M> {
    memory: &'m M,
    registers: [Value; 32],
    flags: Flags,
}

impl<'m, M: ReadMemory> Machine<'m, M> {
    fn new(memory: &'m M, second: Value) -> Self {
        let mut registers = [Value::Unknown; 32];
        (registers[0], registers[1]) = (Value::Request, second);
        Self { memory, registers, flags: Flags::Unknown }
    }

    /// What the function returns, on the only path that it can take; [`None`] if that is not clear.
    fn run(mut self, code: &[u8], address: u64) -> Option<Value> {
        let mut at = 0_usize;
        for _ in 0..MOST {
            let word = u32::from_le_bytes(*code.get(at..)?.first_chunk()?);
            if word == RET {
                return Some(self.registers[0]);
            }
            let jump = self.step(word, address.wrapping_add(at as u64))?;
            at = at.checked_add_signed(isize::try_from(jump).ok()?)?;
        }
        None
    }

    /// Does what an instruction at `address` does. Returns the distance to the next one; [`None`] if the instruction is not
    /// understood.
    fn step(&mut self, word: u32, address: u64) -> Option<i64> {
        const NEXT: i64 = 4;
        let is = |mask: u32, value: u32| word & mask == value;
        let (to, from, other) = (word as usize & 31, (word >> 5) as usize & 31, (word >> 16) as usize & 31);
        let constant = u64::from(word >> 10 & 0xfff);
        if let Some(goes) = self.branch(word) {
            return goes.map(|distance| distance.unwrap_or(NEXT));
        }
        let value = if is(0xffff_f01f, 0xd503_201f) {
            // `nop`, `bti`, and those that sign addresses.
            return Some(NEXT);
        } else if is(0x9f00_0000, 0x9000_0000) {
            // `adrp`
            let pages = i64::from((word << 8).cast_signed() >> 13 << 2) | i64::from(word >> 29 & 3);
            Value::Number((address & !0xfff).wrapping_add_signed(pages << 12))
        } else if is(0xff80_0000, 0x9100_0000) && from != SP && to != SP {
            // `add` of a constant
            let constant = if word & 0x0040_0000 == 0 { constant } else { constant << 12 };
            match self.registers[from] {
                Value::Number(number) => Value::Number(number.wrapping_add(constant)),
                _ => Value::Unknown,
            }
        } else if is(0xffe0_ffe0, 0xaa00_03e0) && other != SP {
            // `mov`
            self.registers[other]
        } else if is(0xffe0_ffe0, 0x2a00_03e0) && other != SP {
            // `mov` of four bytes: a field of four bytes is as it was.
            match self.registers[other] {
                field @ Value::Field(_) => field,
                _ => Value::Unknown,
            }
        } else if is(0x7f80_0000, 0x5280_0000) || is(0x7f80_0000, 0x1280_0000) {
            // `mov` of a constant
            Value::Unknown
        } else if is(0xffc0_0000, 0xf940_0000) && from != SP {
            self.load(self.registers[from], 8 * constant)
        } else if is(0xffe0_fc00, 0xf860_7800) && from != SP && other != SP {
            // `ldr` with a register as index
            match (self.registers[from], self.registers[other]) {
                (Value::Contexts, Value::Number(index)) => Value::context(index),
                _ => Value::Unknown,
            }
        } else if is(0xffc0_0000, 0xb940_0000) && from != SP {
            field(self.registers[from], 4 * constant, u32::MAX)
        } else if is(0xffc0_0000, 0x7940_0000) && from != SP {
            field(self.registers[from], 2 * constant, 0xffff)
        } else if is(0xffff_fc1f, 0xf100_001f) || is(0xffff_fc1f, 0x7100_001f) {
            // `cmp` with 0. Of a pointer, all bits count.
            let value = self.registers[from];
            let is_whole = from != SP && (word >> 31 == 1) == matches!(value, Value::Context(_) | Value::Null);
            self.flags = value.tested().filter(|_| is_whole).map_or(Flags::Unknown, Flags::Of);
            return Some(NEXT);
        } else if is(0xffff_0c10, 0xfa40_0800) && from != SP {
            // `ccmp` with 0
            self.flags = match self.flags.hold(word >> 12 & 0xf) {
                Some(true) => match self.registers[from] {
                    value @ (Value::Context(_) | Value::Null) => value.tested().map_or(Flags::Unknown, Flags::Of),
                    _ => Flags::Unknown,
                },
                Some(false) => Flags::Bits(word & 0xf),
                None => Flags::Unknown,
            };
            return Some(NEXT);
        } else {
            return None;
        };
        if to != SP {
            self.registers[to] = value;
        }
        Some(NEXT)
    }

    /// Where a branch goes: [`None`] if this is no branch, and otherwise the distance, if it is taken; `Some(None)` if that is not
    /// known.
    fn branch(&self, word: u32) -> Option<Option<Option<i64>>> {
        let register = self.registers[word as usize & 31];
        let is_register = word & 31 != SP as u32;
        let short = i64::from((word << 8).cast_signed() >> 13 << 2);
        let taken = |is_taken: bool, distance: i64| Some(is_taken.then_some(distance));
        Some(if word >> 26 == 0b00_0101 {
            // `b`
            taken(true, i64::from((word << 6).cast_signed() >> 4))
        } else if word & 0xff00_0010 == 0x5400_0000 {
            // `b.cond`
            self.flags.hold(word & 0xf).and_then(|holds| taken(holds, short))
        } else if word & 0xfe00_0000 == 0xb400_0000 {
            // `cbz`, `cbnz` of all bits
            let is_zero = match register.tested().filter(|_| is_register && !matches!(register, Value::Field(_))) {
                Some(Tested::Zero) => Some(true),
                Some(Tested::NotZero) => Some(false),
                _ => None,
            };
            is_zero.and_then(|is_zero| taken(is_zero == (word & 0x0100_0000 == 0), short))
        } else if word & 0xfef8_0000 == 0x36f8_0000 {
            // `tbz`, `tbnz` of the sign of four bytes
            let distance = i64::from((word << 13).cast_signed() >> 18 << 2);
            let is_field = is_register && matches!(register, Value::Field(Accessor { mask: u32::MAX, .. }));
            if is_field { taken(word & 0x0100_0000 == 0, distance) } else { None }
        } else {
            return None;
        })
    }

    /// The eight bytes at an offset from a value.
    fn load(&self, base: Value, offset: u64) -> Value {
        match base {
            Value::Number(number) => {
                self.memory.read::<u64>(number.wrapping_add(offset)).map_or(Value::Unknown, Value::Number)
            }
            Value::Request if offset == CONTEXTS => Value::Contexts,
            // The index of a module is decided when nginx starts, so it is never a constant of the code.
            _ => Value::Unknown,
        }
    }
}

/// A field of a context at an offset.
fn field(base: Value, offset: u64, mask: u32) -> Value {
    match base {
        Value::Context(index) if offset < 1 << 16 => Value::Field(Accessor { index, offset: offset as u32, mask }),
        _ => Value::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::value::testing::Table;

    /// `ngx_http_lua_ffi_get_phase` of Debian's libnginx-mod-http-lua 1:0.10.23, at 0x1000.
    const PHASE: [u32; 13] = [
        0x9000_0002, // adrp x2, 0x1000
        0xf940_1042, // ldr x2, [x2, #0x20]
        0xf940_0800, // ldr x0, [x0, #16]
        0xf940_0042, // ldr x2, [x2]
        0xf862_7800, // ldr x0, [x0, x2, lsl #3]
        0xb400_0060, // cbz x0, +12
        0x7943_4800, // ldrh w0, [x0, #420]
        0xd65f_03c0, // ret
        0xd000_00a2, // adrp x2, ...
        0x1280_0000, // mov w0, #-1
        0x911b_8042, // add x2, x2, #0x6e0
        0xf900_0022, // str x2, [x1]
        0xd65f_03c0, // ret
    ];

    /// The beginning of `ngx_http_lua_ffi_get_ctx_ref`, and its last way out.
    const REFERENCE: [u32; 15] = [
        0x9000_0004, // adrp x4, 0x1000
        0xf940_1084, // ldr x4, [x4, #0x20]
        0xaa00_03e3, // mov x3, x0
        0xf940_0800, // ldr x0, [x0, #16]
        0xf940_0084, // ldr x4, [x4]
        0xf864_7804, // ldr x4, [x0, x4, lsl #3]
        0xb400_00e4, // cbz x4, +28
        0xb941_0880, // ldr w0, [x4, #264]
        0x7100_001f, // cmp w0, #0
        0xfa40_b824, // ccmp x1, #0, #4, lt
        0x5400_0041, // b.ne +8
        0xd65f_03c0, // ret
        0xf940_0463, // ldr x3, [x3, #8]
        0x1280_0c60, // mov w0, #-100
        0xd65f_03c0, // ret
    ];

    fn bytes(code: &[u32]) -> Vec<u8> {
        code.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn the_code_of_a_build_tells_index_and_place() {
        let phase = Accessor { index: 9, offset: 420, mask: 0xffff };
        assert_eq!(read_accessor(&Table, &bytes(&PHASE), 0x1000), Some(phase));
        let reference = Accessor { index: 9, offset: 264, mask: u32::MAX };
        assert_eq!(read_reference(&Table, &bytes(&REFERENCE), 0x1000), Some(reference));
        assert_eq!(read_reference(&Table, &bytes(&PHASE), 0x1000), None, "the phase has fewer bits");
        // With `bti c`, and `tbnz w0, #31, +8` for the comparison.
        let mut short = vec![0xd503_245f];
        short.extend([&REFERENCE[..8], &[0x37f8_0040, RET, RET]].concat());
        assert_eq!(read_reference(&Table, &bytes(&short), 0x1000), Some(reference));
    }

    #[test]
    fn no_change_of_a_bit_is_taken_for_something_else() {
        for code in [&PHASE[..], &REFERENCE] {
            let right = bytes(code);
            for at in 0..right.len() {
                for bit in 0..8 {
                    let mut changed = right.clone();
                    changed[at] ^= 1 << bit;
                    let found = [read_accessor(&Table, &changed, 0x1000), read_reference(&Table, &changed, 0x1000)];
                    // Only the offset in the context, or the mask, may differ. Or the module's address is taken for its index: no
                    // program has so many modules.
                    let is_right = |found: &Accessor| found.index == 9 || found.index == 0x1030;
                    assert!(found.iter().flatten().all(is_right), "byte {at}, bit {bit}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn random_code_never_ends_badly() {
        for seed in 0..20_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut code = if random.bool() { PHASE.to_vec() } else { REFERENCE.to_vec() };
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..code.len());
                code[place] = if random.bool() { random.u32(..) } else { code[random.usize(..code.len())] };
            }
            let found = read_accessor(&Table, &bytes(&code), 0x1000);
            assert!(found.is_none_or(|found| found.offset < 1 << 16), "{code:x?}");
        }
        assert_eq!(read_accessor(&Table, &[], 0x1000), None);
        assert_eq!(read_accessor(&Table, &bytes(&[RET]), 0x1000), None);
        assert_eq!(read_accessor(&Table, &bytes(&[0x1400_0000]), 0x1000), None, "a loop");
    }
}
