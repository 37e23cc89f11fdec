//! The layout that debug information tells: of builds that the table does not know.

use object::read::elf::ElfFile64;
use object::{LittleEndian, ReadRef};

use super::code_pointers::dispatch_table;
use super::layouts::{KnownLayout, dwarf};
use super::scan::Candidate;
use crate::symbols::debug_file;
use crate::symbols::elf::debug_links;
use crate::target::{Maps, Process};
use crate::unwind::module::{Image, Module, WithReader};

/// What the debug information of the file with the candidate's interpreter says, be it in the file itself or in a
/// file that belongs to it. None if there is none.
pub fn read(process: &Process, maps: &Maps, candidate: Candidate) -> Vec<KnownLayout> {
    let Some(interpreter) = interpreter(process, maps, candidate) else { return Vec::new() };
    let Some(mapping) = maps.find(interpreter) else { return Vec::new() };
    let Some(module) = Module::open(process, mapping) else { return Vec::new() };
    let in_debug_file = || {
        let links = debug_links(module.image())?;
        debug_file::find(process, module.path(), &links).and_then(|image| layouts(&image))
    };
    let layouts = layouts(module.image()).or_else(in_debug_file).unwrap_or_default();
    let known = |layout| KnownLayout {
        builds: format!("what the debug information of {} tells", module.name()),
        mode: if candidate.gc64 { "x64gc64" } else { "x64" }.to_owned(),
        options: Vec::new(),
        layout,
    };
    layouts.into_iter().map(known).collect()
}

/// Some address in the interpreter: where the dispatch table points to, the longest run of pointers to code in
/// `GG_State`.
fn interpreter(process: &Process, maps: &Maps, candidate: Candidate) -> Option<u64> {
    let is_code = |word| maps.find(word).is_some_and(|mapping| mapping.exec && mapping.is_file());
    dispatch_table(&process.memory(), candidate, is_code)
}

fn layouts(image: &Image) -> Option<Vec<lj_trace_common::layout::VmLayout>> {
    struct ReadLayouts;
    impl WithReader for ReadLayouts {
        type Output = Vec<lj_trace_common::layout::VmLayout>;

        fn run<'data, R: ReadRef<'data>>(self, data: R) -> Option<Self::Output> {
            let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
            // Whatever the reason is why it tells nothing: then it does not help.
            dwarf::read(&file).ok()
        }
    }
    image.with_reader(ReadLayouts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::prove::GG_STATE;

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
