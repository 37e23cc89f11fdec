//! Where the interpreter's machine code lies: the unwind information that covers the dispatch targets.
//!
//! LuaJIT's build describes all of its assembler code as one function in `.eh_frame` (`buildvm_asm.c`), even
//! in stripped programs. It is read from the target's memory through `PT_GNU_EH_FRAME`, so neither files nor
//! section headers are needed.

use std::ops::Range;

use gimli::{BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, UnwindContext, UnwindSection as _};
use lj_trace_common::memory::ReadMemory;
use object::Endianness;
use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::object::{read_bytes, read_some};
use crate::target::{Mapping, Maps};

/// A function as `.eh_frame` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedFunction {
    /// Its machine code.
    pub range: Range<u64>,
    /// Distance from the stack pointer to the caller's frame, in the function's body.
    pub frame_size: Option<u64>,
}

/// No unwind information is longer: that of a browser has 20 MB.
const MAX_SECTION: usize = 128 << 20;

/// The function around `address`, if the file mapped there has unwind information for it.
pub fn described_function<M: ReadMemory>(memory: &M, maps: &Maps, address: u64) -> Option<DescribedFunction> {
    let first = first_mapping_of_file(maps, address)?;
    let headers = read_bytes(memory, first.start, 4096.min(first.len() as usize)).ok()?;
    let header = FileHeader64::<Endianness>::parse(headers.as_slice()).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, headers.as_slice()).ok()?;
    // How far the file was moved from where it was linked to.
    let lowest = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).map(|s| s.p_vaddr(endian)).min()?;
    let bias = first.start.wrapping_sub(lowest & !4095);
    let index = segments.iter().find(|s| s.p_type(endian) == PT_GNU_EH_FRAME)?;
    let index_start = bias.wrapping_add(index.p_vaddr(endian));
    let index_length = usize::try_from(index.p_memsz(endian)).ok().filter(|length| *length <= MAX_SECTION)?;
    let index_bytes = read_bytes(memory, index_start, index_length).ok()?;

    let bases = BaseAddresses::default().set_eh_frame_hdr(index_start);
    let index = EhFrameHdr::new(&index_bytes, LittleEndian).parse(&bases, 8).ok()?;
    let gimli::Pointer::Direct(frames_start) = index.eh_frame_ptr() else { return None };
    // The section ends with its segment at the latest.
    let ends = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).filter_map(|s| {
        let start = bias.wrapping_add(s.p_vaddr(endian));
        let end = start.checked_add(s.p_memsz(endian))?;
        (start..end).contains(&frames_start).then_some(end)
    });
    let length = usize::try_from(ends.min()? - frames_start).map_or(MAX_SECTION, |length| length.min(MAX_SECTION));
    let frames = read_some(memory, frames_start, length);
    let frames = EhFrame::new(&frames, LittleEndian);
    let bases = bases.set_eh_frame(frames_start);
    let entry = index.table()?.fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset).ok()?;

    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(&frames, &bases, &mut context, address).ok();
    let frame_size = row.and_then(|row| match row.cfa() {
        CfaRule::RegisterAndOffset { offset, .. } => u64::try_from(*offset).ok(),
        CfaRule::Expression(_) => None,
    });
    let start = entry.initial_address();
    Some(DescribedFunction { range: start..start.checked_add(entry.len())?, frame_size })
}

/// The mapping of the beginning of the file that is mapped at `address`.
fn first_mapping_of_file(maps: &Maps, address: u64) -> Option<&Mapping> {
    let mapping = maps.find(address).filter(|mapping| mapping.is_file())?;
    let same_file = |other: &&Mapping| other.inode == mapping.inode && other.device == mapping.device;
    maps.iter().filter(same_file).rfind(|first| first.offset == 0 && first.start <= address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Process;

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
    fn says_nothing_about_data() {
        let process = Process::open(std::process::id()).unwrap();
        let maps = process.maps().unwrap();
        let value = 0_u8;
        assert_eq!(described_function(&process.memory(), &maps, (&raw const value) as u64), None);
    }
}
