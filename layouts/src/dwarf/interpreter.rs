//! What the unwind information says about the interpreter's frames.
//!
//! LuaJIT's sources: [`lj_vm_asm_begin`].
//!
//! [`lj_vm_asm_begin`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/host/buildvm.c#L206

use gimli::{BaseAddresses, CfaRule, DebugFrame, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection as _, ObjectSymbol as _};

type Bytes<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// The first address of LuaJIT's assembler code has this symbol (`buildvm.c`).
const START: &str = "lj_vm_asm_begin";

/// The size of the interpreter's frames in `.eh_frame` or, with `LUAJIT_NO_UNWIND`, in `.debug_frame`.
pub fn c_frame_size<'data>(file: &impl Object<'data>) -> Option<u64> {
    let start = file.symbols().find(|symbol| symbol.name() == Ok(START))?.address();
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        Some((section.uncompressed_data().ok()?, section.address()))
    };
    let in_eh_frame = || {
        let (bytes, address) = section(".eh_frame")?;
        let bases = BaseAddresses::default().set_eh_frame(address);
        frame_size(&EhFrame::new(&bytes, LittleEndian), &bases, start)
    };
    let in_debug_frame = || {
        let (bytes, _) = section(".debug_frame")?;
        frame_size(&DebugFrame::new(&bytes, LittleEndian), &BaseAddresses::default(), start)
    };
    in_eh_frame().or_else(in_debug_frame)
}

fn frame_size<'a, S>(section: &S, bases: &BaseAddresses, address: u64) -> Option<u64>
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let mut context = UnwindContext::new();
    let row = section.unwind_info_for_address(bases, &mut context, address, S::cie_from_offset).ok()?;
    match row.cfa() {
        CfaRule::RegisterAndOffset { offset, .. } => u64::try_from(*offset).ok(),
        CfaRule::Expression(_) => None,
    }
}
