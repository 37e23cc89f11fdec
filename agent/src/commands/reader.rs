//! The reader of files that others may have written: answers its requests. [`lj_trace_process::sandbox`] starts it.

use std::process::ExitCode;

use lj_trace_process::sandbox::wire::Wire as _;
use lj_trace_process::sandbox::{Asked, Question};

use lj_trace_luajit::debug_layout;
use lj_trace_unwind::frames::Found;
use lj_trace_unwind::module::{Image, LoadShape};
use lj_trace_unwind::signatures::FunctionReferences;
use lj_trace_unwind::symbols::elf::{ElfSymbols, debug_links};
use lj_trace_unwind::table::{Context, UnwindTable};

/// How many bytes of unwind sections to cache, beside the current table.
const MAX_KEPT: usize = 16 << 20;

/// Serves as a reader until lj-trace does not need it any more.
pub fn serve() -> ExitCode {
    let mut tables = Tables::default();
    lj_trace_process::sandbox::serve(|asked, out| tables.answer(asked, out)).unwrap_or_else(|| {
        eprintln!(
            "lj-trace: this command is internal: lj-trace starts it itself, to read files that others may have written"
        );
        crate::exit::ExitCode::USAGE.into()
    })
}

/// The most recently used unwind tables, by file number.
#[derive(Default)]
struct Tables {
    kept: Vec<(u64, Option<UnwindTable>)>,
    context: Context,
}

impl Tables {
    fn answer(&mut self, asked: Asked, out: &mut Vec<u8>) {
        let Asked { question, number, address, first, second } = asked;
        let is = |wanted: Question| question == wanted as u64;
        let image = Image::File(first);
        if is(Question::Shape) {
            LoadShape::read(&image).put(out);
        } else if is(Question::Links) {
            debug_links(&image).put(out);
        } else if is(Question::Symbols) {
            ElfSymbols::read(&image, second.map(Image::File).as_ref()).put(out);
        } else if is(Question::HasTable) {
            self.table(number, &image).is_some().put(out);
        } else if is(Question::Row) {
            self.table(number, &image);
            let table = self.kept.iter().find(|(kept, _)| *kept == number).and_then(|(_, table)| table.as_ref());
            table.and_then(|table| Found::look_up(table, address, &mut self.context)).put(out);
        } else if is(Question::Code) {
            self.table(number, &image);
            let table = self.kept.iter().find(|(kept, _)| *kept == number).and_then(|(_, table)| table.as_ref());
            table.and_then(|table| FunctionReferences::read(&image, table, address)).put(out);
        } else if is(Question::Layouts) {
            debug_layout::put_layouts(&image, out);
        }
    }

    fn table(&mut self, number: u64, image: &Image) -> Option<&UnwindTable> {
        let found = self.kept.iter().position(|(kept, _)| *kept == number);
        let index = found.unwrap_or_else(|| {
            let size = |(_, table): &(u64, Option<UnwindTable>)| table.as_ref().map_or(0, UnwindTable::size);
            if self.kept.iter().map(size).sum::<usize>() > MAX_KEPT {
                self.kept.clear();
            }
            self.kept.push((number, UnwindTable::read(image)));
            self.kept.len() - 1
        });
        self.kept.get(index)?.1.as_ref()
    }
}
