//! Layouts from debug information, for builds that the table of known builds lacks.

use lj_trace_common::layout::VmLayout;
use lj_trace_process::sandbox::Question;
use lj_trace_process::sandbox::wire::{Bytes, Wire};
use lj_trace_process::{Maps, Process};
use lj_trace_unwind::module::{Image, Module, WithReader};
use lj_trace_unwind::opened::FileView;
use lj_trace_unwind::symbols::debug_file;
use lj_trace_unwind::symbols::elf::debug_links;
use object::read::elf::ElfFile64;
use object::{LittleEndian, ReadRef};

use super::arch::MODE;
use super::code_pointers::dispatch_table;
use super::layouts::{KnownLayout, dwarf};
use super::scan::Candidate;

/// The layouts in the debug information of the file that holds the candidate's interpreter, either in the file itself
/// or in a separate debug file. Empty if there is no debug information.
pub fn read(process: &Process, maps: &Maps, candidate: Candidate) -> Vec<KnownLayout> {
    let Some(interpreter) = interpreter(process, maps, candidate) else { return Vec::new() };
    let Some(mapping) = maps.find(interpreter) else { return Vec::new() };
    let Some(module) = Module::open(process, FileView::of(process), mapping) else { return Vec::new() };
    let in_debug_file = || {
        let links = debug_links(module.image())?;
        debug_file::find(process, module.path(), &links).and_then(|image| layouts(&image))
    };
    let layouts = layouts(module.image()).or_else(in_debug_file).unwrap_or_default();
    let known = |layout| KnownLayout {
        builds: format!("what the debug information of {} tells", module.name()),
        mode: MODE[usize::from(candidate.gc64)].to_owned(),
        options: Vec::new(),
        layout,
    };
    layouts.into_iter().map(known).collect()
}

/// Some address in the interpreter: the first target of what looks like the dispatch table, the longest run of code
/// pointers in `GG_State`.
fn interpreter(process: &Process, maps: &Maps, candidate: Candidate) -> Option<u64> {
    let is_code = |word| maps.find(word).is_some_and(|mapping| mapping.exec && mapping.is_file());
    dispatch_table(&process.memory(), candidate, is_code)
}

/// The layouts in a file's debug information; [`None`] if there are none.
pub fn layouts(image: &Image) -> Option<Vec<VmLayout>> {
    if let Image::Apart(file) = image {
        let sent = file.ask::<Option<Vec<SentLayout>>>(Question::Layouts, 0)??;
        return Some(sent.into_iter().map(|SentLayout(layout)| layout).collect());
    }
    struct ReadLayouts;
    impl WithReader for ReadLayouts {
        type Output = Vec<VmLayout>;

        fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Self::Output> {
            let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
            // For whatever reason reading fails, the debug information is of no use then.
            dwarf::read(&file).ok()
        }
    }
    image.with_reader(ReadLayouts)
}

/// A layout in the answer of the reader: its values, in the order of [`VmLayout::FIELDS`].
struct SentLayout(VmLayout);

impl Wire for SentLayout {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.values().iter().for_each(|value| value.put(out));
    }

    fn take(from: &mut Bytes<'_>) -> Option<Self> {
        let mut values = [0; VmLayout::FIELDS.len()];
        for value in &mut values {
            *value = u16::take(from)?;
        }
        Some(Self(VmLayout::from_values(&values)))
    }
}

/// Writes the reader's answer to [`Question::Layouts`].
pub fn put_layouts(image: &Image, out: &mut Vec<u8>) {
    layouts(image).map(|layouts| layouts.into_iter().map(SentLayout).collect::<Vec<_>>()).put(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prove::GG_STATE;

    #[test]
    fn a_program_without_luajit_tells_nothing() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(layouts(&Image::File(file)), None);
        let process = Process::open(std::process::id()).unwrap();
        let words = vec![0_u64; GG_STATE / 8];
        let thread = words.as_ptr() as u64;
        let candidate = Candidate { thread, global: thread + 96, gc64: true };
        assert!(read(&process, &process.maps().unwrap(), candidate).is_empty());
    }
}
