//! Finds the interpreter's machine code: the unwind information that covers the dispatch targets.
//!
//! LuaJIT's build describes all of its assembler code, except for `vm_ffi_call`, as one function in `.eh_frame`
//! ([`emit_asm_debug`], `vm_x64.dasc` and `vm_x86.dasc`), even in stripped programs. This module reads it from the
//! target's memory through `PT_GNU_EH_FRAME`, so it needs neither files nor section headers.
//!
//! LuaJIT's sources: [`emit_asm_debug` without GC64].
//!
//! [`emit_asm_debug`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x64.dasc#L5000-L5038
//! [`emit_asm_debug` without GC64]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/vm_x86.dasc#L5894-L5943

use std::ops::Range;

use gimli::{BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, UnwindContext, UnwindSection as _, Vendor};
use lj_trace_common::arch::{SIGNS_RETURNS, reg};
use lj_trace_common::layout::VmLayout;
use lj_trace_common::memory::ReadMemory;
use lj_trace_process::{Mapping, Maps};
use lj_trace_unwind::arch::{callback_code, code_frame, edges};
use lj_trace_unwind::vm_edges::Edges;
use lj_trace_unwind::vm_frame::CodeFrame;
use object::Endianness;
use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::machine::InterpreterText;
use super::object::{read_bytes, read_some};

/// A function as `.eh_frame` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedFunction {
    /// Addresses of its machine code.
    pub range: Range<u64>,
    /// Distance from the stack pointer to the CFA in the function's body; [`None`] if the CFA is not relative to the
    /// stack pointer.
    pub frame_size: Option<u64>,
}

/// The most bytes of an interpreter: the one of 2026 has 26 KB.
const MAX_TEXT: u64 = 128 << 10;

/// The most bytes of unwind information: a browser has 20 MB.
const MAX_SECTION: usize = 128 << 20;

/// The range of the interpreter's code, which contains the dispatch table's `targets`, and the shape of its C frames,
/// as far as they are known.
pub fn interpreter_text<M: ReadMemory>(
    memory: &M,
    maps: &Maps,
    targets: &[u64],
) -> (InterpreterText, Option<CodeFrame>) {
    let (start, end) = (targets.iter().min().copied().unwrap_or(0), targets.iter().max().copied().unwrap_or(0));
    let covers = |range: &Range<u64>| range.contains(&start) && range.contains(&end);
    let information = UnwindInformation::read(memory, maps, start);
    if let Some(function) = information.as_ref().and_then(|information| information.function(start))
        && covers(&function.range)
    {
        let frame = match function.frame_size {
            Some(size) => Some(CodeFrame { size, l: None }),
            None => code_frame(&read_code(memory, &function.range)),
        };
        return (InterpreterText { range: function.range, exact: true, edges: Edges::default() }, frame);
    }
    // Built with LUAJIT_NO_UNWIND: the interpreter is the gap between the functions with unwind information.
    let hole = information.and_then(|information| information.hole(start)).filter(covers);
    let hole = hole.filter(|hole| hole.end - hole.start <= MAX_TEXT);
    let exact = hole.is_some();
    let range = hole.unwrap_or(start..end.saturating_add(1));
    let frame = code_frame(&read_code(memory, &range));
    (InterpreterText { range, exact, edges: Edges::default() }, frame)
}

/// The readable part of the interpreter's code.
fn read_code<M: ReadMemory>(memory: &M, range: &Range<u64>) -> Vec<u8> {
    let length = usize::try_from(range.end.saturating_sub(range.start).min(MAX_TEXT)).unwrap_or(0);
    read_some(memory, range.start, length)
}

/// Places in the interpreter where a C frame has no Lua frame. The range of its code and the VM's layout must be known.
pub fn interpreter_edges<M: ReadMemory>(memory: &M, range: &Range<u64>, layout: &VmLayout) -> Edges {
    let code = read_code(memory, range);
    let mut found = edges(&code, range.start, layout);
    // The call is the last of these instructions.
    let drops = found.callback_left.first().map(|range| range.end.saturating_sub(4));
    let read = |address, length| read_some(memory, address, length);
    found.callback_code = callback_code(&code, range.start, drops, layout, read);
    found
}

/// The function around `address`, if the file mapped there has unwind information for it.
pub fn described_function<M: ReadMemory>(memory: &M, maps: &Maps, address: u64) -> Option<DescribedFunction> {
    UnwindInformation::read(memory, maps, address)?.function(address)
}

/// The unwind information of a file in the target's memory.
struct UnwindInformation {
    index: Vec<u8>,
    frames: Vec<u8>,
    bases: BaseAddresses,
}

