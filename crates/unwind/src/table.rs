//! The unwind table of an ELF file: its `.eh_frame`, indexed by address.
//!
//! All addresses here are as in the file (virtual addresses of its program headers), not as in the target.

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, FrameDescriptionEntry, LittleEndian,
    ParsedEhFrameHdr, RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, UnwindTableRow,
};
use lj_trace_common::arch::SIGNS_RETURNS;

use super::registers::Register;
use super::row::{CfaRule, SavedRule, UnwindRow};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A section's bytes and its address.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Virtual address of the first byte, as in the file.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A function with the limits that the unwind table gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionRange {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// The unwind table of one file.
#[derive(Debug)]
pub struct UnwindTable {
    eh_frame: Section,
    search: EntryIndex,
}

/// How to find a function's entry.
#[derive(Debug)]
enum EntryIndex {
    /// In the sorted table that the linker made (`.eh_frame_hdr`).
    Header(Section),
    /// In an index made here: sorted start addresses, with the offsets of their entries.
    Index(Vec<(u64, usize)>),
}

/// Working memory that unwinding reuses from row to row.
pub type Context = UnwindContext<usize>;

impl UnwindTable {
    /// A table over `.eh_frame`, with the linker's search table if the file has one.
    pub fn new(eh_frame: Section, header: Option<Section>) -> Self {
        let mut table = Self { eh_frame, search: EntryIndex::Index(Vec::new()) };
        let usable = header.filter(|header| {
            let bases = table.bases().set_eh_frame_hdr(header.address);
            parse_header(header, &bases).is_some_and(|parsed| parsed.table().is_some())
        });
        table.search = match usable {
            Some(header) => EntryIndex::Header(header),
            None => EntryIndex::Index(table.index()),
        };
        table
    }

    /// Size of its sections in bytes.
    pub fn size(&self) -> usize {
        let search = match &self.search {
            EntryIndex::Header(header) => header.bytes.len(),
            EntryIndex::Index(index) => size_of_val(index.as_slice()),
        };
        self.eh_frame.bytes.len() + search
    }

    /// The row for the instruction at `address`; [`None`] if no function of the table covers it or its entry is damaged.
    pub fn row(&self, address: u64, context: &mut Context) -> Option<UnwindRow> {
        let fde = self.fde(address)?;
        let frame = self.frame();
        let bases = self.bases();
        let row = fde.unwind_info_for_address(&frame, &bases, context, address).ok()?;
        convert(row, fde.is_signal_trampoline(), fde.cie().return_address_register(), &frame)
    }

    /// The function that covers `address`.
    pub fn function(&self, address: u64) -> Option<FunctionRange> {
        let fde = self.fde(address)?;
        Some(FunctionRange { start: fde.initial_address(), end: fde.end_address() })
    }

    /// All functions, in the table's order.
    pub fn functions(&self) -> Vec<FunctionRange> {
        let mut functions = Vec::new();
        self.for_each_fde(|fde| {
            functions.push(FunctionRange { start: fde.initial_address(), end: fde.end_address() });
        });
        functions
    }

    fn fde(&self, address: u64) -> Option<FrameDescriptionEntry<Slice<'_>>> {
        let frame = self.frame();
        let bases = self.bases();
        let offset = match &self.search {
            EntryIndex::Header(header) => {
                let bases = bases.clone().set_eh_frame_hdr(header.address);
                let parsed = parse_header(header, &bases)?;
                let pointer = parsed.table()?.lookup(address, &bases).ok()?.pointer();
                usize::try_from(pointer.checked_sub(self.eh_frame.address)?).ok()?
            }
            EntryIndex::Index(index) => {
                let after = index.partition_point(|&(start, _)| start <= address);
                index.get(after.checked_sub(1)?)?.1
            }
        };
        let fde = frame.fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        fde.contains(address).then_some(fde)
    }

    fn index(&self) -> Vec<(u64, usize)> {
        let mut index = Vec::new();
        self.for_each_fde(|fde| index.push((fde.initial_address(), fde.offset())));
        index.sort_unstable();
        index
    }

    fn for_each_fde<'a>(&'a self, mut visit: impl FnMut(&FrameDescriptionEntry<Slice<'a>>)) {
        let frame = self.frame();
        let bases = self.bases();
        let mut entries = frame.entries(&bases);
        // A damaged entry ends the walk: its length cannot be trusted, so the next entry cannot be found.
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
                && fde.len() != 0
            {
                visit(&fde);
            }
        }
    }

    fn frame(&self) -> EhFrame<Slice<'_>> {
        let mut frame = EhFrame::new(&self.eh_frame.bytes, LittleEndian);
        if SIGNS_RETURNS {
            frame.set_vendor(gimli::Vendor::AArch64);
        }
        frame
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.eh_frame.address)
    }
}

/// The address of `.eh_frame` according to `.eh_frame_hdr`.
pub fn eh_frame_address(header: &Section) -> Option<u64> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address);
    Some(parse_header(header, &bases)?.eh_frame_ptr().pointer())
}

fn parse_header<'a>(header: &'a Section, bases: &BaseAddresses) -> Option<ParsedEhFrameHdr<Slice<'a>>> {
    EhFrameHdr::new(&header.bytes, LittleEndian).parse(bases, 8).ok()
}

fn convert(
    row: &UnwindTableRow<usize>,
    signal: bool,
    return_address: gimli::Register,
    frame: &EhFrame<Slice<'_>>,
) -> Option<UnwindRow> {
    let bytes = |expression: &UnwindExpression<usize>| Some(expression.get(frame).ok()?.0.slice().into());
    let cfa = match row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => {
            CfaRule::Offset(Register::from_dwarf(register.0)?, *offset)
        }
        gimli::CfaRule::Expression(expression) => CfaRule::Expression(bytes(expression)?),
    };
    let mut saved = Vec::new();
    for (number, rule) in row.registers() {
        let number = if *number == return_address { Register::PC as u16 } else { number.0 };
        // Vector registers are never needed to find a caller.
        let Some(register) = Register::from_dwarf(number) else { continue };
        let rule = match rule {
            RegisterRule::Undefined => SavedRule::Undefined,
            RegisterRule::SameValue => SavedRule::Same,
            RegisterRule::Offset(offset) => SavedRule::AtCfa(*offset),
            RegisterRule::ValOffset(offset) => SavedRule::CfaPlus(*offset),
            RegisterRule::Register(other) => SavedRule::Register(Register::from_dwarf(other.0)?),
            RegisterRule::Expression(expression) => SavedRule::AtExpression(bytes(expression)?),
            RegisterRule::ValExpression(expression) => SavedRule::Expression(bytes(expression)?),
            _ => return None,
        };
        saved.push((register, rule));
    }
    Some(UnwindRow { cfa, saved: saved.into(), signal })
}
