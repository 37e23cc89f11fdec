//! The unwind table of a file, read either here or by the [`sandbox`](lj_trace_process::sandbox)'s reader.

use std::sync::{Arc, Mutex, PoisonError};

use lj_trace_process::sandbox::wire::{Bytes, Wire};
use lj_trace_process::sandbox::{Distrusted, Question};

use super::row::UnwindRow;
use super::table::{Context, FunctionRange, UnwindTable};

/// The unwind table of one file.
#[derive(Debug)]
pub enum Frames {
    /// This process has read the table.
    Here(UnwindTable),
    /// The reader has the table.
    Apart(Apart),
}

/// A table that the reader has.
#[derive(Debug)]
pub struct Apart {
    file: Arc<Distrusted>,
    /// The last answer: usually both the function and the row of an address are needed.
    last: Mutex<Option<(u64, Option<Found>)>>,
}

/// What a table says about an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    function: FunctionRange,
    row: Option<UnwindRow>,
}

impl Found {
    /// Looks up an address; [`None`] if no function of the table covers it.
    pub fn look_up(table: &UnwindTable, address: u64, context: &mut Context) -> Option<Self> {
        Some(Self { function: table.function(address)?, row: table.row(address, context) })
    }
}

impl Frames {
    /// The table of a file that other users may have written; [`None`] if the file has none.
    pub fn apart(file: &Arc<Distrusted>) -> Option<Self> {
        let has: bool = file.ask(Question::HasTable, 0)?;
        has.then(|| Self::Apart(Apart { file: Arc::clone(file), last: Mutex::default() }))
    }

    /// The row for the instruction at `address` (as in the file); [`None`] if no function of the table covers it or its
    /// entry is damaged.
    pub fn row(&self, address: u64, context: &mut Context) -> Option<UnwindRow> {
        match self {
            Self::Here(table) => table.row(address, context),
            Self::Apart(table) => table.find(address)?.row,
        }
    }

    /// The table, if this process has read it.
    pub fn here(&self) -> Option<&UnwindTable> {
        match self {
            Self::Here(table) => Some(table),
            Self::Apart(_) => None,
        }
    }

    /// The function that covers `address`.
    pub fn function(&self, address: u64) -> Option<FunctionRange> {
        match self {
            Self::Here(table) => table.function(address),
            Self::Apart(table) => Some(table.find(address)?.function),
        }
    }
}

impl Apart {
    fn find(&self, address: u64) -> Option<Found> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, found)) = &*last
            && *known == address
        {
            return found.clone();
        }
        let found: Option<Found> = self.file.ask(Question::Row, address).unwrap_or_default();
        // A function that does not cover the address is no valid answer.
        let found = found.filter(|found| (found.function.start..found.function.end).contains(&address));
        *last = Some((address, found.clone()));
        found
    }
}

impl Wire for Found {
    fn put(&self, out: &mut Vec<u8>) {
        self.function.start.put(out);
        self.function.end.put(out);
        self.row.put(out);
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let function = FunctionRange { start: Wire::take(from)?, end: Wire::take(from)? };
        Some(Self { function, row: Wire::take(from)? })
    }
}

// They name registers.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use lj_trace_process::sandbox::wire::parse;

    use super::super::registers::Register;
    use super::super::row::{CfaRule, SavedRule};
    use super::*;

    #[test]
    fn rows_arrive_as_they_were_sent() {
        let saved = [
            (Register::Rbx, SavedRule::AtCfa(-16)),
            (Register::Rbp, SavedRule::Same),
            (Register::R12, SavedRule::Undefined),
            (Register::R13, SavedRule::CfaPlus(8)),
            (Register::R14, SavedRule::Register(Register::Rax)),
            (Register::R15, SavedRule::AtExpression([1, 2].into())),
            (Register::Rip, SavedRule::Expression([3].into())),
        ];
        let function = FunctionRange { start: 1, end: 9 };
        for cfa in [CfaRule::Offset(Register::Rsp, 8), CfaRule::Expression([7, 7].into())] {
            let row = Some(UnwindRow { cfa, saved: saved.clone().into(), signal: true });
            let found = Some(Found { function, row });
            let mut bytes = Vec::new();
            found.put(&mut bytes);
            assert_eq!(parse(&bytes), Some(found));
            // Any bytes are either accepted or rejected, without a panic.
            for index in 0..bytes.len() {
                for value in [0, 1, 2, 17, 255] {
                    let mut damaged = bytes.clone();
                    damaged[index] = value;
                    let _ = parse::<Option<Found>>(&damaged);
                }
            }
        }
    }
}