impl UnwindInformation {
    /// Reads the unwind information of the file that is mapped at `address`.
    fn read<M: ReadMemory>(memory: &M, maps: &Maps, address: u64) -> Option<Self> {
        let first = first_mapping_of_file(maps, address)?;
        let headers = read_bytes(memory, first.start, 4096.min(first.len() as usize)).ok()?;
        let header = FileHeader64::<Endianness>::parse(headers.as_slice()).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, headers.as_slice()).ok()?;
        // The load bias: how far the file is from its linked address.
        let lowest = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).map(|s| s.p_vaddr(endian)).min()?;
        let bias = first.start.wrapping_sub(lowest & !4095);
        let index = segments.iter().find(|s| s.p_type(endian) == PT_GNU_EH_FRAME)?;
        let index_start = bias.wrapping_add(index.p_vaddr(endian));
        let index_length = usize::try_from(index.p_memsz(endian)).ok().filter(|length| *length <= MAX_SECTION)?;
        let index_bytes = read_bytes(memory, index_start, index_length).ok()?;

        let bases = BaseAddresses::default().set_eh_frame_hdr(index_start);
        let index = EhFrameHdr::new(&index_bytes, LittleEndian).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(frames_start) = index.eh_frame_ptr() else { return None };
        // The section ends with its segment, or before.
        let ends = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).filter_map(|s| {
            let start = bias.wrapping_add(s.p_vaddr(endian));
            let end = start.checked_add(s.p_memsz(endian))?;
            (start..end).contains(&frames_start).then_some(end)
        });
        let length = usize::try_from(ends.min()? - frames_start).map_or(MAX_SECTION, |length| length.min(MAX_SECTION));
        let frames = read_some(memory, frames_start, length);
        Some(Self { index: index_bytes, frames, bases: bases.set_eh_frame(frames_start) })
    }

    /// The function around `address`.
    fn function(&self, address: u64) -> Option<DescribedFunction> {
        let index = EhFrameHdr::new(&self.index, LittleEndian).parse(&self.bases, 8).ok()?;
        let mut frames = EhFrame::new(&self.frames, LittleEndian);
        if SIGNS_RETURNS {
            frames.set_vendor(Vendor::AArch64);
        }
        let entry = index.table()?.fde_for_address(&frames, &self.bases, address, EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&frames, &self.bases, &mut context, address).ok();
        let frame_size = row.and_then(|row| match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if usize::from(register.0) == reg::SP => {
                u64::try_from(*offset).ok()
            }
            CfaRule::RegisterAndOffset { .. } | CfaRule::Expression(_) => None,
        });
        let start = entry.initial_address();
        Some(DescribedFunction { range: start..start.checked_add(entry.len())?, frame_size })
    }

    /// The range around `address` that belongs to no function: from the end of the function before it to the start of
    /// the function after it.
    fn hole(&self, address: u64) -> Option<Range<u64>> {
        let index = EhFrameHdr::new(&self.index, LittleEndian).parse(&self.bases, 8).ok()?;
        let (mut before, mut after) = (None, None);
        let table = index.table()?;
        let mut starts = table.iter(&self.bases);
        while let Some((start, _)) = starts.next().ok()? {
            let gimli::Pointer::Direct(start) = start else { return None };
            if start <= address {
                before = before.max(Some(start));
            } else if after.is_none_or(|after| start < after) {
                after = Some(start);
            }
        }
        let end = self.function(before?)?.range.end;
        (end <= address).then_some(end..after?)
    }
}

/// The mapping with the beginning of the file that is mapped at `address`.
fn first_mapping_of_file(maps: &Maps, address: u64) -> Option<&Mapping> {
    let mapping = maps.find(address).filter(|mapping| mapping.is_file())?;
    let same_file = |other: &&Mapping| other.inode == mapping.inode && other.device == mapping.device;
    maps.iter().filter(same_file).rfind(|first| first.offset == 0 && first.start <= address)
}

#[cfg(test)]
mod tests {
    use lj_trace_process::Process;

    use super::*;

    #[test]
    fn finds_a_function_of_its_own() {
        let process = Process::open(std::process::id()).unwrap();
        let maps = process.maps().unwrap();
        let address = finds_a_function_of_its_own as fn() as usize as u64;
        let function = described_function(&process.memory(), &maps, address).unwrap();
        assert_eq!(function.range.start, address);
        assert!(function.range.end - address < 1 << 16);
        assert_eq!(function.frame_size, Some(8), "at the entry, only the return address is on the stack");
    }

    #[test]
    fn a_hole_lies_between_functions() {
        let process = Process::open(std::process::id()).unwrap();
        let (memory, maps) = (process.memory(), process.maps().unwrap());
        let address = finds_a_function_of_its_own as fn() as usize as u64;
        let information = UnwindInformation::read(&memory, &maps, address).unwrap();
        assert_eq!(information.hole(address), None, "a function is no hole");
        let end = information.function(address).unwrap().range.end;
        // The linker aligns the next section, and fills the gap.
        if information.function(end).is_none() {
            let hole = information.hole(end).unwrap();
            assert!(hole.start == end && hole.end - end < 64, "{hole:x?}");
        }
    }

    #[test]
    fn says_nothing_about_data() {
        let process = Process::open(std::process::id()).unwrap();
        let maps = process.maps().unwrap();
        let value = 0_u8;
        assert_eq!(described_function(&process.memory(), &maps, (&raw const value) as u64), None);
    }
}
