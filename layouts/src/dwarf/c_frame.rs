//! The C frame: what LuaJIT's assembler code keeps on the C stack (`lj_frame.h`). Its shape is fixed by macros, of
//! which debug information says nothing.
//!
//! LuaJIT's sources: [`CFRAME_SIZE`], [of arm64], [of arm64 before September 2021].
//!
//! [of arm64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L194-L202
//! [of arm64 before September 2021]: https://github.com/LuaJIT/LuaJIT/blob/28440544ba7fc494ecc822c37750991a101e41cd/src/lj_frame.h#L194-L202
//! [`CFRAME_SIZE`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_frame.h#L158-L180

use lj_trace_common::layout::VmStates;

use super::types::Types;

/// Offsets from the lowest address of a C frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CFrameLayout {
    /// `CFRAME_OFS_L`.
    pub l: u16,
    /// `CFRAME_OFS_PC`.
    pub pc: u16,
    /// `CFRAME_OFS_PREV`.
    pub prev: u16,
    /// `CFRAME_OFS_NRES`.
    pub nres: u16,
    /// `CFRAME_SIZE`.
    pub size: u16,
}

/// The constants, by the names that a probe of the headers gives them (see `cargo xtask layouts`).
pub const CONSTANTS: [&str; 5] = [
    "LJ_TRACE_CFRAME_OFS_L",
    "LJ_TRACE_CFRAME_OFS_PC",
    "LJ_TRACE_CFRAME_OFS_PREV",
    "LJ_TRACE_CFRAME_OFS_NRES",
    "LJ_TRACE_CFRAME_SIZE",
];

/// How much longer it is in a build with `LUAJIT_NO_UNWIND`, which saves two more registers.
const NO_UNWIND: u16 = 16;

impl CFrameLayout {
    /// As a probe of the headers says.
    pub fn of_probe(types: &Types) -> Option<Self> {
        let mut values = [0; CONSTANTS.len()];
        for (value, name) in values.iter_mut().zip(CONSTANTS) {
            *value = u16::try_from(*types.enumerators.get(name)?).ok()?;
        }
        let [l, pc, prev, nres, size] = values;
        Some(Self { l, pc, prev, nres, size })
    }

    /// What it can be in an x86-64 program: without and with `LUAJIT_NO_UNWIND`.
    pub fn of_x64(gc64: bool, states: VmStates) -> [Self; 2] {
        let (l, pc, nres) = if gc64 { (16, 24, 8) } else { (24, 28, 16) };
        // Tarantool saves the VM state there too, since it has the finer states.
        let (prev, size) = if states == VmStates::Tarantool { (48, 96) } else { (32, 80) };
        [0, NO_UNWIND].map(|more| Self { l, pc, prev, nres, size: size + more })
    }

    /// What it can be in an arm64 program: since September 2021, and before.
    pub const fn of_arm64() -> [Self; 2] {
        [Self { l: 16, pc: 8, prev: 0, nres: 40, size: 208 }, Self { l: 176, pc: 168, prev: 160, nres: 200, size: 208 }]
    }
}
