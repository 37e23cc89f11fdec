//! The features of a compiled function: the functions that it calls, in order, the functions whose addresses it takes,
//! and its constants.

use lj_trace_process::sandbox::Question;
use lj_trace_process::sandbox::wire::{Bytes, Wire};
use object::LittleEndian;
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::ReadRef;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::arch::references;
use crate::module::{Image, Module, WithReader};
use crate::references::References;
use crate::table::UnwindTable;

/// The most bytes of a function: the largest ones of LuaJIT have some 30 KB, the interpreter among them.
const MAX_CODE: u64 = 64 << 10;

/// The most references of a function: `lj_opt_fold` and functions like it have some hundred calls; longer lists are cut.
const MAX_REFERENCES: usize = 1024;

/// A function of a file. All addresses are as in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionReferences {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Its references; addresses are included only if a function begins there.
    pub references: References,
}

impl FunctionReferences {
    /// The function of a module that covers `address`.
    pub fn of(module: &Module, address: u64) -> Option<Self> {
        match module.image() {
            Image::Apart(file) => {
                let found: Option<Self> = file.ask(Question::Code, address)?;
                found.filter(|found| (found.start..found.end).contains(&address))
            }
            image => Self::read(image, module.table()?.here()?, address),
        }
    }

    /// Reads the function, for a process that may parse this file.
    pub fn read(image: &Image, table: &UnwindTable, address: u64) -> Option<Self> {
        let range = table.function(address)?;
        let length = range.end.checked_sub(range.start).filter(|length| *length <= MAX_CODE)?;
        let code = image.with_reader(ReadCode { start: range.start, length })?;
        let mut references = references(&code, range.start);
        references.addresses.retain(|&address| table.function(address).is_some_and(|found| found.start == address));
        references.constants.retain(|constant| !references.addresses.contains(&u64::from(*constant)));
        references.calls.truncate(MAX_REFERENCES);
        references.addresses.truncate(MAX_REFERENCES);
        references.constants.truncate(MAX_REFERENCES);
        Some(Self { start: range.start, end: range.end, references })
    }
}

impl Wire for FunctionReferences {
    fn put(&self, out: &mut Vec<u8>) {
        let References { calls, addresses, constants } = &self.references;
        ((self.start, self.end), (calls.clone(), addresses.clone())).put(out);
        constants.put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let ((start, end), (calls, addresses)) = <((u64, u64), (Vec<u64>, Vec<u64>))>::take(from)?;
        let constants = Vec::<u32>::take(from)?;
        let is_short = [calls.len(), addresses.len(), constants.len()].iter().all(|length| *length <= MAX_REFERENCES);
        is_short.then_some(Self { start, end, references: References { calls, addresses, constants } })
    }
}

/// Reads code by its address.
struct ReadCode {
    start: u64,
    length: u64,
}

impl WithReader for ReadCode {
    type Output = Vec<u8>;

    fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Vec<u8>> {
        let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?.iter();
        let mut code = segments.filter(|ph| ph.p_type(endian) == PT_LOAD && ph.p_flags(endian).0 & PF_X.0 != 0);
        let offset = code.find_map(|ph| {
            let skipped = self.start.checked_sub(ph.p_vaddr(endian))?;
            let left = ph.p_filesz(endian).checked_sub(skipped)?;
            if self.length > left { None } else { ph.p_offset(endian).checked_add(skipped) }
        })?;
        Some(data.read_bytes_at(offset, self.length).ok()?.to_vec())
    }
}
