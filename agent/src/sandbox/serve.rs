//! What a reader does: it answers questions about files that come over its socket, until that is closed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use super::reason::NOT_CONFINED;
use super::wire::Wire;
use super::{IS_READER, Question, confine, own_socket};
use crate::sockets;
use crate::symbols::bounded;
use crate::symbols::elf::{SymbolTable, debug_links};
use crate::unwind::frames::Found;
use crate::unwind::module::{Image, Shape};
use crate::unwind::table::{Context, UnwindTable};
use crate::vm::debug_layout;

/// Unwind tables that are kept, beside the one that is asked for: bytes of their sections.
const MAX_KEPT: usize = 16 << 20;

/// Serves as a reader: to be called before the process has threads. Ends when the socket on its standard input is closed.
pub fn serve() -> ExitCode {
    let Some(socket) = own_socket() else {
        eprintln!("lj-trace: lj-trace starts this itself, to read files that others can have written");
        return crate::commands::exit::ExitCode::USAGE.into();
    };
    // The text would go nowhere; the exit code says that there was one.
    std::panic::set_hook(Box::new(|_| {}));
    IS_READER.store(true, Ordering::Relaxed);
    if confine::confine().is_err() {
        return NOT_CONFINED.into();
    }
    let mut tables = Tables::default();
    let mut words = [0; 3];
    let mut out = File::from(socket);
    while let Ok((3, descriptors)) = sockets::receive(out.as_raw_fd(), &mut words) {
        // SAFETY: the kernel has just given us these descriptors, and nobody else knows them.
        let open = |fd: RawFd| (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) });
        let [first, second, _third] = descriptors.map(open);
        let Some(first) = first else { break };
        let before = bounded::refusals();
        let mut answer = vec![0; HEAD];
        tables.answer(words, first, second, &mut answer);
        let length = (answer.len() - HEAD) as u64;
        answer[..HEAD - 1].copy_from_slice(&length.to_le_bytes());
        answer[HEAD - 1] = u8::from(bounded::refusals() != before);
        if out.write_all(&answer).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Before an answer: its length, and whether the file is too large.
const HEAD: usize = 9;

/// The unwind tables that were asked for last, by the numbers of their files.
#[derive(Default)]
struct Tables {
    kept: Vec<(u64, Option<UnwindTable>)>,
    context: Context,
}

impl Tables {
    fn answer(&mut self, words: [u64; 3], first: File, second: Option<File>, out: &mut Vec<u8>) {
        let [question, number, address] = words;
        let is = |wanted: Question| question == wanted as u64;
        let image = Image::File(first);
        if is(Question::Shape) {
            Shape::read(&image).put(out);
        } else if is(Question::Links) {
            debug_links(&image).put(out);
        } else if is(Question::Symbols) {
            SymbolTable::read(&image, second.map(Image::File).as_ref()).put(out);
        } else if is(Question::HasTable) {
            self.table(number, &image).is_some().put(out);
        } else if is(Question::Row) {
            self.table(number, &image);
            let table = self.kept.iter().find(|(kept, _)| *kept == number).and_then(|(_, table)| table.as_ref());
            table.and_then(|table| Found::look_up(table, address, &mut self.context)).put(out);
        } else if is(Question::Layouts) {
            debug_layout::layouts(&image).put(out);
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
